"""`compass-es query`: right answers in every format, clear errors, and no way out for the SQL of a stranger."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventstore.history.sql import questions
from eventstore.history.sql.access import CatalogChoice, describe_views, open_history
from tests.tools import interrupting
from tests.tools.recorded import ROOT, RUNS

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Catalogs of tests don't land in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def query(*words: object, stdin: str | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cli.main import main; main()", "query", *map(str, words)]
    return subprocess.run(command, cwd=PROJECT, input=stdin, capture_output=True, text=True, timeout=120, **more)


def answer(*words: object) -> Any:
    done = query(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COUNTS = "SELECT run_key, status, events FROM runs WHERE run_key LIKE 'k3%' OR run_key LIKE '%r_ok' ORDER BY run_key"
ROWS = [
    {"run_key": "k3/20261129_143950", "status": "completed", "events": 80},
    {"run_key": RUNS["r_ok"], "status": "completed", "events": 65},
]


def test_json_is_an_array_of_row_objects() -> None:
    """One document on stdout, nothing else; an empty answer is an empty array."""
    assert answer(COUNTS, ROOT) == ROWS
    assert answer("SELECT 1 AS one WHERE false", ROOT) == []
    assert answer("SELECT 1 AS a, 2 AS a", ROOT) == [{"a": 1, "a:1": 2}]


def test_other_formats_hold_the_same_rows(tmp_path: Path) -> None:
    """jsonl, csv, markdown, table, parquet; to stdout or to a file."""
    lines = query(COUNTS, ROOT, "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == ROWS
    table = list(csv.reader(io.StringIO(query(COUNTS, ROOT, "--format", "csv").stdout)))
    assert table == [["run_key", "status", "events"], *([r["run_key"], r["status"], str(r["events"])] for r in ROWS)]
    markdown = query(COUNTS, ROOT, "--format", "markdown").stdout.splitlines()
    first = f"| {ROWS[0]['run_key']} | completed | 80 |"
    assert markdown[:3] == ["| run_key | status | events |", "| --- | --- | ---: |", first]
    plain = query(COUNTS, ROOT).stdout
    assert [line.split() for line in plain.splitlines()[2:]] == [[str(value) for value in r.values()] for r in ROWS]
    file = tmp_path / "rows.parquet"
    assert query(COUNTS, ROOT, "--format", "parquet", "-o", file).returncode == 0
    import duckdb

    assert duckdb.sql(f"SELECT * FROM '{file}'").fetchall() == [tuple(row.values()) for row in ROWS]
    assert query(COUNTS, ROOT, "--format", "csv", "-o", tmp_path / "rows.csv").stdout == ""
    assert list(csv.reader((tmp_path / "rows.csv").open())) == table
    assert query(COUNTS, ROOT, "--format", "parquet").returncode == 2


def test_odd_values_have_a_form_in_json_and_parquet(tmp_path: Path) -> None:
    """NaN is null, 40-digit numbers stay numbers, JSON columns are what they hold, moments ISO 8601."""
    sql = (
        "SELECT 'nan'::DOUBLE AS n, 10::HUGEINT ** 30 AS h, TIMESTAMP '2026-01-02 03:04:05.5' AS t,"
        " DATE '2026-01-02' AS d, INTERVAL 90 SECONDS AS i, [1, NULL] AS l, {'a': 'x'} AS s,"
        " '\\x01'::BLOB AS b, 1.50::DECIMAL(9,2) AS e,"
        """ '{"a": [1]}'::JSON AS j, '{"a": NaN}'::JSON AS k, NULL AS z"""
    )
    (row,) = answer(sql, ROOT)
    assert row == {
        "n": None,
        "h": 1e30,
        "t": "2026-01-02T03:04:05.500000",
        "d": "2026-01-02",
        "i": 90.0,
        "l": [1, None],
        "s": {"a": "x"},
        "b": "01",
        "e": 1.5,
        "j": {"a": [1]},
        "k": '{"a": NaN}',
        "z": None,
    }
    file = tmp_path / "odd.parquet"
    assert query(sql, ROOT, "--format", "parquet", "-o", file).returncode == 0
    import duckdb

    got = duckdb.execute(f"SELECT isnan(n), t::VARCHAR, d::VARCHAR, e FROM '{file}'").fetchone()
    assert got is not None and got[:3] == (True, "2026-01-02 03:04:05.5", "2026-01-02") and float(got[3]) == 1.5


def test_sql_comes_from_an_argument_a_file_or_stdin(tmp_path: Path) -> None:
    """And parameters are named, and text."""
    file = tmp_path / "q.sql"
    file.write_text("SELECT count(*) AS n FROM runs WHERE model = $model\n")
    assert json.loads(query("--file", file, ROOT, "--param", "model=toy-13b", "--json").stdout) == [{"n": 2}]
    assert json.loads(query("-", ROOT, "--json", stdin="SELECT 1 AS n").stdout) == [{"n": 1}]
    missing = query("SELECT $x", ROOT)
    assert missing.returncode == 2 and "the parameter x has no value" in missing.stderr
    assert query("SELECT 1", ROOT, "--param", "y=1").returncode == 2
    assert query("SELECT 1", ROOT, "--param", "y").returncode == 2
    assert query("--file", tmp_path / "none.sql", ROOT).returncode == 3
    assert query().returncode == 2


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM evnts", ["line 1, column 15", '"events"']),
        ("SELECT run_id,\n  rnu_key FROM runs", ["line 2, column 3", '"run_key"']),
        ("SELEC 1 + 1", ["line 1, column 1"]),
        ("SELECT 1; SELECT 2", ["one statement at a time"]),
        ("", ["there is no SQL"]),
        ("/* nothing */", ["there is no SQL"]),
        ("DELETE FROM lives", ["only a statement that reads", "DELETE"]),
        ("SELECT CAST('x' AS INTEGER)", ["x"]),
        ("SELECT nosuchfunction(1)", ["line 1, column 8"]),
    ],
)
def test_an_error_names_the_place_and_the_nearest_name(sql: str, words: list[str]) -> None:
    """One sentence, exit code 2, no traceback, nothing on stdout; as JSON on request."""
    done = query(sql, ROOT)
    assert done.returncode == 2 and done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
    told = query(sql, ROOT, "--json")
    assert json.loads(told.stdout)["error"]["kind"] == "query" and told.returncode == 2


def test_exit_codes_of_paths(tmp_path: Path) -> None:
    """A missing path can't be read, and a folder without runs is no history."""
    assert query("SELECT 1", tmp_path / "nowhere").returncode == 3
    assert json.loads(query("SELECT 1", tmp_path / "nowhere", "--json").stdout)["error"]["kind"] == "unreadable"
    nothing = query("SELECT count(*) AS n FROM runs", tmp_path)
    assert nothing.returncode == 3 and "no run directory at or below it" in nothing.stderr and not nothing.stdout


