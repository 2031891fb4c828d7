"""docs/faults.md: every test that it names is there."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "docs" / "faults.md"


@cache
def names_in(module: str) -> frozenset[str]:
    """Return the names of the tests in a file at or below this folder."""
    [path] = TESTS.rglob(f"{module}.py")
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test"))


def test_every_named_test_exists() -> None:
    """A fault is covered by a test that is run, not by a name."""
    text = DOCUMENT.read_text("utf-8")
    named = re.findall(r"\b(test_\w+)::(test_\w+)", text)
    assert len(named) > 80
    missing = sorted({f"{module}::{name}" for module, name in named if name not in names_in(module)})
    assert not missing
    section = text.partition("## File systems")[2].partition("\n## ")[0]
    alone = set(re.findall(r"(?<!:)\b(test_\w+)", section)) - {"test_hostile_filesystems"}
    assert alone and alone <= names_in("test_hostile_filesystems")


def test_a_thread_stands_in_one_spelling() -> None:
    """`owner/repository#number`, so that it can be looked up."""
    rows = [row for row in DOCUMENT.read_text("utf-8").splitlines() if row.startswith("|") and "#" in row]
    cells = [row.split("|")[2] for row in rows]
    threads = [thread for cell in cells for thread in cell.strip().split(", ") if "#" in thread]
    assert len(threads) > 120
    assert all(re.fullmatch(r"([\w.-]+/)?[\w.-]+#\d+", thread) for thread in threads), threads
