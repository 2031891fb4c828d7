"""Documents that commands print: each has a struct and a published schema, and one name means one thing in all."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore.operations.reports.schemas import REPORTS, schema_of, schema_text
from eventstore.operations.status import Counters
from eventstore.results.task_dirs import task_dirs
from projections.snapshots import counts
from projections.snapshots.progress import IDENTITY
from tests.tools.commands import Command
from tests.tools.failures import PLANTED, plant
from tests.tools.recorded import RUNS

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "schema"

FOREIGN = {
    *("progress", "run_info", "active_tasks"),  # AgentCompass's documents and parts of them
    *("network_policy", "plan", "attempt_plan", "reused_from"),
    *("metrics", "final_answer", "ground_truth"),  # the benchmark's own
    *("a", "b"),  # values of any member on both sides of a comparison
}
"""Members that hold what others wrote, whose types are their own."""
FOREIGN_STRUCTS = {"OpenResource"}
TRACKER = {"updated_at"}
"""Members of progress.json, which keep what AgentCompass's tracker has there."""
MANY = {
    "a": "a side of a comparison",
    "b": "a side of a comparison",
    "runs": "their number, or all of them in `runs`",
    "tasks": "their number, or those that a report is about",
    "attempts": "their number, or those of a task",
    "retries": "their number, those of an attempt, or their sums",
    "problems": "sentences, or those of `watch` with their times",
    "issues": "those of a result, how often each kind was seen, or where the numbers differ",
    "plans": "how often each was seen, or where the numbers differ",
    "plan": "steps of a repair, or the execution plan of an attempt",
    "metrics": "those of a result, means over attempts, or changes",
    "counts": "counters, or where they differ",
    "evidence": "facts about a writer, or places in the records",
    "error": "the failure of a command, or what a run or phase says of its own",
    "results": "steps of a repair, or how many are stored",
    "artifacts": "where they are, or which ones are asked for",
    "reasons": "sentences, or kinds of retries",
    "lines": "their number, or those of a task",
    "total_seconds": "one sum, or those of two sides",
    "median_seconds": "one median, or those of two sides",
    "stays": "their number, or those of two sides",
}
"""Names of things that are counted in one report and shown in another, or compared; each with what it means."""
ANOTHER_NAME = {
    "seconds": "duration_seconds",
    "elapsed": "duration_seconds",
    "took": "duration_seconds",
    "task": "task_id",
    "run": "run_id",
    "time": "a name that ends with _at",
    "words": "message, or description",
    "index": "number",
    "file_name": "file",
}
"""Names that no member has, and the one that is used for the thing."""


