"""The history's views agree with plain folds, whatever a stream holds; bad run directories never stop the others."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import to_builtins

from eventstore.errors import InputError
from eventstore.format.codec import envelope_members
from eventstore.format.events import TasksLoaded, TasksLoadedPayload
from eventstore.format.records import Recorded
from eventstore.history import connect
from eventstore.history.rows import line_batch, values
from eventstore.history.sql import questions
from eventstore.history.sql.access import CatalogChoice, describe_views, open_history
from eventstore.operations.replay import replay_run
from eventstore.recording.recorder import RunRecorder
from eventstore.stream import line_reader
from eventstore.stream.scan import scan
from projections import fold
from projections.snapshots.counts import COUNTERS
from projections.timeline import timeline
from tests.tools.recorded import ROOT, RUNS

MEMORY = CatalogChoice(off=True)
REQUEST = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalogs of tests don't land in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def rows(path: Path, sql: str, choice: CatalogChoice = MEMORY, problems: list[str] | None = None) -> list[Any]:
    told = problems if problems is not None else []
    connection = open_history([path], catalog=choice, on_problem=lambda where, words: told.append(f"{where}: {words}"))
    try:
        return list(connection.execute(sql).fetchall())
    finally:
        connection.close()


def moments(seconds: float | None) -> int | None:
    """Microseconds as TIMESTAMP holds them; None outside the years 1 to 9999."""
    return round(seconds * 1e6) if seconds is not None and -62135596800 <= seconds <= 253402300799 else None


def check_views(root: Path, choice: CatalogChoice = MEMORY) -> None:
    """Every row of every view that the stream makes, against scan and the folds."""
    connection = open_history([root], catalog=choice)
    try:
        runs = connection.execute("SELECT run_key, path FROM runs ORDER BY run_key").fetchall()
        for run_key, path in runs:
            check_run(connection, run_key, Path(path))
        counted = dict(connection.execute("SELECT run_key, count(*) FROM events GROUP BY ALL").fetchall())
        assert set(counted) <= {key for key, _ in runs}
    finally:
        connection.close()


def check_run(connection: Any, run_key: str, path: Path) -> None:
    def ask(sql: str) -> list[Any]:
        return list(connection.execute(sql, [run_key]).fetchall())

    stream = scan(path / "progress.jsonl", max_findings=None)
    records = list(stream)
    places = 'seq, line, "offset", epoch_us("timestamp")'
    members = ", ".join((*TEXTS, "attempt", "request_index"))
    got = ask(f"SELECT {places}, {members} FROM events WHERE run_key = ? ORDER BY seq")
    assert got == [wanted_row(record) for record in records]
    check_timeline(ask, path)
    snapshots = replay_run(path, write=False).snapshots
    counters = ask(f"SELECT {', '.join(COUNTERS)}, status, events FROM runs WHERE run_key = ?")[0]
    folded = snapshots.progress or dict.fromkeys(COUNTERS, 0) | {"status": (snapshots.run_info or {}).get("status")}
    assert counters == (*(folded[name] for name in COUNTERS), folded["status"], len(records))
    places = 'code, line, "offset", length'
    own = "code <> 'out_of_range'"  # what columns can't hold is no finding of the scan
    damage = ask(f"SELECT {places} FROM damage WHERE run_key = ? AND file = 'progress.jsonl' AND {own}")
    findings = [(f.code, f.line, f.offset, f.length) for f in stream.findings if f.code != "unsealed"]
    assert sorted(damage, key=repr) == sorted(findings, key=repr)


TEXTS = (
    "run_id",
    "event",
    "task_id",
    "category",
    "phase",
    "status",
    "orchestration_id",
    "request_key",
    "request_name",
)


def wanted_row(record: Recorded) -> tuple[Any, ...]:
    """The row of an event, without its payload."""
    members = envelope_members(record.event)
    return (
        record.seq,
        record.line_number,
        record.offset,
        moments(record.event.timestamp),
        *(values.text(members[name]) for name in TEXTS),
        values.as_int(members["attempt"]),
        values.as_int(members["request_index"]),
    )


def check_timeline(ask: Callable[[str], list[Any]], path: Path) -> None:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in timeline.rows(fold(timeline, scan(path / "progress.jsonl"))):
        by_kind.setdefault(type(row).__name__, []).append(to_builtins(row))
    for view, kind, names in (
        (
            "phases",
            "PhaseRow",
            ("seq", "task_id", "attempt", "category", "phase", "seconds", "ended_seq", "updates", "status", "error"),
        ),
        ("tasks", "TaskRow", ("task_id", "category", "status", "severity", "seconds", "attempts", "last_phase")),
        ("attempts", "AttemptRow", ("task_id", "attempt", "status", "seconds", "starts", "retries", "phases")),
        ("retries", "RetryRow", ("seq", "task_id", "attempt", "retry", "stage", "phase", "discarded_seconds")),
    ):
        got = ask(f"SELECT {', '.join(names)} FROM {view} WHERE run_key = ?")
        wanted = [tuple(row[name] for name in names) for row in by_kind.get(kind, [])]
        assert sorted(map(repr, got)) == sorted(map(repr, wanted)), view
    endings = ask("SELECT seq, ended_by FROM phases WHERE run_key = ? AND ended_seq IS NOT NULL ORDER BY seq")
    stays = sorted((row["seq"], row["ended_by"]) for row in by_kind.get("PhaseRow", []) if row["ended_by"] is not None)
    assert endings == stays
    assert ask("SELECT count(*) FROM plans WHERE run_key = ? AND source = 'stream'")[0][0] == len(
        by_kind.get("PlanRow", [])
    )


def test_views_over_all_recorded_runs_agree_with_the_folds() -> None:
    """SQL sees exactly the records that scan accepted, and counts as replay does."""
    check_views(ROOT)


def test_clean_lines_go_as_they_are_and_stays_stand_where_they_begin() -> None:
    """The quick way is the one that recorded streams take: nearly all lines, and most stays in a phase."""
    connection = open_history([ROOT], catalog=MEMORY)
    try:
        counted = connection.execute(
            "SELECT count(*), count(*) FILTER (own_context), count(stay_seconds) FROM store.main.events"
        ).fetchone()
        apart = connection.execute("SELECT count(*) FROM store.main.phases").fetchone()
    finally:
        connection.close()
    assert counted[1] < counted[0] / 10
    assert counted[2] > apart[0]


def test_batches_of_any_size_make_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stay that ends in a later batch than it began in has a row of its own."""
    monkeypatch.setattr(line_reader, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(line_batch, "BATCH_BYTES", 1)
    check_views(ROOT)


def test_lines_of_another_request_keep_their_own(tmp_path: Path) -> None:
    """One stream, three requests: no line gets the request of the first."""
    stream = next(ROOT.rglob("progress.jsonl")).read_bytes().splitlines(keepends=True)
    lines = [
        json.dumps(json.loads(line) | {"request_index": index // 7 % 3, "request_name": None}).encode() + b"\n"
        for index, line in enumerate(stream)
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "progress.jsonl").write_bytes(b"".join(lines))
    check_views(tmp_path)


def test_views_from_a_catalog_agree_with_the_folds() -> None:
    """A catalog changes where rows are kept, and nothing else."""
    check_views(ROOT, CatalogChoice())
    check_views(ROOT, CatalogChoice())


def damaged(stream: bytes, random: Random) -> bytes:
    """One to three things happen to a stream: cut, zeroed, glued, spliced, repeated, odd lines."""
    for _ in range(random.randint(1, 3)):
        lines = stream.splitlines(keepends=True)
        at, place = random.randrange(len(lines) + 1), random.randrange(len(stream) + 1)
        match random.randrange(8):
            case 0:
                stream = stream[:place]
            case 1:
                stream = stream[:place] + b"\0" * random.randint(1, 4000) + stream[place:]
            case 2:
                stream = stream[:place] + stream[place + random.randint(1, 700) :]
            case 3:
                stream = b"".join([*lines[:at], random.choice(ODD_LINES), *lines[at:]])
            case 4:
                stream = b"".join(lines[:at] + lines[max(0, at - 3) :])
            case 5:
                stream = stream[:place] + bytes([random.randrange(256)]) + stream[place + 1 :]
            case 6:
                stream = b"".join(line.replace(b"\n", b"") if n == at else line for n, line in enumerate(lines))
            case 7:
                stream = b"\xef\xbb\xbf" + stream.replace(b"\n", b"\r\n", 5)
    return stream


def odd(payload: str, **members: str) -> bytes:
    given = {"run_id": '"r_ok"', "event": '"phase_changed"', "timestamp": "1795962624.5", "task_id": '"odd"', **members}
    head = ",".join(f'"{name}":{value}' for name, value in given.items())
    return f'{{{head},"payload":{payload}}}\n'.encode()


ODD_LINES = [
    odd('{"error":NaN}'),
    odd('{"error":"\\ud800"}'),
    odd('{"a":1,"a":2}'),
    odd('{"n":123456789012345678901234567890}'),
    odd('{"deep":' + "[" * 500 + "]" * 500 + "}"),
    odd('{"deep":' + "[" * 5000 + "]" * 5000 + "}"),
    odd("null"),
    odd("{}", attempt="1.5", category="[1]", phase="null"),
    odd("{}", attempt="99999999999999999999", request_index="-1"),
    odd("{}", timestamp="1e300"),
    odd("{}", timestamp="-5"),
    odd("{}", task_id="17"),
    odd("{}", event='"phase_changed","event":"task_started"'),
    odd("{}", unheard_of='{"of":true}', seq="7"),
    odd('{"text":"\\u0000 \\u2028 \u2028 \u202e"}'),
    odd("{}", event='"who_knows"'),
    b"\n",
    b"[1,2]\n",
    b"garbage\n",
    b"\xff\xfe\n",
]


def test_views_over_damaged_streams_agree_with_the_folds(tmp_path: Path) -> None:
    """Damage has its place in `damage`; no record is missing, doubled or made up, and none is a row of NULLs."""
    random = Random(7)
    for number in range(int(os.environ.get("DAMAGED_STREAMS", "60"))):
        name = random.choice(["r_ok", "r_surrogate", "r_evalerr_reanalysis", "r_kill_early", "k3/20261129_143950"])
        folder = tmp_path / f"{number:04}"
        folder.mkdir()
        stream = (ROOT / RUNS[name] / "progress.jsonl").read_bytes()
        (folder / "progress.jsonl").write_bytes(damaged(stream, random))
    check_views(tmp_path)
    check_views(tmp_path, CatalogChoice())


@pytest.fixture
def odd_run(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "runs" / "odd"
    folder.mkdir(parents=True)
    (folder / "progress.jsonl").write_bytes(b"".join(line for line in ODD_LINES if line.startswith(b"{")))
    yield folder


def test_odd_payloads_arrive_as_they_stand_in_the_line(odd_run: Path) -> None:
    """NaN, repeated keys, 30 digits, lone surrogates, deep nesting: text for text; JSON where DuckDB can take it."""
    got = rows(odd_run, "SELECT payload_text, payload IS NULL FROM events ORDER BY seq LIMIT 6")
    texts = [line.partition(b'"payload":')[2].rstrip()[:-1].decode() for line in ODD_LINES[:6]]
    assert [text for text, _ in got[:5]] == texts[:5]
    assert [missing for _, missing in got[:5]] == [False, True, False, False, False]
    # Nothing that one odd line holds stops a query over all of them.
    assert len(rows(odd_run, "SELECT payload->>'error' FROM events")) == len(list(scan(odd_run)))


@pytest.mark.parametrize("beside", ["", '"category":[1],'], ids=["read by DuckDB", "read by us"])
@pytest.mark.parametrize(
    "written, kept",
    [
        ('{ "b" : [ 1 , "x" ], "a" : null }', '{"b":[1,"x"],"a":null}'),
        ('{"n":123456789012345678901234567890,"m":18446744073709551616}', None),
        ('{"n":1e5,"m":0.12345678901234567891}', '{"n":100000.0,"m":0.12345678901234568}'),
        ('{"n":-0,"m":-0.0}', '{"n":0,"m":-0.0}'),
        ('{"n":1e309}', None),
        ('{"a":1,"a":2}', None),
        ('{"t":"\\u00e9\\/\\u0000"}', '{"t":"é/\\u0000"}'),
        ("null", "NULL"),
    ],
)
def test_a_payload_keeps_its_value_whichever_way_it_goes(tmp_path: Path, beside: str, written: str, kept: str) -> None:
    """As docs/sql.md says: integers of any size, repeated members and order are kept, spelling is DuckDB's."""
    line = odd(written).replace(b"{", b"{" + beside.encode(), 1)
    (tmp_path / "progress.jsonl").write_bytes(line)
    got = rows(tmp_path, "SELECT payload::VARCHAR, payload_text FROM events")
    wanted = None if kept == "NULL" else kept or written
    assert got == [(wanted, wanted)]


def test_unknown_members_and_odd_types_keep_their_value_as_text(odd_run: Path) -> None:
    """What no column is made for is in `extra`; a value of another type is its JSON."""
    found = rows(odd_run, "SELECT category, attempt, extra FROM events WHERE extra IS NOT NULL OR category IS NOT NULL")
    assert ("[1]", None, None) in found
    assert any(json.loads(extra or "{}") == {"unheard_of": {"of": True}, "seq": 7} for _, _, extra in found)


def test_a_line_of_64_mebibytes_arrives(tmp_path: Path) -> None:
    """Far beyond what DuckDB's own reader takes."""
    (tmp_path / "progress.jsonl").write_bytes(odd('{"error":"' + "x" * (64 << 20) + '"}') + odd("{}"))
    assert rows(tmp_path, "SELECT length(payload_text), length(payload->>'error') FROM events ORDER BY seq") == [
        (12 + (64 << 20), 64 << 20),
        (2, None),
    ]


def test_bad_directories_are_named_and_all_others_answered(tmp_path: Path) -> None:
    """Broken, unreadable, looping, oddly named: none of them stops the rest."""
    root = tmp_path / "runs"
    for name in ("good", "run_id=x", "space ' \" [a]*?{b}", "new\nline"):
        shutil.copytree(ROOT / RUNS["r_ok"], root / name)
    shutil.copytree(ROOT / RUNS["r_ok"], root / os.fsdecode(b"not-\xff-utf8"))
    (root / "loop").symlink_to(root)
    (root / "folder" / "progress.jsonl").mkdir(parents=True)
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe" / "progress.jsonl")
    (root / "broken").mkdir()
    (root / "broken" / "run_info.json").write_bytes(b"\0" * 100)
    (root / "empty").mkdir()
    (root / "empty" / "progress.jsonl").touch()
    for choice in (MEMORY, CatalogChoice(), CatalogChoice()):
        problems: list[str] = []
        counts = dict(rows(root, "SELECT run_key, events FROM runs", choice, problems))
        assert {key: n for key, n in counts.items() if n} == dict.fromkeys(
            ("good", "run_id=x", "space ' \" [a]*?{b}", "new\nline", "not-\\xff-utf8"), 65
        )
        assert counts["empty"] == counts["pipe"] == counts["folder"] == counts["broken"] == 0
        told = "\n".join(problems)
        for name in ("loop", "pipe", "folder", "broken"):
            assert f"{root}/{name}" in told
        assert "good" not in told
    assert rows(root, "SELECT DISTINCT run_id FROM events") == [("r_ok",)]
    codes = rows(root, "SELECT run_key, code FROM damage ORDER BY ALL")
    assert codes == [(name, "unreadable_file") for name in ("broken", "folder", "pipe")]


def test_a_missing_path_is_an_input_error(tmp_path: Path) -> None:
    """In words, not a traceback of DuckDB; a folder without runs, too."""
    with pytest.raises(InputError, match="no such folder"):
        connect(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no run directory"):
        connect(tmp_path)


def test_several_paths_have_keys_from_what_they_have_in_common(tmp_path: Path) -> None:
    """Run ids are not unique, keys are."""
    connection = connect(ROOT / "k3", ROOT / "small-easy")
    got = connection.execute("SELECT run_key, run_id FROM runs ORDER BY ALL").fetchall()
    connection.close()
    assert got == [(f"{group}/20261129_143950", "20261129_143950") for group in ("k3", "small-easy")]


def test_a_run_that_died_has_the_phase_it_died_in() -> None:
    """And what was in flight when the writer went: it ended with the run's last event."""
    sql = (
        "SELECT task_id, phase, ended_at = last_event_at, ended_by FROM phases JOIN runs USING (run_key)"
        " WHERE ended_by = 'died' AND run_key LIKE '%kill_mid'"
    )
    got = rows(ROOT, sql)
    assert ("arith-009", "retry_wait", True, "died") in got
    assert {ended_by for _, _, _, ended_by in got} == {"died"}
    life = rows(ROOT, "SELECT life, stored_status FROM runs WHERE run_key LIKE '%kill_mid'")
    assert life == [("silent", None)]


def test_results_issues_metrics_params_logs_and_artifacts_come_from_the_run_directory() -> None:
    """One row for each result.json, issue and log message that is there."""
    files = sorted(ROOT.rglob("result.json"))
    direct = [file for file in files if file.parent.name.startswith("attempt-")]
    assert rows(ROOT, "SELECT count(*) FROM results") == [(len(direct),)]
    issues = sum(len(json.loads(file.read_bytes())["issues"]) for file in direct)
    assert rows(ROOT, "SELECT count(*), (SELECT sum(issues) FROM results) FROM issues") == [(issues, issues)]
    stored = json.loads((ROOT / RUNS["r_retry"] / "metrics.json").read_bytes())
    of_retry = "run_key LIKE '%/r_retry'"
    run = rows(ROOT, f"SELECT metric, reducer, value FROM metrics WHERE scope = 'run' AND {of_retry} ORDER BY ALL")
    assert run == sorted((s["metric_id"], s["reducer"], s["value"]) for s in stored["series"])
    assert rows(ROOT, f"SELECT value FROM params WHERE name = 'execution.attempts.k' AND {of_retry}") == [("2",)]
    log = rows(ROOT, f"SELECT logged_at::VARCHAR, level, task_id FROM logs WHERE {of_retry} AND line = 7")
    assert log == [("2026-11-29 14:31:16", "DEBUG", "arith-000")]
    assert rows(ROOT, "SELECT count(*) FROM artifacts WHERE kind = 'retries' AND run_key LIKE '%/p_429'")[0][0] > 0


def test_plans_of_reused_tasks_come_from_the_stored_file() -> None:
    """The stream of a resumed run has no event for them."""
    got = rows(ROOT, "SELECT source, count(*) FROM plans WHERE run_key LIKE '%/r_resumed' GROUP BY ALL ORDER BY ALL")
    stored = json.loads((ROOT / RUNS["r_resumed"] / "run_info.json").read_bytes())["resolved_execution_plans"]
    assert sum(count for _, count in got) == sum(len(entry["attempts"]) for entry in stored.values())
    assert dict(got)["run_info"] > 0
    modes = "network_policy->>'network_mode', verifier_network_policy->>'network_mode'"
    policies = rows(ROOT, f"SELECT DISTINCT {modes} FROM plans")
    assert policies == [("public", "public")]


def test_both_spellings_of_policies_land_in_one_column(tmp_path: Path) -> None:
    """The specification and AgentCompass 1.0.1 name them differently."""
    plans = [
        {"environment": {"id": "e", "network_policy": {"m": 1}}, "verifier_network_policy": {"v": 1}},
        {"environment": {"id": "e", "baseline_network_policy": {"m": 1}}, "evaluation_network_policy": {"v": 1}},
    ]
    event = '"execution_plan_resolved"'
    lines = [odd(json.dumps(plan), event=event, attempt=str(n)) for n, plan in enumerate(plans, 1)]
    (tmp_path / "progress.jsonl").write_bytes(b"".join(lines))
    got = rows(tmp_path, "SELECT DISTINCT network_policy->>'m', verifier_network_policy->>'v', environment FROM plans")
    assert got == [("1", "1", "e")]


def test_a_log_that_passes_midnight_is_dated_on(tmp_path: Path) -> None:
    """A time of day gets the date of the run's start, and the next day's after midnight; continuation lines stay."""
    (tmp_path / "run_info.json").write_text('{"started_at": "2026-03-01T23:59:50+02:00"}')
    log = "23:59:51 INFO     a.b     one\nTraceback\n  x\n00:00:03 ERROR    a.b     two | task=t 1 | x=1\n"
    (tmp_path / "run.log").write_text(log)
    got = rows(tmp_path, "SELECT logged_at::VARCHAR, level, message, task_id FROM logs ORDER BY line")
    assert got == [
        ("2026-03-01 21:59:51", "INFO", "one\nTraceback\n  x", None),
        ("2026-03-01 22:00:03", "ERROR", "two | task=t 1 | x=1", None),
    ]


def test_nan_metrics_are_numbers_and_their_text_is_kept(tmp_path: Path) -> None:
    """A judge that gave NaN is found by isnan(value)."""
    folder = tmp_path / "details" / "normal" / "t--0" / "attempt-1"
    folder.mkdir(parents=True)
    (tmp_path / "run_info.json").write_text("{}")
    (folder / "result.json").write_text('{"metrics": {"score": NaN, "inner": {"x": 1e999}, "ok": true}, "issues": "?"}')
    got = rows(tmp_path, "SELECT metric, value::VARCHAR, raw FROM metrics ORDER BY metric")
    assert got == [("inner.x", "inf", "Infinity"), ("ok", "1.0", "true"), ("score", "nan", "NaN")]
    assert rows(tmp_path, "SELECT count(*) FROM metrics WHERE isnan(value)") == [(1,)]


# -- one bad value, one wrong join


def reusing(folder: Path, run_id: str, source: str | None, path: str | None = None) -> None:
    """A run that failed before its first event, and what it says of its source."""
    folder.mkdir(parents=True)
    reused = {} if source is None else {"reused_from": {"run_id": source, "path": path}}
    members = {"schema_version": "agentcompass.run_info.v3", "run_id": run_id, "status": "failed", **reused}
    (folder / "run_info.json").write_text(json.dumps(members))


def lineage(root: Path) -> list[Any]:
    return rows(root, questions.question("lineage").sql, MEMORY)


def test_a_source_is_found_by_its_whole_name(tmp_path: Path) -> None:
    """`mid` is no source of a run that reused `r_kill_mid`, wherever it stands."""
    for name in ("mid", "kill_mid", "r_kill_mid"):
        reusing(tmp_path / name, name, None)
    reusing(tmp_path / "r_new", "r_new", "r_kill_mid", "/elsewhere/results/r_kill_mid")
    assert lineage(tmp_path) == [("r_new", 1, "r_kill_mid", False)]


def test_a_source_that_is_elsewhere_keeps_its_row(tmp_path: Path) -> None:
    reusing(tmp_path / "g" / "r_old", "r_old", "r_gone", "/elsewhere/g/r_gone")
    reusing(tmp_path / "g" / "r_new", "r_new", "r_old", "/elsewhere/g/r_old")
    assert lineage(tmp_path) == [
        ("g/r_new", 1, "g/r_old", False),
        ("g/r_new", 2, None, None),
        ("g/r_old", 1, None, None),
    ]


def test_of_two_runs_with_one_id_the_recorded_one_is_the_source(tmp_path: Path) -> None:
    """By its path, then beside the run, then by its whole key; a folder of the same name with another id is none."""
    for group in ("a", "b"):
        reusing(tmp_path / group / "r_same", "r_same", None)
    reusing(tmp_path / "a" / "r_exact", "r_exact", "r_same", str(tmp_path / "b" / "r_same"))
    reusing(tmp_path / "a" / "r_moved", "r_moved", "r_same", "/elsewhere/a/r_same")
    reusing(tmp_path / "c" / "r_far", "r_far", "r_same", "/elsewhere/b/r_same")
    reusing(tmp_path / "c" / "r_another", "r_another", "r_other", "/elsewhere/c/r_far")
    assert lineage(tmp_path) == [
        ("a/r_exact", 1, "b/r_same", False),
        ("a/r_moved", 1, "a/r_same", False),
        ("c/r_another", 1, None, None),
        ("c/r_far", 1, "b/r_same", False),
    ]


BEYOND = ["9223372036854775808", "18446744073709551615", "1" + "0" * 40, "-9223372036854775809", "1e300"]


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("catalog", [MEMORY, CatalogChoice()])
def test_a_number_that_no_column_holds_is_null_and_named(number: str, catalog: CatalogChoice, tmp_path: Path) -> None:
    """All other runs are answered, the payload is exact, and a count or attempt of other size is what it was."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    shutil.copytree(ROOT / RUNS["r_ok"], good)
    shutil.copytree(ROOT / RUNS["r_ok"], bad)
    stream = bad / "progress.jsonl"
    text = re.sub(r'"total_tasks":\s*\d+', f'"total_tasks": {number}', stream.read_text(), count=1)
    if "e" not in number:
        text = re.sub(r'"attempt":\s*1', f'"attempt": {number}', text, count=1)
    stream.write_text(text)
    problems: list[str] = []
    got = dict(rows(tmp_path, "SELECT run_key, total_tasks FROM runs", catalog, problems))
    assert got == {"good": 4, "bad": None}
    told = "\n".join(problems)
    assert "bad: " in told and "total_tasks" in told and "outside the range" in told and "good" not in told
    payload = "SELECT payload_text FROM events WHERE run_key = 'bad' AND event = 'tasks_loaded'"
    assert number.removesuffix("e300") in rows(tmp_path, payload, catalog)[0][0]
    codes = rows(tmp_path, "SELECT DISTINCT run_key, code, severity FROM damage", catalog)
    assert codes == [("bad", "out_of_range", "warning")]
    if "e" not in number:
        assert "attempt of" in told or "attempt is" in told


def test_a_time_that_no_column_holds_is_null_and_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / RUNS["r_ok"], tmp_path / "run")
    stream = tmp_path / "run" / "progress.jsonl"
    stream.write_text(re.sub(r'"timestamp":\s*[\d.]+', '"timestamp": 1e300', stream.read_text(), count=1))
    problems: list[str] = []
    assert rows(tmp_path, "SELECT count(*) - count(timestamp) FROM events", MEMORY, problems) == [(1,)]
    assert "timestamp is outside the range" in problems[0]


def test_source_says_whose_recorder_began_the_stream(tmp_path: Path) -> None:
    """In every view that has no other column of this name."""
    shutil.copytree(ROOT / RUNS["r_retry"], tmp_path / "theirs")
    with RunRecorder.create(tmp_path / "ours", request=REQUEST) as run:
        run.append(TasksLoaded(payload=TasksLoadedPayload(total_tasks=0)))
        run.finish("completed")
    expected = [("ours", "compass_es"), ("theirs", "agentcompass")]
    assert rows(tmp_path, "SELECT run_key, source FROM runs ORDER BY ALL") == expected
    assert rows(tmp_path, "SELECT DISTINCT run_key, source FROM events ORDER BY ALL") == expected
    for view in set(describe_views()) - {"runs", "events", "plans", "params"}:
        assert set(rows(tmp_path, f"SELECT DISTINCT run_key, source FROM {view}")) <= set(expected), view
