"""`run.log`: the specification's layout, the right file, no secrets, no forged lines, and never a disturbance."""

import asyncio
import contextlib
import errno
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore.recording import run_log as runlog
from eventstore.recording.run_log import RunLog, run_log, short_logger_name
from eventstore.redaction.redactor import MASK

HEADER = re.compile(r"(\d\d:\d\d:\d\d) ([A-Z]+) +(.{36}) (.*)", re.DOTALL)
OWN = logging.getLogger("compass_es.test")
OTHER = logging.getLogger("somebody.else")


@pytest.fixture(autouse=True)
def logging_is_left_as_it_was() -> Iterator[None]:
    """Levels, handlers and filters after a test are those from before it."""
    loggers = [logging.getLogger(name) for name in ("", "compass_es", "agentcompass", "compass_es.test", "runtime")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    filters = {id(handler): list(handler.filters) for handler in logging.getLogger().handlers}
    yield
    assert [(logger.level, list(logger.handlers)) for logger in loggers] == before
    assert {id(handler): list(handler.filters) for handler in logging.getLogger().handlers} == filters


def read(path: Path) -> list[str]:
    return (path / "run.log" if path.is_dir() else path).read_text(encoding="utf-8").splitlines()


def messages(path: Path) -> list[str]:
    return [line[55:] for line in read(path)]


# --- layout ---


def test_a_line_has_the_layout_of_the_specification(tmp_path: Path) -> None:
    """HH:MM:SS, level in 8, name in 36, message."""
    with run_log(tmp_path):
        OWN.info("▶ Evaluation started | model=%s", "toy")
    (line,) = read(tmp_path)
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO     compass_es\.test {22}▶ Evaluation started \| model=toy", line)
    assert line.startswith(time.strftime("%H:"))


def test_recorded_lines_come_out_as_agentcompass_wrote_them(runs_root: Path, tmp_path: Path) -> None:
    """Every line of the recorded run logs, logged again by the same logger, has the same bytes."""
    recorded = [line for path in sorted(runs_root.rglob("run.log")) for line in read(path) if HEADER.fullmatch(line)]
    assert len(recorded) > 1000
    log = RunLog(tmp_path / "run.log")
    for line in recorded:
        clock, level, name, message = HEADER.fullmatch(line).groups()  # type: ignore[union-attr]
        record = logging.LogRecord(f"agentcompass.{name.strip()}", getattr(logging, level), "", 0, message, None, None)
        record.created = time.mktime(time.strptime(f"2026-11-29 {clock}", "%Y-%m-%d %H:%M:%S"))
        log.handle(record)
    log.close()
    assert read(tmp_path) == recorded


SHORT_NAMES = [  # what AgentCompass 1.0.1 makes of them
    ("a", "a                                   "),
    ("agentcompass", "agentcompass                        "),
    ("agentcompass.runtime.runner", "runtime.runner                      "),
    ("x" * 36, "x" * 36),
    ("x" * 37, "x" * 35 + "…"),
    ("a." + "b" * 40, "a." + "b" * 33 + "…"),
    ("head.mid.mid2.tail.last" + "x" * 20, "head…tail.lastxxxxxxxxxxxxxxxxxxxx"),
    ("agentcompass.benchmarks.gdpval_ac.gdpval_ac.evaluator.module", "benchmarks…evaluator.module"),
    ("a" * 30 + ".bbbbbbbb.cccccccccccc.dd", "a" * 30 + "…ccccc"),
    ("a.b.c." + "d" * 40, "a…c." + "d" * 32),
    ("x.y.zz" + "q" * 30 + ".ab.cd", "x…ab.cd"),
]


@pytest.mark.parametrize(("name", "short"), SHORT_NAMES)
def test_names_are_shortened_as_agentcompass_does(name: str, short: str) -> None:
    """Without its own prefix, padded or cut to 36."""
    assert short_logger_name(name) == short


def test_a_traceback_stands_below_its_message(tmp_path: Path) -> None:
    """As Python prints it, on lines of its own."""
    with run_log(tmp_path):
        try:
            raise FileNotFoundError("dataset archive is not readable")
        except FileNotFoundError:
            OWN.exception("✗ Request preparation failed")
        OWN.info("next")
    lines = read(tmp_path)
    assert lines[0].endswith("✗ Request preparation failed")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-2] == "FileNotFoundError: dataset archive is not readable"
    assert lines[-1].endswith("next")


# --- what is written ---


