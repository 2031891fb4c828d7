"""The mechanical rules of CONTRIBUTING.md, "English": first lines of docstrings, and words that are not used."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

VERBS = frozenset(
    """
    Abort Accept Add Adopt Aggregate Allow Annotate Answer Append Apply Approve Arrange Ask Assert
    Assign Attach Await Back Be Begin Bind Block Break Bring Build Call Cancel Carry Change Check
    Choose Claim Clean Clear Close Collect Combine Compare Complete Compute Confirm Connect Consume
    Continue Convert Copy Correct Count Cover Create Cut Decide Declare Decode Define Delete Derive
    Describe Detect Diagnose Do Drain Draw Drop Emit Empty End Ensure Enter Estimate Evaluate
    Exchange Execute Expect Explain Export Extract Fail Feed Fetch Fill Filter Find Finish Fit Flush
    Fold Follow Forget Format Fsync Gather Generate Get Give Go Group Guess Hand Handle Hash Hide
    Hold Ignore Import Index Insert Inspect Install Interrupt Invoke Iterate Join Judge Keep Kill
    Label Leave Let Limit Link List Listen Load Locate Lock Log Look Make Map Mark Mask Match
    Measure Merge Move Name Note Notice Notify Number Observe Offer Omit Open Order Pack Page Parse
    Pass Pick Place Plan Prefer Prepare Print Process Produce Prove Publish Put Query Quote Raise
    Rank Read Rebuild Recompute Record Recover Redact Reduce Refresh Refuse Register Release Reload
    Remember Remove Rename Render Repair Replace Replay Report Reserve Reset Resolve Restore Resume
    Return Ring Rotate Round Run Save Say Scan Score Search Seal Seek See Select Send Separate Serve
    Set Share Shorten Show Sign Skip Sleep Solve Sort Split Start State Steal Stop Store Strip
    Submit Sum Swap Switch Sync Take Test Throw Time Touch Trace Track Transform Translate Trim
    Truncate Try Turn Undo Unpack Update Upcast Use Validate Verify Visit Wait Wake Walk Warn Watch
    Weigh Work Wrap Write Yield
    """.split()
)
"""The verbs with which the docstring of a function may begin. A new one is added here."""

NOT_USED = {
    r"\bstands? at\b": "is at",
    r"\btell(?:s|ing)?\b|\btold\b": "says, reports; a noun such as message",
    r"\banew\b": "again",
    r"\bbeside\b": "next to",
    r"\bodd\b": "invalid, unusual",
    r"\btakes? (?:the )?truth away\b": "lose information",
    r"\btravels?\b": "holds elsewhere",
    r"\bin words\b": "as a message",
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b)[a-z]+": "is not a …",
}
"""Pattern → what is written in its place."""


class Breach(NamedTuple):
    """One place that breaks a rule."""

    file: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}"


def docstring_breaches(path: Path, name: str) -> Iterator[Breach]:
    """Yield the docstrings of a module whose first line is not of the right kind, or that use words not used."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if not text:
            continue
        line = 1 if isinstance(node, ast.Module) else node.lineno
        if problem := first_line_problem(text, function=is_function(node)):
            yield Breach(name, line, problem)
        yield from (Breach(name, line, problem) for problem in words_not_used(text))


def is_function(node: ast.AST) -> bool:
    """Return whether a definition is a function that is called as one: a property is named after its value."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return not decorators & {"property", "cached_property", "setter", "fixture"}


def first_line_problem(text: str, *, function: bool) -> str | None:
    """Return what is wrong with the first line of a docstring, None where it is fine."""
    first = re.match(r"[A-Za-z]+", text)
    word = first[0] if first else ""
    if function and word not in VERBS:
        return f"a function's docstring begins with a verb, not {text.split(maxsplit=1)[0]!r}"
    if not function and word in {"What", "Whether", "Which", "How", "When", "Where"}:
        return f"begins with {word!r}; a noun phrase is wanted"
    return None


def words_not_used(text: str) -> Iterator[str]:
    """Yield a problem for each word of a text that is not used; code in backticks is left out."""
    prose = re.sub(r"`[^`]*`", "", text)
    for pattern, instead in NOT_USED.items():
        yield from (f"{found[0]!r}: write {instead}" for found in re.finditer(pattern, prose, re.IGNORECASE))


def prose_breaches(path: Path, name: str) -> Iterator[Breach]:
    """Yield the words that are not used in a Markdown file, code blocks left out."""
    code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            code = not code
        if not code and not line.startswith("    "):
            yield from (Breach(name, number, problem) for problem in words_not_used(line))
