"""Records nested nearly as deep as can be read: every command answers, or refuses in a sentence."""

import json
from pathlib import Path

import pytest

from eventstore.operations.masking import MAX_SHOWN_DEPTH, TOO_DEEP, bounded, mask_document
from tests.tools.commands import Command
from tests.tools.failures import Copy

DEEP = 900
EVENTS = "SELECT * FROM events"
COMMANDS = [
    *([name, "RUN"] for name in ("tail", "show", "diagnose", "verify", "repair", "replay", "runs", "index")),
    *([name, "RUN", "--json"] for name in ("show", "diagnose", "verify", "repair", "replay", "runs")),
    ["tail", "-n", "5", "RUN"],
    ["task", "RUN", "arith-001"],
    ["task", "RUN", "arith-001", "--json"],
    ["watch", "RUN", "--once"],
    ["diff", "RUN", "RUN", "--json"],
    ["reuse", "plan", "RUN", "--json"],
    ["close", "RUN", "--status", "failed"],
    ["scrub", "RUN", "OUT"],
    *(["query", EVENTS, "RUN", "--format", kind] for kind in ("table", "json", "jsonl", "csv", "markdown")),
    *(["query", EVENTS, "RUN", "--masked", "--format", kind] for kind in ("table", "json", "jsonl", "csv")),
]


def _nest(run: Path, *, files: bool) -> None:
    """Put an object that holds objects `DEEP` levels down into every payload, and into the JSON files if wanted."""
    deep = '{"a":' * DEEP + '{"api_key": "hunter2-hunter2"}' + "}" * DEEP

    def nested(members: dict[str, object]) -> str:
        return json.dumps(members | {"deep": "@@"}).replace('"@@"', deep)

    stream = run / "progress.jsonl"
    lines = []
    for line in stream.read_text("utf-8").splitlines():
        members = json.loads(line)
        members.pop("log", None)
        lines.append(json.dumps(members | {"payload": "@"}).replace('"@"', nested(members["payload"] or {})))
    stream.write_text("".join(f"{line}\n" for line in lines))
    for path in run.rglob("*.json") if files else ():
        members = json.loads(path.read_text("utf-8"))
        if isinstance(members, dict):
            path.write_text(nested(members))


@pytest.mark.parametrize(
    ("words", "files"), [*((words, True) for words in COMMANDS), (["tail", "RUN"], False), (["show", "RUN"], False)]
)
def test_every_command_survives_deep_nesting(
    words: list[str], files: bool, run_dir: Copy, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit code of the contract, words or an answer, and never a traceback (which `command` looks for)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = run_dir("r_retry2")
    _nest(run, files=files)
    places = {"RUN": str(run), "OUT": str(tmp_path / "out")}
    assert command(*(places.get(word, word) for word in words)) in {0, 1, 3}
    assert command.out or command.err
    if "--masked" in words or words[0] != "query":
        assert "hunter2-hunter2" not in command.out + command.err


def test_tail_puts_a_sentence_in_place_of_what_is_too_deep(run_dir: Copy, command: Command) -> None:
    """Each line stays JSON, with everything down to the bound in it."""
    run = run_dir("r_retry2")
    _nest(run, files=False)
    assert command("tail", "-n", "1", run) == 0
    value, levels = json.loads(command.out), 0
    value = value["payload"]["deep"]
    while isinstance(value, dict):
        value, levels = value["a"], levels + 1
    assert value == TOO_DEEP and levels == MAX_SHOWN_DEPTH - 2
    assert str(MAX_SHOWN_DEPTH) in TOO_DEEP


def test_scrub_copies_nothing_that_it_cannot_look_into(run_dir: Copy, tmp_path: Path, command: Command) -> None:
    """What lies too deep may be a credential: no copy, and the file is named."""
    run = run_dir("r_retry2")
    _nest(run, files=False)
    assert command("scrub", run, tmp_path / "out") == 1
    assert "progress.jsonl: holds an object nested too deeply" in command.err
    assert not (tmp_path / "out").exists()


def test_a_value_within_the_bound_is_shown_whole() -> None:
    """Down to the last level that is shown; one more is cut, in lists as in objects, without a limit of its own."""

    def nested(levels: int) -> object:
        value: object = 1
        for level in range(levels):
            value = [value] if level % 2 else {"a": value}
        return value

    whole = nested(MAX_SHOWN_DEPTH)
    assert bounded(whole) is whole and mask_document(whole) == whole
    assert TOO_DEEP in json.dumps(bounded(nested(MAX_SHOWN_DEPTH + 1)))
    assert TOO_DEEP in json.dumps(mask_document(nested(100_000)))
