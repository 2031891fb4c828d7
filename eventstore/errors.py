"""Errors for people: a clear sentence with the path, and where it helps the line and the offset.

`cli` maps a class to an exit code in one place; a library caller catches `CompassError`.
"""


class CompassError(Exception):
    """Base of all errors that this package raises on purpose. `kind` is its stable name, `path` what it is about."""

    kind = "error"

    def __init__(self, message: str, path: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)


class UsageError(CompassError):
    """The call itself is wrong."""

    kind = "usage"


class InputError(CompassError):
    """Something that must be read can't be read at all: missing, not a file, no permission."""

    kind = "unreadable"


class OutputError(CompassError):
    """Something that must be written can't be written."""

    kind = "unwritable"


class RefusedError(CompassError):
    """The operation would lose information, or disturb a live writer. `force` does it all the same."""

    kind = "refused"


class DamagedError(CompassError):
    """The stream is damaged in a way that this operation does not accept."""

    kind = "damaged"


class LockedError(CompassError):
    """Another writer holds the run directory."""

    kind = "locked"


class LogPoisonedError(CompassError):
    """A write or fsync failed in a way that leaves the disk's content unknown; the log takes no more events."""

    kind = "poisoned"


class QueryError(CompassError):
    """SQL that doesn't parse, bind, or is not allowed."""

    kind = "query"


class MalformedLineError(CompassError):
    """A line that is not an event. `position` is the byte in the line where reading stopped, if known."""

    kind = "malformed"

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position
