"""One stream through scan and the folds into rows, from its front or from where an earlier reading ended.

What a catalog keeps of a stream that has no damage is enough to go on with only the bytes that were appended: the
states of the folds, and proof that the part already read is still the same.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from operator import sub
from typing import Any, Protocol

import msgspec
import xxhash
from msgspec import UNSET, Raw, Struct, field

from eventstore.errors import InputError, MalformedLineError
from eventstore.format import codec
from eventstore.format.chain import Chain, Link
from eventstore.format.events import ENVELOPE
from eventstore.format.records import Block, Context, Finding
from eventstore.format.seal import read_proof
from eventstore.stream.scan import STREAM_NAME, Scan
from projections import Base, sessions
from projections.snapshots import progress, run_info
from projections.timeline import timeline

from .line_batch import Batch, Places
from .plans import PlanReader
from .tables import DamageRow, EventRow, PlacedRun
from .values import as_float, as_int, is_beyond, json_text, text

_PROBE_BYTES = 4096
MAX_PLAIN_BYTES = 4 * 1024 * 1024
"""A larger batch has a line that is not given to DuckDB's reader of JSON lines, which has a limit of its own."""
PLAIN_TIMES = (0.0, 2e11)
"""Between these every time is a TIMESTAMP, and every difference of two an INTERVAL."""
MOMENTS = (-62135596800, 253402300799)
"""The first and last second that a TIMESTAMP column takes: the years 1 to 9999."""
OUT_OF_RANGE = "out_of_range"
_LONG_NUMBER = re.compile(rb'"(?:attempt|request_index)"\s*:\s*-?(?:\d{19}|[\d.]+[eE])')
"""What a line has that must be parsed to see whether a number of it is out of range."""
ROWS_AT_ONCE = 1000
_decoder = msgspec.json.Decoder(list[EventRow])


class Sink(Protocol):
    """Where rows go. `lines` and `events` take those of the events table, `rows` those of all others.

    `as_lines` tells whether clean lines may go as they are, with their places.
    """

    @property
    def as_lines(self) -> bool: ...
    def lines(self, lines: bytes, places: Places) -> None: ...
    def events(self, rows: list[EventRow]) -> None: ...
    def rows(self, run: PlacedRun, rows: Iterable[Struct]) -> None: ...


class First(Struct):
    """What the first record says of the whole run. `sealed` tells that a recorder of ours began the stream."""

    timestamp: float
    context: Context
    sealed: bool = False


class Reached(Struct, kw_only=True):
    """How far a stream was read, and the proof that it is the same up to there: digests of its first and last bytes."""

    offset: int = 0
    lines: int = 0
    device: int = 0
    inode: int = 0
    head: str = ""
    tail: str = ""
    last: tuple[int, str] | None = None
    start: tuple[int, str] | None = None
    unsealed: int = 0


class StreamState(Struct, kw_only=True):
    """The folds of one stream and what was counted on the way; everything that going on needs."""

    progress: progress.State
    run_info: run_info.State
    timeline: timeline.State
    reached: Reached
    first: First | None = None
    writers: sessions.State = field(default_factory=sessions.State)
    last_event_at: float | None = None
    longest_gap: float | None = None
    longest_gap_seq: int | None = None
    last_seq: int | None = None
    retries: int = 0
    planned: list[tuple[str | None, int | None]] = []
    bytes: int = 0
    torn_bytes: int = 0
    sealed: bool = False


_state_decoder = msgspec.msgpack.Decoder(StreamState)


def keep(state: StreamState) -> bytes | None:
    """Return a state as bytes, None where it can't be kept: then the stream is read from its front again."""
    try:
        return msgspec.msgpack.encode(state)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def keep_reached(state: StreamState) -> bytes:
    """Only how far the stream was read, and its proof: nothing to go on from, enough to see that it is another one."""
    return msgspec.msgpack.encode({"reached": state.reached})


def restore(kept: bytes) -> StreamState | None:
    """Return a kept state; None for bytes of another version."""
    try:
        return _state_decoder.decode(kept)
    except codec.REFUSALS:
        return None


def initial_state(base: Base) -> StreamState:
    """Nothing has been read."""
    return StreamState(
        progress=progress.initial(base),
        run_info=run_info.initial(base),
        timeline=timeline.initial(base),
        reached=Reached(),
    )


def rebase(state: StreamState, base: Base) -> None:
    """The stored files may have changed since the state was kept: what the folds took from them is taken again."""
    fresh = progress.initial(base)
    state.progress.started_at = fresh.started_at
    if not state.progress.ids_from_stream:
        state.progress.ids = fresh.ids
    state.run_info.stored = run_info.initial(base).stored


