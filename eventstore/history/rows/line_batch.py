"""Clean lines on their way to DuckDB as they are, with what it can't know of them in columns beside: their places, and
of those that begin a stay in a phase how long it was and what ended it."""

from itertools import accumulate

from msgspec import Struct

from eventstore.format.records import Block
from projections.timeline.timeline import PhaseRow

BATCH_BYTES = 4 * 1024 * 1024
"""Lines of this many bytes are handed on; a stay that ends later has a row of its own."""
STAY_ENDINGS = (
    "phase_changed",
    "attempt_started",
    "attempt_retry",
    "attempt_finished",
    "task_started",
    "task_finished",
    "run_finished",
)
"""The events that end a stay in a phase; tables have their number, which counts from 1."""
_NUMBERS = {name: number for number, name in enumerate(STAY_ENDINGS, 1)}


class Places(Struct, gc=False):
    """Records in a row, and one entry for each in the lists. `ahead` is how much a line's number exceeds its seq."""

    run_no: int
    first_seq: int
    ahead: int
    offsets: list[int] = []
    stay_seconds: list[float | None] = []
    stay_records: list[int | None] = []
    stay_ended_by: list[int | None] = []


class Batch:
    """Gathers lines that follow each other, one a record, with their places."""

    def __init__(self, run_no: int) -> None:
        self.run_no = run_no
        self._texts: list[bytes] = []
        self._bytes = 0
        self._places: Places | None = None

    def takes(self, block: Block) -> bool:
        """Return whether a block goes on where the batch ends, and the batch is not full."""
        places = self._places
        return places is None or (
            self._bytes < BATCH_BYTES
            and block.first_seq == places.first_seq + len(places.offsets)
            and block.first_line - block.first_seq == places.ahead
        )

    def add(self, block: Block, text: bytes) -> None:
        """Add a block; `text` is its lines in one."""
        places = self._places
        if places is None:
            places = self._places = Places(self.run_no, block.first_seq, block.first_line - block.first_seq)
        self._texts.append(text)
        self._bytes += len(text)
        places.offsets += accumulate(map(len, block.lines[:-1]), initial=block.offset)
        nothing = [None] * len(block.lines)
        for column in (places.stay_seconds, places.stay_records, places.stay_ended_by):
            column.extend(nothing)

    def take_stays(self, stays: list[PhaseRow]) -> list[PhaseRow]:
        """Note stays that ended where they begin; returns those that need a row of their own."""
        places = self._places
        if places is None:
            return stays
        others = []
        first, seconds, records, ended_by = (
            places.first_seq,
            places.stay_seconds,
            places.stay_records,
            places.stay_ended_by,
        )
        for stay in stays:
            index = stay.seq - first
            number = _NUMBERS.get(stay.ended_by or "")
            if index < 0 or stay.updates > 1 or stay.error is not None or number is None or stay.seconds is None:
                others.append(stay)
            else:
                seconds[index] = stay.seconds
                records[index] = stay.ended_seq - stay.seq  # type: ignore[operator]
                ended_by[index] = number
        return others

    def take(self) -> tuple[bytes, Places] | None:
        """Return what was gathered, which is begun anew."""
        if self._places is None:
            return None
        taken = b"".join(self._texts), self._places
        self._texts, self._bytes, self._places = [], 0, None
        return taken
