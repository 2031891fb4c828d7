"""Which run's file a log record belongs to, in a process with many runs at once.

One handler at the root logger passes every record on: to the run bound in the record's context (`RunLog.bind`, a
context variable: tasks and everything they await inherit it), else to the only open run, else to none. So the cost of a
record doesn't grow with the number of runs, and no record reaches a foreign file.

For records below the levels in force to exist at all, the levels of the own loggers are lowered while a run is open.
Other handlers that exist by then do not see the difference: they keep the level that was in force before, and records
that nobody else handles still reach Python's handler of last resort (standard error).
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol


class Destination(Protocol):
    """An open run log, as far as routing is concerned."""

    level: int
    own_loggers: tuple[str, ...]

    def handle(self, record: logging.LogRecord) -> bool: ...


_bound: ContextVar[Destination | None] = ContextVar("compass_es_run_log", default=None)


@contextmanager
def bound_to(destination: Destination) -> Iterator[None]:
    """Records of this context, and of tasks started in it, go to `destination` meanwhile."""
    _router.install()
    token = _bound.set(destination)
    try:
        yield
    finally:
        try:
            _bound.reset(token)
        except ValueError:  # a generator that is finalised in another context than it began in
            _bound.set(None)


def open_route(destination: Destination) -> None:
    """Let records reach `destination` from now on."""
    _router.add(destination)


def close_route(destination: Destination) -> None:
    """Let no record reach it any more; the last one to go leaves logging as it was found."""
    _router.remove(destination)


class _Lowered(NamedTuple):
    """A logger whose level was changed: what it had, what was in force, and what it has now."""

    own: int
    effective: int
    now: int


class _KeepLevel(logging.Filter):
    """On other handlers: records that exist only because a level was lowered are not theirs."""

    def filter(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and not logger.level:
            logger = logger.parent
        lowered = _router.lowered.get(logger.name) if logger is not None else None
        return lowered is None or record.levelno >= lowered.effective


class _Router(logging.Handler):
    """The one handler at the root logger."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lowered: dict[str, _Lowered] = {}
        self._keep_level = _KeepLevel()
        self._change = threading.RLock()
        self._open: tuple[Destination, ...] = ()

    def createLock(self) -> None:
        self.lock = None  # destinations have their own; one slow file must not hold up the others

    def handle(self, record: logging.LogRecord) -> bool:
        destinations = self._open
        destination = _bound.get()
        if destination is None and len(destinations) == 1:
            destination = destinations[0]
        if destination in destinations and destination is not None and record.levelno >= destination.level:
            destination.handle(record)
        last_resort = logging.lastResort
        if last_resort and record.levelno >= last_resort.level and not _has_other_handlers(record.name):
            last_resort.handle(record)
        return True

    def add(self, destination: Destination) -> None:
        with self._change:
            self._open = (*self._open, destination)
            self._set_levels()
            self.install()

    def remove(self, destination: Destination) -> None:
        with self._change:
            self._open = tuple(other for other in self._open if other is not destination)
            self._set_levels()
            if not self._open:
                for logger in _all_loggers():
                    logger.removeHandler(self)
                    for handler in logger.handlers:
                        handler.removeFilter(self._keep_level)

    def renew_lock(self) -> None:
        self._change = threading.RLock()

    def install(self) -> None:
        """Be where records pass, also after somebody else has set up logging anew."""
        with self._change:
            if not self._open:
                return
            names = {name for destination in self._open for name in destination.own_loggers}
            own = [logging.getLogger(name) for name in names]
            for logger in (logging.getLogger(), *(logger for logger in own if not logger.propagate)):
                if self not in logger.handlers:
                    logger.addHandler(self)
            ours = {id(self), *map(id, self._open)}
            for logger in _with_parents(own):
                for handler in logger.handlers:
                    if id(handler) not in ours:
                        handler.addFilter(self._keep_level)

    def _set_levels(self) -> None:
        wanted: dict[str, int] = {}
        for destination in self._open:
            for name in destination.own_loggers:
                wanted[name] = min(destination.level, wanted.get(name, destination.level))
        for name in [name for name in self.lowered if name not in wanted]:
            self._restore(name)
        # Parents first: what is in force for a child may just have been lowered.
        for name, level in sorted(wanted.items()):
            logger = logging.getLogger(name)
            before = self.lowered.get(name) or _Lowered(logger.level, self._effective(logger), logger.level)
            if level < before.effective:
                self.lowered[name] = before._replace(now=level)
                logger.setLevel(level)
            elif name in self.lowered:
                self._restore(name)

    def _effective(self, logger: logging.Logger) -> int:
        """Return the level that was in force before any was lowered."""
        current: logging.Logger | None = logger
        while current is not None and not current.level:
            current = current.parent
        lowered = self.lowered.get(current.name) if current is not None else None
        return lowered.effective if lowered else logger.getEffectiveLevel()

    def _restore(self, name: str) -> None:
        lowered = self.lowered.pop(name)
        logger = logging.getLogger(name)
        if logger.level == lowered.now:  # else somebody has set it meanwhile, and knows better
            logger.setLevel(lowered.own)


def _has_other_handlers(name: str) -> bool:
    return any(
        handler is not _router and not isinstance(handler, logging.NullHandler)
        for logger in _with_parents([logging.getLogger(name)])
        for handler in logger.handlers
    )


def _with_parents(loggers: Iterable[logging.Logger]) -> Iterator[logging.Logger]:
    """Yield those loggers and all that their records are passed on to."""
    for logger in loggers:
        current: logging.Logger | None = logger
        while current is not None:
            yield current
            current = current.parent if current.propagate else None


def _all_loggers() -> list[logging.Logger]:
    named = logging.getLogger().manager.loggerDict.copy().values()
    return [logging.getLogger(), *(logger for logger in named if isinstance(logger, logging.Logger))]


_router = _Router()
# A lock that another thread held at the moment of a fork would stay locked in the child for ever.
os.register_at_fork(after_in_child=_router.renew_lock)