class StreamReader:
    """Reads one stream into rows; `state` goes along, `damage` gathers findings, `readable` tells if there was one."""

    def __init__(self, run: PlacedRun, sink: Sink, state: StreamState) -> None:
        self.run, self.sink, self.state = run, sink, state
        self.plans = PlanReader(state.planned)
        self.batch = Batch(run.no)
        self.stays: list[timeline.PhaseRow] = []
        self.damage: list[DamageRow] = []
        self.lost: Counter[str] = Counter()
        self.path = run.path / STREAM_NAME

    def read(self) -> None:
        """From where the state stands to the end. Whatever is wrong becomes damage."""
        if not os.path.lexists(self.path):
            return
        try:
            scan = self._open()
        except InputError as error:
            self.damage.append(unreadable(STREAM_NAME, error, self.path))
            return
        try:
            self._note_file(scan)
            for block in scan.blocks():
                self._read_block(block, scan.context)
        except OSError as error:
            words = InputError(f"can't be read to its end: {error.strerror}", self.path)
            self.damage.append(unreadable(STREAM_NAME, words, self.path))
        self._hand_on()
        self._send_ended()
        self.damage.extend(_damage_row(finding) for finding in scan.findings if finding.code != "unsealed")
        self.damage.extend(out_of_range(STREAM_NAME, name, count) for name, count in self.lost.items() if count)
        self._note_end(scan)

    def _open(self) -> Scan:
        reached = self.state.reached
        if reached.offset == 0:
            return Scan(self.path, max_findings=None, typed=True)
        last, start = (None if link is None else Link(*link) for link in (reached.last, reached.start))
        done = self.state.progress
        return Scan.resume(
            self.path,
            offset=reached.offset,
            lines=reached.lines,
            records=done.counts.events,
            run_id=done.run_id,
            chain=Chain.resume(last, start, reached.unsealed),
            typed=True,
        )

    def _note_file(self, scan: Scan) -> None:
        status = scan.status
        self.state.reached.device, self.state.reached.inode = status.st_dev, status.st_ino

    def _note_end(self, scan: Scan) -> None:
        state, reached = self.state, self.state.reached
        state.bytes, state.torn_bytes, state.sealed = scan.bytes, scan.tail.torn_bytes, scan.sealed
        reached.offset, reached.lines = scan.bytes - scan.tail.torn_bytes, scan.lines.read
        last, start = scan.chain.last, scan.chain.start
        reached.last = None if last is None else (last.seq, last.xxh3)
        reached.start = None if start is None else (start.seq, start.xxh3)
        reached.unsealed = scan.chain.unsealed
        reached.head, reached.tail = probes(self.path, reached.offset)
        state.planned = list(self.plans.seen)

    def _read_block(self, block: Block, context: Context | None) -> None:
        state = self.state
        progress.apply_block(state.progress, block)
        run_info.apply_block(state.run_info, block, with_plans=False)  # they have rows of their own
        timeline.apply_block(state.timeline, block)
        if state.first is None:
            sealed = read_proof(block.lines[0]) is not None
            state.first = First(as_float(block.heads[0].timestamp), _context(block, context), sealed)
        times = [as_float(head.timestamp) for head in block.heads]
        for part in sessions.parts(state.writers, block):
            _note_gaps(state, part)
        plain = block.typed and self.sink.as_lines and context == state.first.context
        text = b"".join(block.lines) if plain and _are_plain(times) else b""
        if 0 < len(text) <= MAX_PLAIN_BYTES:
            if not self.batch.takes(block):
                self._hand_on()
            self.batch.add(block, text)
        else:
            self._hand_on()
            self._send_rows(block, times)
        ended = state.timeline
        self.stays += self.batch.take_stays(ended.phases)
        ended.phases = []
        if len(self.stays) + len(ended.retries) + len(ended.plans) > ROWS_AT_ONCE:
            self._send_ended()

    def _send_rows(self, block: Block, times: list[float]) -> None:
        """Send rows that are made here, and count the numbers that no column holds."""
        rows = read_rows(block, self.run)
        self.lost["timestamp"] += sum(not MOMENTS[0] <= time <= MOMENTS[1] for time in times)
        for line in block.lines:
            self.lost.update(_lost_numbers(line))
        self.sink.events(rows)

    def _send_ended(self) -> None:
        self.state.retries += len(self.state.timeline.retries)
        rows = [*self.stays, *timeline.take_ended(self.state.timeline)]
        self.stays = []
        self.sink.rows(self.run, self.plans.rows(rows))

    def _hand_on(self) -> None:
        taken = self.batch.take()
        if taken is not None:
            self.sink.lines(*taken)


def _context(block: Block, context: Context | None) -> Context:
    """That of a stream's first record; odd values become what a column can hold."""
    if block.typed and context is not None:
        return context
    row = odd_row(block.heads[0], block.lines[0])
    return Context(row.orchestration_id, row.request_key, row.request_name, row.request_index)


def _are_plain(times: list[float]) -> bool:
    return PLAIN_TIMES[0] <= min(times) and max(times) <= PLAIN_TIMES[1]


def unchanged_so_far(run: PlacedRun, reached: Reached) -> bool:
    """Return whether the part of a stream that was read is still there, as far as its first and last bytes tell."""
    try:
        status = (run.path / STREAM_NAME).stat()
    except OSError:
        return False
    if (status.st_dev, status.st_ino) != (reached.device, reached.inode) or status.st_size < reached.offset:
        return False
    return probes(run.path / STREAM_NAME, reached.offset) == (reached.head, reached.tail)


