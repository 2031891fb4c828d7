"""What any command prints with `--json` where it fails."""

from msgspec import Struct

from eventstore.errors import CompassError


class Failure(Struct, frozen=True, kw_only=True):
    """A kind that programs may branch on, a sentence, and the file or folder that it is about."""

    kind: str
    message: str
    path: str | None


class ErrorReport(Struct, frozen=True, kw_only=True):
    """The only document of a command that failed. It has no `schema`: its one member tells what it is."""

    error: Failure


def error_report(error: CompassError) -> ErrorReport:
    """Return the document of an error."""
    path = None if error.path is None else str(error.path)
    return ErrorReport(error=Failure(kind=error.kind, message=error.message, path=path))
