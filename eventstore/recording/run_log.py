"""`run.log`: what a run's components tell through the standard `logging` module, in the specification's layout.

    HH:MM:SS LEVEL    logger-name                          message

Local time, the level padded to 8, the logger's name to 36 (shortened as AgentCompass 1.0.1 does, without its leading
`agentcompass.`), a traceback on lines of its own below. Records of the own loggers are written from `level` on (DEBUG
unless told otherwise), those of everybody else from WARNING on. The file is appended to, one write for each record.

Text is redacted. A message takes one line whatever it holds: line breaks and control characters are written as escapes,
and a traceback's line that looks like the beginning of a record is indented. So no text can pretend to be a record.

Logging never disturbs the evaluation: a full disk, a deleted folder, a message that can't be formatted cost the message
and, once, a warning; how many were lost is written as soon as writing works again.

    with run_log(run_dir):
        ...
"""

import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from eventstore.redaction.redactor import Redactor, secret_environment_values

from .log_routing import bound_to, close_route, open_route

OWN_LOGGERS = ("agentcompass", "compass_es", "eventstore", "projections", "runtime")
"""Loggers (with all below them) whose records count from the file's level on; others count from WARNING on."""

LONGEST_MESSAGE = 1 << 20
"""Characters of one message or traceback; what goes beyond is left out, and counted."""

_NAME_WIDTH = 36
_SHORTENED = "agentcompass."
_HEADER = re.compile(r"\d\d:\d\d:\d\d ")
_warnings = logging.getLogger("compass_es.run_log")


def _escapes() -> dict[int, str]:
    """C0 and C1 controls but the tab, line and paragraph separators, and marks that reorder what a terminal shows."""
    hidden = [*range(9), *range(10, 32), *range(127, 160), 0x061C, 0x200E, 0x200F, 0x2028, 0x2029]
    hidden += [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    escapes = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in hidden}
    return escapes | {ord("\n"): "\\n", ord("\r"): "\\r"}


_ESCAPES = _escapes()


@contextmanager
def run_log(
    path: str | os.PathLike[str],
    level: int | str = "DEBUG",
    own_loggers: Sequence[str] = OWN_LOGGERS,
    secrets: Sequence[str] | None = None,
) -> Iterator["RunLog"]:
    """Write what is logged meanwhile, in this context and the tasks it starts, to `path`; see `RunLog`."""
    log = RunLog(path, level, own_loggers, secrets)
    try:
        with log.bind():
            yield log
    finally:
        log.close()


