"""Every command of the command line on a state that a crash left: an answer or a clear refusal, never a traceback."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cli.main import COMMANDS, main

from .judge import Wrong, check, lay_down
from .states import State

READING: dict[str, list[str]] = {
    "replay": ["{run}", "--dry-run"],
    "repair": ["{run}"],
    "verify": ["{run}"],
    "runs": ["{root}"],
    "show": ["{run}"],
    "reuse": ["lineage", "{run}"],
    "diagnose": ["{run}"],
    "task": ["{run}", "t"],
    "tail": ["{run}"],
    "watch": ["{run}", "--once"],
    "diff": ["{run}", "{run}"],
    "query": ["SELECT run_key, status FROM runs", "{root}", "--no-catalog", "--output", "{aside}/rows.json"],
    "index": ["{root}", "--catalog", "{aside}/catalog.duckdb"],
    "scrub": ["{run}", "{aside}/scrubbed"],
    "export": ["{root}", "{aside}/export", "--catalog", "{aside}/catalog.duckdb", "--to", "parquet"],
}
"""What is asked of each command; none of these may change the run."""
CHANGING: dict[str, list[str]] = {
    "repair": ["{run}", "--apply", "--accept-loss"],
    "replay": ["{run}"],
    "close": ["{run}", "--status", "failed"],
}
NO_JSON = frozenset({"tail", "query"})
"""Commands whose output is no single document, or comes from a process of its own."""


def judge_commands(state: State, root: Path, *, without: frozenset[str] = frozenset()) -> int:
    """Run all commands; how many calls were made. `without` leaves some out."""
    assert READING.keys() | CHANGING.keys() == COMMANDS.keys()
    run, aside = root / "runs" / "r", root / "aside"
    shutil.rmtree(root, ignore_errors=True)
    run.mkdir(parents=True)
    aside.mkdir()
    lay_down(state, run)
    places = {"run": str(run), "root": str(run.parent), "aside": str(aside)}
    calls = 0
    for name, arguments in READING.items():
        if name not in without:
            _call(name, arguments, places)
            calls += 1
            left = {path.name: path.read_bytes() for path in run.iterdir()}
            check(left == state, f"{name} changes nothing: {sorted(left.keys() ^ state.keys())}")
    for name, arguments in CHANGING.items():
        _call(name, arguments, places)
        calls += 1
    code, document = _call("repair", ["{run}"], places)
    check(code in (0, 3) and (code == 3 or document["plan"] == []), f"nothing is left to repair: {code}, {document}")
    return calls


def _call(name: str, arguments: list[str], places: dict[str, str]) -> tuple[int, dict[str, object]]:
    words = [name, *(argument.format(**places) for argument in arguments), *([] if name in NO_JSON else ["--json"])]
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with _quiet(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
    out.flush()
    text = out.buffer.getvalue().decode()
    allowed = (0, 1, 2, 3) if name == "task" else (0, 1, 3)  # there may be no task of that name
    check(code in allowed, f"{name} ends with {code}: {err.getvalue()} {text[:500]}")
    check("Traceback" not in err.getvalue(), f"{name} has no traceback")
    try:
        document = json.loads(text) if name not in NO_JSON else {}
    except ValueError:
        raise Wrong(f"{name} ends with {code} and no JSON document: {text[:500]!r} {err.getvalue()}") from None
    return code, document if isinstance(document, dict) else {}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No colours, no terminal."""
    before = os.environ.get("NO_COLOR")
    os.environ["NO_COLOR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["NO_COLOR"]
        else:
            os.environ["NO_COLOR"] = before
