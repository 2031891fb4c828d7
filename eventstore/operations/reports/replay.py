"""What `replay --json` prints."""

from typing import Literal

from msgspec import Struct

from eventstore.format.events import Json
from eventstore.operations.replay import Replayed


class ReplayReport(Struct, frozen=True, kw_only=True):
    """The fold of a stream. `progress` and `run_info` are documents of AgentCompass, None where there is none.

    `changed` and `written` are names of files that differ from the fold, and that were replaced by it; `backups` are
    the names under which the originals are kept. `refusals` says why nothing was written although something differs.
    """

    schema: Literal["compass-es.replay.v1"] = "compass-es.replay.v1"
    run_id: str | None
    events: int
    verdicts: dict[str, int]
    progress: Json | None
    run_info: Json | None
    changed: list[str]
    written: list[str]
    backups: list[str]
    refusals: list[str]


def replay_report(replayed: Replayed) -> ReplayReport:
    """Return the document of a replay."""
    return ReplayReport(
        run_id=replayed.run_id,
        events=replayed.events,
        verdicts=replayed.verdicts,
        progress=replayed.snapshots.progress,
        run_info=replayed.snapshots.run_info,
        changed=replayed.changed,
        written=replayed.written,
        backups=replayed.backups,
        refusals=replayed.refusals,
    )