class RunLog(logging.Handler):
    """One run's `run.log`, open for appending until `close`.

    `path` is the file, or an existing folder in which it is called `run.log`. `secrets` are masked wherever they stand
    (default: the values of secret-looking environment variables). With one open run, everything that the process logs
    goes to its file; with several, each record goes to the run that is bound (`bind`) in the context that logs it, and
    records of no run to none. Threads don't inherit a context: bind in the thread's function.

    Raises ValueError for an unknown level, and nothing else, ever: `lost` counts messages that could not be written.
    Set up other logging before (`logging.basicConfig` does nothing once a handler exists).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        level: int | str = "DEBUG",
        own_loggers: Sequence[str] = OWN_LOGGERS,
        secrets: Sequence[str] | None = None,
    ) -> None:
        super().__init__(level.upper() if isinstance(level, str) else level)
        folder = Path(path)
        self.path = folder / "run.log" if folder.is_dir() else folder
        self.own_loggers = tuple(own_loggers)
        self.lost = 0
        self._redact = Redactor(secret_environment_values(os.environ) if secrets is None else secrets).text
        self._file: int | None = None
        self._unreported = 0
        self._torn = False
        self._warned = False
        self._closed = False
        self._write(b"")  # the file exists from now on
        open_route(self)

    def bind(self) -> AbstractContextManager[None]:
        """Send what this context logs, and every task started in it, to this file: `with log.bind():`."""
        return bound_to(self)

    def handle(self, record: logging.LogRecord) -> bool:
        # Not the base class's, which holds the lock while formatting; here it is held for the write alone.
        accepted = self._is_wanted(record) and bool(self.filter(record))
        if accepted:
            self.emit(record)
        return accepted

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record. Never raises."""
        try:
            text = self._render(record)
        except Exception as error:  # a message's own __str__ or __repr__ may raise anything
            text = self._line(record, f"(a message that can't be formatted: {type(error).__name__})")
        self._write(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the file; records that come later are ignored."""
        close_route(self)
        self.acquire()
        try:
            self._closed = True
            self._close_file()
        finally:
            self.release()
        super().close()

    # --- what a record looks like ---

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        if record.name == _warnings.name:
            return False  # about this file, and written to it as a count
        if record.levelno >= logging.WARNING:
            return True
        return any(record.name == own or record.name.startswith(own + ".") for own in self.own_loggers)

    def _render(self, record: logging.LogRecord) -> str:
        text = self._line(record, _shortened(_message(record)))
        details = record.exc_text or (_traceback(record) if record.exc_info else "")
        for block in (details, record.stack_info or ""):
            if block:
                text += self._block(_shortened(block))
        return text

    def _line(self, record: logging.LogRecord, message: str) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        # Redacted first: a line break may be part of what makes a secret one.
        line = f"{record.levelname:<8} {short_logger_name(record.name)} {self._redact(message)}"
        return f"{clock} {line.translate(_ESCAPES)}\n"

    def _block(self, text: str) -> str:
        lines = [line.translate(_ESCAPES) for line in self._redact(text).rstrip("\n").split("\n")]
        return "".join(f"    {line}\n" if _HEADER.match(line) else f"{line}\n" for line in lines)

    # --- the file ---

    def _write(self, data: bytes) -> None:
        failure: Exception | None = None
        self.acquire()
        try:
            if not self._closed:
                self._write_whole(self._open_file(), data)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            failure = error
            self.lost += bool(data)
            self._unreported += bool(data)
        finally:
            self.release()
        if failure is not None and not self._warned:
            self._warned = True
            _warnings.warning("%s can't be written, its messages are lost: %s", self.path, failure)

    def _open_file(self) -> int:
        if self._file is not None and os.fstat(self._file).st_nlink == 0:
            self._close_file()  # deleted: what is written there would go nowhere
        if self._file is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
            file = os.open(self.path, flags, 0o666)
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(f"{self.path} is not a regular file")
                self._torn = found.st_size > 0 and os.pread(file, 1, found.st_size - 1) != b"\n"
            except OSError:
                os.close(file)
                raise
            self._file = file
        return self._file

    def _write_whole(self, file: int, data: bytes) -> None:
        if not data:
            return
        if self._unreported:
            notice = f"{self._unreported} messages before this one could not be written"
            data = self._line(_warnings.makeRecord(_warnings.name, 30, "", 0, notice, (), None), notice).encode() + data
        if self._torn:
            data = b"\n" + data  # a writer died, or the disk was full, in the middle of a line
        written = 0
        while written < len(data):
            written += os.write(file, data[written:] if written else data)
            self._torn = data[written - 1 : written] != b"\n"
        self._unreported = 0

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)


def short_logger_name(name: str) -> str:
    """Return a logger's name in 36 characters: padded, or its first and its last two parts around an ellipsis."""
    name = name.removeprefix(_SHORTENED)
    parts = name.split(".")
    if len(name) <= _NAME_WIDTH:
        return name.ljust(_NAME_WIDTH)
    if len(parts) <= 2:
        return name[: _NAME_WIDTH - 1] + "…"
    return f"{parts[0]}…{parts[-2]}.{parts[-1]}"[:_NAME_WIDTH]


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError) as error:  # the arguments don't fit the message
        return f"{record.msg!r} % {record.args!r} ({type(error).__name__})"


def _traceback(record: logging.LogRecord) -> str:
    assert record.exc_info
    return logging.Formatter().formatException(record.exc_info)


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[:LONGEST_MESSAGE]}… ({len(text) - LONGEST_MESSAGE} more characters)"