def probes(path: os.PathLike[str], offset: int) -> tuple[str, str]:
    """XXH3 of a file's first bytes and of those before `offset`; empty where it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return "", ""
    try:
        start = max(0, offset - _PROBE_BYTES)
        return (
            xxhash.xxh3_64_hexdigest(os.pread(fd, min(_PROBE_BYTES, offset), 0)),
            xxhash.xxh3_64_hexdigest(os.pread(fd, offset - start, start)),
        )
    except OSError:
        return "", ""
    finally:
        os.close(fd)


def unreadable(file: str, error: InputError, path: os.PathLike[str]) -> DamageRow:
    """Return the damage row of a file that can't be read."""
    message = error.message.removeprefix(f"{path}: ")
    return DamageRow(file=file, code="unreadable_file", severity="error", message=text(message) or "")


def out_of_range(file: str, name: str, count: int = 1) -> DamageRow:
    """Return the damage row of numbers that no column holds: NULL in SQL, and exact where they are stored."""
    where = "" if count == 1 else f" of {count} events"
    message = f"{name}{where} is outside the range of its column, and NULL there"
    return DamageRow(file=file, code=OUT_OF_RANGE, severity="warning", message=message)


def _lost_numbers(line: bytes) -> list[str]:
    """Return the names of the whole numbers of a line that have more than 64 bits."""
    if _LONG_NUMBER.search(line) is None:
        return []
    try:
        members = codec.parse_object(line)
    except MalformedLineError:
        return []
    return [name for name in ("attempt", "request_index") if is_beyond(members.get(name))]


def _damage_row(finding: Finding) -> DamageRow:
    return DamageRow(
        file=STREAM_NAME,
        line=finding.line,
        offset=finding.offset,
        length=finding.length,
        code=finding.code,
        severity=finding.severity,
        message=text(finding.message) or "",
        seq=finding.seq,
    )


def _note_gaps(state: StreamState, part: sessions.Part) -> None:
    """The longest time without an event, and the record it came after; bookkeeping is none, nor is what lies between
    a death and the work of another process."""
    block = part.block
    seen = [(as_float(head.timestamp), block.first_seq + index) for index, head in sessions.observations(part)]
    if not seen:
        return
    times, seqs = [time for time, _ in seen], [seq for _, seq in seen]
    last = times[0] if state.last_event_at is None or part.border else state.last_event_at
    gaps = list(map(sub, times, [last, *times]))
    longest = max(gaps)
    if longest > (state.longest_gap or 0.0):
        index = gaps.index(longest)
        state.longest_gap = longest
        state.longest_gap_seq = (state.last_seq or 0) if index == 0 else seqs[index - 1]
    state.last_event_at, state.last_seq = times[-1], seqs[-1]


def read_rows(block: Block, run: PlacedRun) -> list[EventRow]:
    """Return the rows of a batch of accepted lines."""
    try:
        rows = _decoder.decode(codec.as_array(block.lines))
    except codec.REFUSALS:
        rows = [odd_row(head, line) for head, line in zip(block.heads, block.lines, strict=True)]
    place_rows(rows, block, run)
    return rows


def odd_row(head: Any, line: bytes) -> EventRow:
    """Return a line that doesn't fit the columns: odd values become text, numbers that no column holds become NULL."""
    event = codec.decode_accepted(line, head)
    members = codec.envelope_members(event)
    extra = {name: value for name, value in members.items() if name not in ENVELOPE}
    return EventRow(
        run_id=text(members["run_id"]) or "",
        event=text(members["event"]) or "",
        timestamp=as_float(members["timestamp"]),
        attempt=as_int(members["attempt"]),
        request_index=as_int(members["request_index"]),
        payload=Raw(timeline.payload_text(line)),
        extra=json_text(extra) if extra else None,
        task_id=text(members["task_id"]),
        category=text(members["category"]),
        phase=text(members["phase"]),
        status=text(members["status"]),
        orchestration_id=text(members["orchestration_id"]),
        request_key=text(members["request_key"]),
        request_name=text(members["request_name"]),
    )


def place_rows(rows: list[EventRow], block: Block, run: PlacedRun) -> None:
    """Give rows their place, and their payloads as text."""
    seq, offset, number = block.first_seq, block.offset, block.first_line
    no = run.no
    for index, row in enumerate(rows):
        if block.offsets is not None and block.line_numbers is not None:
            offset, number = block.offsets[index], block.line_numbers[index]
        row.run_no, row.seq, row.line, row.offset = no, seq, number, offset
        row.log = UNSET
        # Encoded as a string from here on, so that DuckDB takes any JSON in it and changes nothing.
        row.payload = bytes(row.payload).decode("utf-8")  # type: ignore[assignment]
        offset += len(block.lines[index])
        number += 1
        seq += 1