def test_debug_of_own_loggers_and_warnings_of_others_are_written(tmp_path: Path) -> None:
    """The default level is DEBUG, whatever level the process has; other libraries speak up from WARNING on."""
    with run_log(tmp_path):
        for name in ("compass_es.test", "agentcompass.runtime", "somebody.else", "agentcompass_fork"):
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
                logging.getLogger(name).log(level, "%s %d", name, level)
    written = messages(tmp_path)
    assert written[:8] == [
        f"{name} {n}" for name in ("compass_es.test", "agentcompass.runtime") for n in (10, 20, 30, 40)
    ]
    assert written[8:] == [f"{name} {n}" for name in ("somebody.else", "agentcompass_fork") for n in (30, 40)]


def test_the_level_can_be_raised_and_own_loggers_named(tmp_path: Path) -> None:
    """Level by name in any case, or by number; a harness of one's own is first party when it says so."""
    with run_log(tmp_path / "a.log", "info", ["my_eval"]):
        logging.getLogger("my_eval.x").debug("no")
        logging.getLogger("my_eval.x").info("yes")
        OWN.info("no")
    with run_log(tmp_path / "b.log", logging.ERROR):
        OTHER.warning("no")
        OWN.error("yes")
    assert messages(tmp_path / "a.log") == messages(tmp_path / "b.log") == ["yes"]
    with pytest.raises(ValueError, match="LOUD"):
        RunLog(tmp_path / "c.log", "loud")


def test_reopening_appends(tmp_path: Path) -> None:
    """Earlier messages stay; a line that a killed writer left unfinished is ended, not continued."""
    with run_log(tmp_path):
        OWN.info("first")
    with (tmp_path / "run.log").open("a") as file:
        file.write("10:00:00 INFO     half a li")
    with run_log(tmp_path):
        OWN.info("second")
    lines = read(tmp_path)
    assert [line[-6:] for line in lines] == [" first", " half a li"[-6:], "second"]


def test_the_file_exists_before_the_first_message(tmp_path: Path) -> None:
    """run.log is created when the run directory is reserved."""
    with run_log(tmp_path):
        assert (tmp_path / "run.log").read_bytes() == b""


def test_secrets_are_masked_in_messages_arguments_and_tracebacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By form, by name, and values of secret-looking environment variables."""
    monkeypatch.setenv("TOY_API_KEY", "geheim-wort-1")
    with run_log(tmp_path):
        OWN.info("call %s with %s", "https://user:hunter2@host/v1", {"Authorization": "Bearer hunter2"})
        OWN.info("the word is geheim-wort-1")
        try:
            raise RuntimeError("401 for api_key=hunter2")
        except RuntimeError:
            OWN.exception("failed")
        OWN.info("max_tokens=512 sha256=%s", "0123456789abcdef" * 4)
    text = (tmp_path / "run.log").read_text()
    assert "hunter2" not in text.replace('api_key=hunter2")', "")  # the traceback's source line is checked below
    assert "geheim-wort-1" not in text
    assert f"401 for api_key={MASK}" in text
    assert text.count(MASK) >= 5
    assert "max_tokens=512 sha256=" + "0123456789abcdef" * 4 in text


# --- hostile text ---

HOSTILE = [
    "x\n12:00:00 ERROR    runtime.runner                       forged",
    "x\r12:00:00 ERROR    forged",
    "x\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029y",
    "\x1b[2J\x1b]0;title\x07 \x9b31m \u202e reversed \u2066",
    "nul \x00 del \x7f bell \x07 back \x08",
    "lone \udcff surrogate \ud800",
    "%s %d {not} a format",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_forges_a_line_or_reaches_a_terminal_raw(text: str, tmp_path: Path) -> None:
    """One message, one line, without control characters: as message, argument, logger name and level name."""
    with run_log(tmp_path, own_loggers=["evil"]):
        logging.getLogger("evil").info("%s", text)
        logging.getLogger("evil").info(text)
        logging.getLogger(f"evil.{text}").info("name")
    raw = (tmp_path / "run.log").read_bytes().decode("utf-8")
    lines = raw.splitlines()
    assert len(lines) == 3
    assert all(re.match(r"\d\d:\d\d:\d\d INFO ", line) for line in lines)
    assert all(character.isprintable() or character == "\n" for character in raw)


def test_no_exception_forges_a_line(tmp_path: Path) -> None:
    """An exception's text may hold line breaks; a line that looks like a record's beginning is indented."""
    with run_log(tmp_path):
        try:
            raise RuntimeError("x\n12:00:00 ERROR    runtime.runner    forged\n\x1b[31mred")
        except RuntimeError:
            OWN.exception("failed")
    lines = read(tmp_path)
    assert len([line for line in lines if re.match(r"\d\d:\d\d:\d\d ", line)]) == 1
    assert "    12:00:00 ERROR    runtime.runner    forged" in lines
    assert "\\x1b[31mred" in lines


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_what_cannot_be_formatted_costs_its_text_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments and objects whose text raises: a line says so, and nothing is raised or printed."""
    with run_log(tmp_path):
        OWN.info("%d tasks", "many")
        OWN.info("two %s %s", "a")
        OWN.info("%s", Hostile())
        OWN.info("%(x)s", {"y": 1})
        OWN.info("fine")
    written = messages(tmp_path)
    assert written[0].startswith("'%d tasks' % ('many',)")
    assert "can't be formatted" in written[2]
    assert written[4] == "fine"
    assert capfd.readouterr().err == ""