def test_bad_runs_are_named_on_stderr_and_the_rest_answered(tmp_path: Path) -> None:
    """Data on stdout stays data."""
    shutil.copytree(ROOT / RUNS["r_ok"], tmp_path / "good")
    (tmp_path / "bad" / "progress.jsonl").mkdir(parents=True)
    done = query("SELECT sum(events) AS n FROM runs", tmp_path, "--json")
    assert json.loads(done.stdout) == [{"n": 65}]
    assert str(tmp_path / "bad") in done.stderr and "good" not in done.stderr


def test_text_from_records_reaches_a_table_without_control_characters(tmp_path: Path) -> None:
    """Escape codes, bidirectional marks, newlines: visible, and only in data."""
    evil = "\x1b[31mred\x07\u202e\nnext"
    line = {"run_id": "r", "event": "task_started", "timestamp": 1, "task_id": evil, "payload": {}}
    (tmp_path / "progress.jsonl").write_text(json.dumps(line) + "\n")
    for form in ("table", "markdown", "json", "jsonl"):
        out = query("SELECT task_id, run_id FROM events", tmp_path, "--format", form).stdout
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", out), form
    assert answer("SELECT task_id FROM events", tmp_path) == [{"task_id": evil}]
    bad = query(f'SELECT * FROM "{evil}"', tmp_path)
    assert "\x1b" not in bad.stderr


# -- safety