def check(name: str, document: Any) -> None:
    """Assert that a document is valid by the published schema of its report."""
    import jsonschema

    schema = json.loads((PUBLISHED / f"{name}.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


def members() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every member of every struct of every report: the struct's name, the member's, and its schema."""
    for name in REPORTS:
        for struct, part in schema_of(name)["$defs"].items():
            for member, kind in part.get("properties", {}).items():
                yield f"{name}: {struct}", member, kind


def kind_of(schema: dict[str, Any]) -> str:
    """The type of a member in words, whether or not it may be null."""
    if "anyOf" in schema:
        kinds = {kind_of(one) for one in schema["anyOf"]} - {"null"}
        return " or ".join(sorted(kinds))
    if "$ref" in schema:
        return "object"
    if "enum" in schema:
        return "string" if all(isinstance(value, str) for value in schema["enum"]) else "enum"
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return "array of " + " and ".join(map(kind_of, schema["prefixItems"]))
        return f"array of {kind_of(schema.get('items', {}))}"
    if schema.get("type") == "object":
        if "properties" in schema:
            return "object"
        values = schema.get("additionalProperties", {})
        return f"object of {kind_of(values if isinstance(values, dict) else {})}"
    return str(schema.get("type", "anything"))


def test_the_published_schemas_are_current() -> None:
    """`python -m eventstore.operations.reports.schemas docs/schema` would change nothing."""
    assert {path.stem for path in PUBLISHED.glob("*.json")} == REPORTS.keys()
    for name in REPORTS:
        assert (PUBLISHED / f"{name}.json").read_text("utf-8") == schema_text(name), name


def test_reports_have_every_counter_of_the_fold() -> None:
    """A counter that a report did not name would be left out of it, or stand there as 0."""
    assert Counters.__struct_fields__ == ("run_id", *IDENTITY, *counts.COUNTERS)
    assert set(counts.COUNTERS) <= set(counts.State.__struct_fields__)


def test_the_document_names_every_schema() -> None:
    text = (ROOT / "docs" / "json.md").read_text("utf-8")
    missing = [name for name in REPORTS if f"(schema/{name}.json)" not in text]
    assert not missing


def test_the_schema_member_names_the_schema() -> None:
    for name in REPORTS.keys() - {"error"}:
        report = schema_of(name)["$ref"].rpartition("/")[2]
        assert schema_of(name)["$defs"][report]["properties"]["schema"]["enum"] == [f"compass-es.{name}.v1"]


def test_no_member_is_untyped() -> None:
    """Nothing may be anything, but for documents of AgentCompass."""
    untyped = [
        f"{struct}.{member}: {kind_of(kind)}"
        for struct, member, kind in members()
        if "anything" in kind_of(kind) and member not in FOREIGN and struct.rpartition(" ")[2] not in FOREIGN_STRUCTS
    ]
    assert not untyped


def test_one_name_has_one_type() -> None:
    """Whoever knows a member of one report knows it in all of them."""
    kinds: dict[str, dict[str, str]] = {}
    for struct, member, kind in members():
        if "anything" not in kind_of(kind):
            kinds.setdefault(member, {})[kind_of(kind)] = struct
    twofold = {member: found for member, found in kinds.items() if len(found) > 1 and member not in MANY}
    assert not twofold
    needless = [member for member in MANY if len(kinds.get(member, {})) < 2 and member not in FOREIGN]
    assert not needless, "these have one type now"


def test_one_thing_has_one_name() -> None:
    """No member has a name beside the usual one; units are in names, and times are ISO 8601."""
    for struct, member, kind in members():
        assert member not in ANOTHER_NAME, f"{struct}.{member}: call it {ANOTHER_NAME.get(member)}"
        if member.endswith("_at") and member not in TRACKER and struct.rpartition(" ")[2] not in FOREIGN_STRUCTS:
            assert kind_of(kind) == "string", f"{struct}.{member}"
        if member.endswith("_seconds") and member not in MANY:
            assert kind_of(kind) == "number", f"{struct}.{member}"
        if member == "life":
            assert "Life" in str(kind), f"{struct}.{member}"


# -- what commands really print


def printed(command: Command, *arguments: object) -> Any:
    """The document of a command, which ran."""
    assert command(*arguments, "--json") in (0, 1), command.err
    return command.document


@pytest.mark.parametrize("key", RUNS.values())
def test_what_commands_print_of_a_run_is_valid(command: Command, runs_root: Path, key: str) -> None:
    """Every recorded run, every command that changes nothing."""
    run = runs_root / key
    for name, arguments in {
        "replay": ("replay", run, "--dry-run"),
        "repair": ("repair", run),
        "verify": ("verify", run, "--secrets", "none"),
        "runs": ("runs", run),
        "show": ("show", run),
        "watch": ("watch", run, "--once"),
        "diagnose": ("diagnose", run),
        "diff": ("diff", run, runs_root / RUNS["r_retry2"]),
        "reuse-plan": ("reuse", "plan", run),
        "reuse-lineage": ("reuse", "lineage", run),
    }.items():
        document = printed(command, *arguments)
        check("error" if isinstance(document.get("error"), dict) else name, document)
    for task_id in tasks_of(run):
        check("task", printed(command, "task", run, task_id))


def tasks_of(run: Path) -> list[str]:
    """A few tasks of a run: the first of each state of its details, and the first two of its stream."""
    stored = {task.state: task.task_id for task in task_dirs(run) if task.task_id}
    lines = [json.loads(line) for line in (run / "progress.jsonl").read_bytes().splitlines()]
    named = list(dict.fromkeys(line["task_id"] for line in lines if line.get("task_id")))
    return sorted({*stored.values(), *named[:2]})


@pytest.mark.parametrize("name", PLANTED)
def test_what_commands_print_of_a_failure_is_valid(name: str, command: Command, run_dir: Callable[[str], Path]) -> None:
    """Runs with every planted cause."""
    run = plant(name, run_dir)
    for report in ("diagnose", "show", "runs"):
        check(report, printed(command, report, run))


def test_what_commands_print_of_a_history_is_valid(command: Command, runs_root: Path, tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.duckdb"
    check("index", printed(command, "index", runs_root, "--catalog", catalog))
    check("export", printed(command, "export", runs_root, tmp_path / "out", "--to", "parquet", "--catalog", catalog))
    check("query-list", printed(command, "query", "--list"))
    check("rules", printed(command, "verify", "--rules"))


def test_what_commands_print_of_what_they_changed_is_valid(
    command: Command, run_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_dir("r_kill_mid")
    stream = run / "progress.jsonl"
    stream.write_bytes(stream.read_bytes().replace(b'"event"', b'"event', 1))
    check("repair", printed(command, "repair", run, "--apply"))
    check("replay", printed(command, "replay", run, "--force"))
    died = run_dir("r_kill_early")
    check("close", printed(command, "close", died, "--status", "failed"))
    check("scrub", printed(command, "scrub", died, tmp_path / "shared"))
    check("reuse-apply", printed(command, "reuse", "apply", run, tmp_path / "runs" / "r_new"))


def test_a_failure_is_valid(command: Command, tmp_path: Path) -> None:
    for arguments in (("replay", tmp_path / "none"), ("verify", "--no-such"), ("query", "SELECT nothing", tmp_path)):
        assert command(*arguments, "--json") in (2, 3)
        check("error", command.document)