def test_a_huge_message_is_cut_and_says_so(tmp_path: Path) -> None:
    """A log of a hundred megabytes helps nobody."""
    with run_log(tmp_path):
        OWN.info("a" * 3_000_000)
    (line,) = read(tmp_path)
    assert line.endswith(f"… ({3_000_000 - runlog.LONGEST_MESSAGE} more characters)")
    assert len(line) < runlog.LONGEST_MESSAGE + 200


# --- many runs at once ---


def test_concurrent_runs_write_to_their_own_files(tmp_path: Path) -> None:
    """asyncio tasks, and what they await or start, belong to the run in whose context they began."""

    async def child(number: int, step: int) -> None:
        await asyncio.sleep(0)
        OWN.debug("run %d child %d", number, step)

    async def run(number: int) -> None:
        with run_log(tmp_path / f"{number}.log"):
            for step in range(20):
                OWN.debug("run %d step %d", number, step)
                await asyncio.gather(child(number, step), asyncio.to_thread(OWN.info, "run %d thread %d", number, step))

    async def all_runs() -> None:
        await asyncio.gather(*(run(number) for number in range(10)))

    asyncio.run(all_runs())
    for number in range(10):
        written = messages(tmp_path / f"{number}.log")
        assert len(written) == 60
        assert {message.split()[1] for message in written} == {str(number)}