def attacks(target: Path, secret: Path) -> list[str]:
    return [
        f"COPY (SELECT 1) TO '{target}'",
        f"WITH a AS (COPY (SELECT 1) TO '{target}') SELECT * FROM a",
        f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{target}'",
        "SELECT * FROM json_execute_serialized_sql("
        f"json_serialize_sql($q$WITH a AS (COPY (SELECT 1) TO '{target}') FROM a$q$))",
        f"EXPORT DATABASE '{target}'",
        f"ATTACH '{target}' AS x",
        f"CREATE TABLE x AS SELECT 1; COPY x TO '{target}'",
        "WITH a AS (INSERT INTO lives VALUES (1, 2, 3) RETURNING *) SELECT * FROM a",
        "WITH a AS (DELETE FROM store.main.runs RETURNING *) SELECT * FROM a",
        "UPDATE store.main.runs SET status = 'completed'",
        "DROP VIEW runs",
        "CREATE OR REPLACE VIEW runs AS SELECT 1",
        "CREATE MACRO f() AS 1",
        f"SELECT * FROM read_text('{secret}')",
        f"SELECT * FROM read_blob('{secret}')",
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM read_ndjson('{secret}')",
        f"SELECT * FROM '{secret}'",
        f"FROM glob('{secret.parent}/*')",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM 'https://example.org/x.parquet'",
        "SELECT * FROM sqlite_scan('x', 'y')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "RESET enable_external_access",
        "SET lock_configuration = false",
        "SET memory_limit = '100GB'",
        "PRAGMA enable_profiling",
        f"SELECT * FROM enable_logging('QueryLog', storage='file', storage_path='{target}')",
        "SELECT getenv('HOME')",
        "CREATE SECRET s (TYPE s3)",
        "CALL pragma_version()",
        "SELECT * FROM query('DROP VIEW runs')",
        "BEGIN",
        "CHECKPOINT",
        "DETACH store",
        "USE store",
        "UPDATE EXTENSIONS",
        "VACUUM",
    ]


def test_the_sql_of_a_stranger_can_neither_read_nor_write_nor_change_anything(tmp_path: Path) -> None:
    """Each attack is refused in words, nothing appears on disk, and the connection answers as before."""
    secret = tmp_path / "secret" / "secret.csv"
    secret.parent.mkdir()
    secret.write_text("hidden-value\n")
    target = tmp_path / "written"
    connection = open_history([ROOT], catalog=CatalogChoice())
    from eventstore.errors import QueryError
    from eventstore.history.sql.ask import ask

    before = connection.execute("SELECT count(*), min(status) FROM runs").fetchall()
    for sql in attacks(target, secret):
        try:
            rows = list(ask(connection, sql, {}).rows)
        except QueryError as error:
            assert "hidden-value" not in error.message
        else:
            assert rows in ([], [(None,)], [("",)]), sql
        assert not target.exists() and sorted(tmp_path.iterdir()) == [secret.parent], sql
    assert connection.execute("SELECT count(*), min(status) FROM runs").fetchall() == before
    connection.close()


@pytest.mark.parametrize("number", [1, 3, 13, 17, 24])
def test_attacks_through_the_command_are_refused(tmp_path: Path, number: int) -> None:
    """The same from outside: exit code 2, nothing written."""
    secret = tmp_path / "secret.csv"
    secret.write_text("hidden-value\n")
    done = query(attacks(tmp_path / "written", secret)[number], ROOT)
    assert done.returncode == 2 and done.stdout == "" and "hidden-value" not in done.stderr
    assert sorted(tmp_path.iterdir()) == [secret]


