"""docs/questions.md: every row of its tables is a command that runs and answers, or says that nothing is recorded."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.tools.commands import Command
from tests.tools.failures import Copy

DOCUMENT = Path(__file__).parents[2] / "docs/questions.md"


def rows() -> list[tuple[str, str, str]]:
    """Question, command and answer of every row of a table."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ") and "`compass-es" in line]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(question, command.strip("` "), answer.strip("` |")) for question, command, answer in cells]


def keys_of(value: Any) -> set[str]:
    """All member names anywhere in a document."""
    if isinstance(value, dict):
        return set(value) | {key for member in value.values() for key in keys_of(member)}
    return {key for member in value for key in keys_of(member)} if isinstance(value, list) else set()


@pytest.mark.parametrize(("question", "line", "answer"), rows(), ids=lambda cell: cell[:60])
def test_a_documented_question_is_answered(
    question: str, line: str, answer: str, run_dir: Copy, runs_root: Path, command: Command
) -> None:
    """The command runs as it is written; what the last column names is in its document."""
    places = {"RUN": run_dir("p_429"), "OTHER": run_dir("r_retry2"), "TASK": "arith-001", "RUNS": runs_root}
    words = shlex.split(line)[1:]
    for name, place in places.items():
        words = [f"{place}{word[len(name) :]}" if word.partition("@")[0] == name else word for word in words]
    code = command(*words, "--json")
    assert code in (0, 1), command.out + command.err
    texts = command.out.splitlines() if answer == "lines" else [command.out]
    documents = [json.loads(text) for text in texts]
    if answer.startswith("not recorded: "):
        missing = answer.removeprefix("not recorded: ").split(", ")
        names = {key for key in keys_of(documents) if any(word in key.lower() for word in missing)}
        assert not names - {"schema_version"}
    elif answer == "rows":
        assert isinstance(documents[0], list)
    elif answer == "lines":
        assert documents and all(document["event"] for document in documents)
    else:
        assert answer in documents[0]


def test_the_catalogue_of_questions_is_covered() -> None:
    """As many rows as there are questions, and the ones that can't be answered say so."""
    answers = [answer for _, _, answer in rows()]
    assert len(answers) >= 15 + 22 and sum(answer.startswith("not recorded") for answer in answers) == 5