def test_threads_bind_their_run(tmp_path: Path) -> None:
    """Threads don't inherit a context; each line is whole, none is lost, none in the wrong file."""
    logs = [RunLog(tmp_path / f"{number}.log") for number in range(4)]

    def work(log: RunLog, worker: int) -> None:
        with log.bind():
            for step in range(200):
                OWN.debug("%s %d %d %s", log.path.name, worker, step, "x" * 200)

    threads = [threading.Thread(target=work, args=(log, worker)) for log in logs for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
        written = [message.split()[:3] for message in messages(log.path)]
        assert len(written) == 800
        assert {name for name, _, _ in written} == {log.path.name}
        for worker in range(4):  # in each caller's order
            assert [int(step) for _, of, step in written if of == str(worker)] == list(range(200))


def test_records_of_no_run_go_to_the_only_one_or_to_none(tmp_path: Path) -> None:
    """With one run open everything is its; with two, a record that says nothing of its run is in neither."""
    first = RunLog(tmp_path / "1.log")
    OWN.info("only one")
    second = RunLog(tmp_path / "2.log")
    OWN.info("whose?")
    with second.bind():
        with first.bind():
            OWN.info("inner")
        OWN.info("outer")
    first.close()
    OWN.info("only one again")
    with first.bind():
        OWN.info("a closed run's")
    second.close()
    OWN.info("none")
    assert messages(tmp_path / "1.log") == ["only one", "inner"]
    assert messages(tmp_path / "2.log") == ["outer", "only one again"]


# --- not disturbing ---


class Console(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


@contextlib.contextmanager
def root_handlers(*handlers: logging.Handler) -> Iterator[None]:
    """The root logger with these handlers alone, as in a process without pytest."""
    root = logging.getLogger()
    before, root.handlers[:] = list(root.handlers), handlers
    try:
        yield
    finally:
        root.handlers[:] = before


def test_other_handlers_see_what_they_saw_before(tmp_path: Path) -> None:
    """A console at the level of its logger is not flooded with the records that exist for run.log alone."""
    console = Console()
    with root_handlers(console):
        with run_log(tmp_path):
            OWN.debug("debug")
            OWN.info("info")
            OWN.warning("warning")
            OTHER.warning("other")
        assert messages(tmp_path) == ["debug", "info", "warning", "other"]
        assert console.seen == ["warning", "other"]
        assert console.filters == []
        OWN.info("afterwards")
        assert console.seen == ["warning", "other"]


def test_warnings_without_any_handler_still_reach_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python's handler of last resort goes on working."""
    with root_handlers(), run_log(tmp_path):
        OWN.info("info")
        OWN.warning("warning")
    assert capsys.readouterr().err == "warning\n"


def test_logging_set_up_anew_is_survived(tmp_path: Path) -> None:
    """Somebody removes all handlers: the next `bind` brings the log back."""
    with root_handlers(), run_log(tmp_path) as log:
        OWN.info("before")
        for handler in list(logging.getLogger().handlers):
            logging.getLogger().removeHandler(handler)
            handler.close()
        with log.bind():
            OWN.info("after")
    assert messages(tmp_path) == ["before", "after"]


def test_a_logger_that_does_not_propagate_is_heard(tmp_path: Path) -> None:
    """Some frameworks cut their loggers off from the root."""
    logger = logging.getLogger("cut_off")
    logger.propagate = False
    try:
        with run_log(tmp_path, own_loggers=["cut_off"]):
            logger.debug("heard")
        assert messages(tmp_path) == ["heard"]
        assert logger.handlers == []
    finally:
        logger.propagate = True


# --- trouble with the file ---


def lost_notices(path: Path) -> list[str]:
    return [message for message in messages(path) if "could not be written" in message]


def test_a_deleted_folder_costs_messages_and_one_warning(tmp_path: Path) -> None:
    """The evaluation goes on; once the folder is back, so is the log, and it says how much is missing."""
    folder, console = tmp_path / "run", Console()
    folder.mkdir()
    with root_handlers(console), run_log(folder) as log:
        OWN.info("one")
        shutil.rmtree(folder)
        for number in range(5):
            OWN.info("lost %d", number)
        assert log.lost == 5
        assert not folder.exists()
        folder.mkdir()
        OWN.info("two")
        OWN.info("three")
        assert log.lost == 5
    assert len(console.seen) == 1
    assert str(folder / "run.log") in console.seen[0]
    assert messages(folder) == ["5 messages before this one could not be written", "two", "three"]


def test_a_folder_that_never_was_costs_messages_and_one_warning(tmp_path: Path) -> None:
    """Opening never raises either."""
    console = Console()
    with root_handlers(console), run_log(tmp_path / "missing" / "run.log") as log:
        OWN.info("one")
        OWN.info("two")
    assert log.lost == 2
    assert len(console.seen) == 1


def test_a_full_disk_costs_messages_and_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that was cut short stays apart from the next one, and the loss is counted in the file."""
    console, real_write, space = Console(), os.write, [1_000_000]

    def write(file: int, data: bytes) -> int:
        if not space[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real_write(file, data[: space[0]])
        space[0] -= written
        return written

    monkeypatch.setattr(runlog.os, "write", write)
    with root_handlers(console), run_log(tmp_path) as log:
        OWN.info("one")
        space[0] = 70
        OWN.info("cut %s", "x" * 100)
        OWN.info("lost")
        space[0] = 1_000_000
        OWN.info("two")
    lines = read(tmp_path)
    assert log.lost == 2
    assert len(console.seen) == 1
    assert len(lines[1]) == 70
    assert [line[55:] for line in lines[2:]] == ["2 messages before this one could not be written", "two"]


@pytest.mark.parametrize("kind", ["fifo", "symlink", "folder"])
def test_only_a_regular_file_is_written(kind: str, tmp_path: Path) -> None:
    """A pipe would block for ever, a link could lead anywhere."""
    target, console = tmp_path / "run.log", Console()
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "symlink":
        target.symlink_to(tmp_path / "elsewhere")
    else:
        (target / "run.log").mkdir(parents=True)
    with root_handlers(console), run_log(target) as log:
        OWN.info("x")
    assert log.lost == 1
    assert len(console.seen) == 1
    assert not (tmp_path / "elsewhere").exists()


def test_messages_after_closing_are_ignored(tmp_path: Path) -> None:
    """A task that outlives its run neither fails nor reopens the file; closing twice is fine."""
    log = RunLog(tmp_path)
    with log.bind():
        OWN.info("in time")
        log.close()
        OWN.info("late")
        log.emit(logging.makeLogRecord({"msg": "later", "levelno": 20, "levelname": "INFO", "name": "compass_es"}))
    log.close()
    assert messages(tmp_path) == ["in time"]
    assert log.lost == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_whole_lines(tmp_path: Path) -> None:
    """Worker processes may log on; lines are appended in one piece."""
    with run_log(tmp_path):
        children = []
        for worker in range(3):
            child = os.fork()
            if child == 0:
                for step in range(100):
                    OWN.debug("worker %d step %d %s", worker, step, "x" * 500)
                os._exit(0)
            children.append(child)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
    written = messages(tmp_path)
    assert len(written) == 300
    assert all(re.fullmatch(r"worker \d step \d+ x{500}", message) for message in written)


def test_importing_the_handler_changes_nothing() -> None:
    """No handler and no level before a run log is opened."""
    assert "eventstore.recording.log_routing" in sys.modules
    router = sys.modules["eventstore.recording.log_routing"]._router
    assert router not in logging.getLogger().handlers