def test_trusted_sql_may_write_and_says_so(tmp_path: Path) -> None:
    """It is the user's own, asked for in words."""
    done = query(f"COPY (SELECT run_key FROM runs) TO '{tmp_path}/runs.csv'", ROOT, "--trusted")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs.csv").read_text().count("\n") == len(RUNS) + 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(10000000000000) a, range(1000) b",
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
        "SELECT sleep_ms(60000)",
    ],
)
def test_a_query_that_takes_too_long_is_ended(sql: str) -> None:
    """Whether DuckDB sees its own limit or not."""
    done = query(sql, ROOT, "--timeout", "1")
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT length(repeat('x', 4000000000))",
        "SELECT list(a) FROM range(2000000000) t(a)",
        "SELECT count(*) FROM (SELECT DISTINCT a || repeat('y', 2000) FROM range(100000000) t(a))",
    ],
)
def test_a_query_that_needs_too_much_memory_is_ended(sql: str) -> None:
    """By DuckDB's limit, by the kernel's, or by the clock; never by taking the machine along."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = query(sql, ROOT, "--memory", "256MB", "--timeout", "5")
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
    assert max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) < 2 << 20


def test_ctrl_c_ends_a_query_at_once() -> None:
    """Exit code 130, and the process that ran the SQL is gone too."""
    import signal

    command = [sys.executable, "-c", "from cli.main import main; main()", "query", "SELECT sleep_ms(50000)", str(ROOT)]
    if "sleep_ms" not in query("SELECT sleep_ms(1)", ROOT).stdout:
        command[4] = "SELECT count(*) FROM range(10000000000000) a, range(1000) b"
    process = interrupting.start(command, cwd=PROJECT, stderr=subprocess.PIPE, start_new_session=True)
    interrupting.wait_until(process, lambda: bool(interrupting.children(process)))
    process.send_signal(signal.SIGINT)  # to the parent alone: it is the one that has to see to its child
    _, words = process.communicate(timeout=20)
    assert process.returncode == 130 and "interrupted" in words
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_closed_pipe_ends_quietly() -> None:
    """`| head` is no error."""
    program = f"{sys.executable} -c 'from cli.main import main; main()'"
    command = f"{program} query 'FROM events' '{ROOT}' --format jsonl | head -1"
    done = subprocess.run(command, shell=True, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and len(done.stdout.splitlines()) == 1


# -- canned questions

GIVEN = {
    "compare-runs": {"a": RUNS["r_retry"], "b": RUNS["r_retry2"]},
    "config-drift": {"reference": RUNS["r_retry"]},
    "tasks-at-moment": {"run": RUNS["r_ok"], "events": "30"},
    "task-evidence": {"run": RUNS["r_ok"], "task": "arith-000"},
    "error-messages": {"like": "%rate limit%", "limit": "2"},
    "in-flight-at-death": {"run": RUNS["r_kill_early"]},
    "slowest-phases": {"limit": "2"},
    "most-retried": {"limit": "2"},
    "new-issue-codes": {"since": "2026-11-29 14:31:40"},
    "near-timeouts": {"share": "0.5"},
}
ANSWERS = json.loads((Path(__file__).parents[1] / "data" / "questions.json").read_text())


def test_every_canned_question_has_a_recorded_answer_and_a_line_in_the_documents() -> None:
    """And none is recorded or documented that isn't there."""
    assert ANSWERS.keys() == set(questions.names())
    assert GIVEN.keys() <= ANSWERS.keys()
    text = (PROJECT / "docs" / "questions.md").read_text("utf-8")
    assert set(re.findall(r"^- \*\*`([\w-]+)`\*\*", text, flags=re.MULTILINE)) == ANSWERS.keys()


@pytest.fixture(scope="module")
def history() -> Any:
    connection = open_history([ROOT], catalog=CatalogChoice())
    yield connection
    connection.close()


@pytest.mark.parametrize("name", questions.names())
def test_a_canned_question_has_its_answer_on_the_recorded_runs(name: str, history: Any) -> None:
    """Looked through by hand once; it may not change unnoticed."""
    from cli.rows import plain_value
    from eventstore.history.sql.ask import ask

    asked = questions.question(name)
    assert asked.description.endswith("?") and set(GIVEN.get(name, {})) <= {p.name for p in asked.parameters}
    got = ask(history, asked.sql, questions.parameters(asked, GIVEN.get(name, {})))
    rows = [[plain_value(value) for value in row] for row in got.rows]
    if name == "task-evidence":  # the time of a file is that of the checkout
        rows = [row if row[1] in ("event", "log", "result") else [None, *row[1:]] for row in rows]
    assert {"columns": got.names, "rows": rows[:12], "count": len(rows)} == ANSWERS[name]


def test_a_canned_question_is_asked_by_its_name() -> None:
    """With parameters; a wrong name or parameter gets the nearest."""
    assert answer("slowest-phases", ROOT, "--param", "limit=1")[0]["phase"] == "save_evaluation_checkpoint"
    assert "slowest-phases" in query("slowest-phase", ROOT).stderr
    assert query("slowest-phases", ROOT, "--param", "limt=1").returncode == 2


def test_list_names_every_view_column_and_question() -> None:
    """What there is to ask of, and what has been asked before."""
    listed = json.loads(query("--list", "--json").stdout)
    assert listed["views"] == describe_views()
    assert [entry["name"] for entry in listed["questions"]] == questions.names()
    assert "slowest-phases" in query("--list").stdout


# -- documentation


def test_the_documentation_lists_exactly_the_columns_that_there_are() -> None:
    """docs/sql.md, view by view, in order."""
    text = (PROJECT / "docs" / "sql.md").read_text()
    documented: dict[str, list[str]] = {}
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        view = part.split("\n", 1)[0].strip("` ")
        documented[view] = re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE)
    assert documented == describe_views()


def test_explain_shows_a_plan_and_runs_nothing() -> None:
    """DuckDB's own."""
    done = query("SELECT event, sum(seq) FROM events GROUP BY event", ROOT, "--explain")
    assert done.returncode == 0 and "group by" in done.stdout.lower().replace("_", " ")
