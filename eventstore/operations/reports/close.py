"""What `close --json` prints."""

from typing import Literal

from msgspec import Struct

from eventstore.operations.close import Closed
from eventstore.run.liveness import Life


class CloseReport(Struct, frozen=True, kw_only=True):
    """A run that was given its end. `life` is what was known of its writer before.

    `written` names snapshots that were rebuilt, `problems` says why one was not.
    """

    schema: Literal["compass-es.close.v1"] = "compass-es.close.v1"
    run_id: str
    status: str
    life: Life
    written: list[str]
    problems: list[str]


def close_report(closed: Closed) -> CloseReport:
    """Return the document of a closed run."""
    return CloseReport(
        run_id=closed.run_id,
        status=closed.status,
        life=Life(closed.life.state, closed.evidence),
        written=closed.written,
        problems=closed.problems,
    )
