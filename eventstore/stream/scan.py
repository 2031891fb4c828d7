"""Read a stream from the front, by whole lines, checking: accepted records and verdicts.

    stream = scan(path)
    for record in stream: ...
    stream.verdicts, stream.findings, stream.tail

Nothing is skipped silently: `lines.read == lines.kept + lines.damaged + lines.blank`, and each damaged line has a
finding with its place. A block of lines that is fine goes the fast way (one decode for the whole block, one comparison
for a whole block of proofs); a block with anything odd is read again line by line.
"""

import io
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import filterfalse
from operator import itemgetter
from pathlib import Path

from msgspec import Struct

from eventstore.errors import MalformedLineError
from eventstore.format import codec
from eventstore.format.chain import Chain, Link
from eventstore.format.events import KNOWN_EVENTS, StreamRepaired
from eventstore.format.heads import (
    BlockDecoder,
    Typed,
    adopted_prefix,
    block_decoder,
    context_of,
    read_head,
    run_id_of,
    session_writer,
    typed_decoder,
)
from eventstore.format.records import VERDICTS, Block, Context, Finding, Head, LineCounts, Recorded, Tail
from eventstore.format.salvage import find_records
from eventstore.format.seal import CLOSING, Proof, check_chain, proves_itself, read_proof

from .line_reader import MAX_LINE_BYTES, LineReader, line_ending_at, next_data, open_regular, range_digest
from .lock_file import Mark, read_witness
from .repairs import Accounts

STREAM_NAME = "progress.jsonl"
MAX_FINDINGS = 10_000
_MAX_LEARNED_EVENTS = 64
LINES_THAT_NAME = 5
"""The first lines of a stream, which say whose it is."""
_FIRST_BYTE = itemgetter(0)
_BRACE = {ord("{")}


class CleanPart(Struct, frozen=True):
    """A range of a stream that was found clean up to the byte `end`; `last` is its last sealed line, if any."""

    records: int
    end: int
    last: Link | None


def scan(path: str | os.PathLike[str], *, max_findings: int | None = MAX_FINDINGS) -> "Scan":
    """Open a stream (or the one in a run directory) for one pass over its records.

    Raises InputError if it is missing, not a regular file, or may not be read. Only the bytes that are there now are
    read, so a stream that is being written gives a consistent prefix. At most `max_findings` findings are kept;
    `verdicts` counts them all.
    """
    path = Path(path)
    return Scan(path / STREAM_NAME if path.is_dir() else path, max_findings=max_findings)


class Scan:
    """One pass over a stream; see `scan`. Counts, findings and the tail are complete once the pass has ended.

    With `typed`, batches have typed heads wherever all of their lines allow it and belong to `context`.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_findings: int | None = MAX_FINDINGS,
        start: int = 0,
        end: int | None = None,
        run_id: str | None = None,
        chain: Chain | None = None,
        typed: bool = False,
    ) -> None:
        self.path = path
        self.run_id = run_id
        self.lines = LineCounts()
        self.records = 0
        self.verdicts: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.tail = Tail()
        self.chain = chain or Chain()
        self._accounts = Accounts()
        # The witness first: a live writer may be past it by the time the stream's size is taken, never behind.
        self.mark: Mark | None = read_witness(path.parent).mark if start == 0 and end is None else None
        self._fd = open_regular(path)
        self.opened = os.fstat(self._fd)
        self.bytes = self.opened.st_size if end is None else end
        self._reader = LineReader(self._fd, start, self.bytes)
        self._position = start
        self._max_findings = max_findings
        self._fast: BlockDecoder | None = None
        self._typed: BlockDecoder | None = None
        self._wants_typed = typed
        self.context: Context | None = None
        self._event_names = set(KNOWN_EVENTS)
        self._whole_stream = start == 0 and end is None

    @classmethod
    def resume(
        cls,
        path: Path,
        *,
        offset: int,
        lines: int,
        records: int,
        run_id: str | None,
        chain: Chain,
        typed: bool = False,
    ) -> "Scan":
        """Go on where an earlier pass ended that found no damage, all findings kept; the tail and the mark count.

        Raises InputError as `scan` does.
        """
        mark = read_witness(path.parent).mark  # before the stream's size is taken, as a whole scan does
        scan = cls(path, max_findings=None, start=offset, run_id=run_id, chain=chain, typed=typed)
        scan.records, scan.lines.read, scan.mark, scan._whole_stream = records, lines, mark, True
        return scan

    @property
    def is_current(self) -> bool:
        """True where the stream is still the very file that was read, unchanged since it was opened."""
        try:
            now = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        then = self.opened
        return os.path.samestat(now, then) and (now.st_size, now.st_mtime_ns) == (then.st_size, then.st_mtime_ns)

    @property
    def status(self) -> os.stat_result:
        """What `stat` says of the open file."""
        return os.fstat(self._fd)

    # -- what a caller iterates over

    def __iter__(self) -> Iterator[Recorded]:
        """Accepted records in file order, their events typed."""
        for block in self.blocks():
            offset, number = block.offset, block.first_line
            for index, line in enumerate(block.lines):
                if block.offsets is not None and block.line_numbers is not None:
                    offset, number = block.offsets[index], block.line_numbers[index]
                yield Recorded(
                    seq=block.first_seq + index,
                    event=codec.decode_accepted(line, block.heads[index]),
                    offset=offset,
                    length=len(line),
                    line_number=number,
                    line=line,
                )
                offset += len(line)
                number += 1

    def blocks(self) -> Iterator[Block]:
        """Accepted records in batches, only their heads decoded: the way for folds that must be fast."""
        try:
            yield from self.blocks_until(self.bytes)
            self.finish()
        finally:
            self.close()

    def blocks_until(self, end: int) -> Iterator[Block]:
        """As `blocks`, up to the byte `end`, which must follow a newline or be the stream's end."""
        self._reader = LineReader(self._fd, self._position, end)
        for offset, view in self._reader:
            block = self._read_block(offset, view) if view is not None else self._pass_over_line(offset)
            if block.heads:
                self.records += len(block.heads)
                yield block
        self._position = end

    def clean_blocks(self) -> Iterator[Block]:
        """Yield batches as long as all is well: ends before the first block that has anything odd."""
        for offset, view in self._reader:
            lines = io.BytesIO(view).readlines() if view is not None else []
            if lines and self._fast is None:
                self._learn(lines)
            heads = self._decode_block(lines) if lines else None
            if heads is None:
                return
            yield Block(heads, lines, self.records, offset, self.lines.read + 1)

    def absorb(self, part: CleanPart) -> None:
        """Take over what another process found in the bytes that follow: each line of them a record in order."""
        self.records += part.records
        self.lines.read += part.records
        self.lines.kept += part.records
        if part.last is not None:
            self.chain.advance(part.last)
        else:
            self.chain.unsealed += part.records
        self._position = part.end

    def close(self) -> None:
        """Give the file back; done by itself at the end of a pass."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    @property
    def sealed(self) -> bool:
        """True where any line proves itself."""
        return self.chain.last is not None

    @property
    def damaged(self) -> bool:
        """True where any verdict is an error."""
        return any(VERDICTS[name] == "error" for name in self.verdicts)

    @property
    def mark_superseded(self) -> bool:
        """True where a repair says that the witness's mark has no meaning any more."""
        return self.mark in self._accounts.superseded

    @property
    def unexplained_unsealed(self) -> list[int]:
        """Offsets of lines without proof after lines with one, but those that a repair vouches for."""
        return self._accounts.unsealed

    # -- fast: a block at a time

    def _read_block(self, offset: int, view: memoryview) -> Block:
        lines = io.BytesIO(view).readlines()
        if self._fast is None:
            self._learn(lines)
        first_line = self.lines.read + 1
        heads = self._decode_block(lines)
        if heads is None:
            return self._read_slowly(lines, offset)
        block = Block(heads, lines, self.records, offset, first_line, typed=isinstance(heads[0], Typed))
        if self.chain.last is None:
            self.chain.unsealed += len(lines)
        self.lines.read += len(lines)
        self.lines.kept += len(lines)
        return block

    def _decode_block(self, lines: list[bytes]) -> list[Head] | None:
        """Return the heads of lines that are all fine, or None: then each line has to be looked at.

        An array is made of the lines, so that two records glued on one line, or a blank one, don't parse.
        """
        if self._fast is None:
            return None
        if set(map(_FIRST_BYTE, lines)) != _BRACE:
            return None  # one that goes on with the line before it could make up for two records on another
        array = codec.as_array(lines)
        if self.chain.last is None and lines[-1].endswith(CLOSING):
            # It ends as only a sealed line does, and its `log` may be damaged. Looking at the last line is enough: a
            # sealed line before it that is intact doesn't fit the decoder, and after one there are only sealed ones.
            return None
        try:
            if not array.isascii():
                for line in filterfalse(bytes.isascii, lines):
                    line.decode("utf-8")  # msgspec checks only the strings that it decodes
            heads = self._decode(array, self._fast)
        except codec.REFUSALS:
            return None
        if len(heads) != len(lines) or (self.chain.last is not None and not self._follow(lines)):
            return None
        return heads

    def _decode(self, array: bytes, decoder: BlockDecoder) -> list[Head]:
        if self._typed is not None:
            with suppress(*codec.REFUSALS):
                return self._typed.decode(array)
        return decoder.decode(array)

    def _follow(self, lines: list[bytes]) -> bool:
        last = self.chain.last
        assert last is not None
        digest = check_chain(lines, last.seq + 1, last.xxh3)
        if digest is None:
            return False
        self.chain.advance(Link(last.seq + len(lines), digest))
        return True

    def _learn(self, lines: list[bytes]) -> None:
        """Make the decoder for this stream: its run id, and whether its lines are sealed, are part of the type."""
        self.run_id = self.run_id or run_id_of(lines[:LINES_THAT_NAME])
        if self.run_id is None:
            return
        # A sealed line among unsealed ones doesn't fit, and is looked at.
        names, sealed = tuple(sorted(self._event_names)), self.chain.last is not None
        self._fast = block_decoder(self.run_id, names, sealed=sealed)
        if self._wants_typed:
            self.context = self.context or context_of(lines[0])
            self._typed = typed_decoder(self.run_id, names, self.context, sealed=sealed)

    # -- slow: line by line

    def _read_slowly(self, lines: list[bytes], offset: int) -> Block:
        block = Block([], [], self.records, offset, self.lines.read + 1, [], [])
        sealed, known = self.chain.last is not None, len(self._event_names)
        for line in lines:
            self.lines.read += 1
            self._read_line(line, offset, block)
            offset += len(line)
        if (self.chain.last is not None) != sealed or len(self._event_names) != known:
            self._fast = None  # the next block's decoder knows of it
        return block

    def _read_line(self, line: bytes, offset: int, block: Block) -> None:
        content = line.rstrip(b"\r\n")
        if not content.strip(b" \t\r"):
            self.lines.blank += 1
            return
        content = content.removeprefix(codec.BYTE_ORDER_MARK)
        try:
            head, log = read_head(content)
        except MalformedLineError as error:
            self._read_pieces(line, offset, error, block)
            return
        if self._accept(head, log, line, content, offset, block):
            self.lines.kept += 1
        else:
            self.lines.damaged += 1

    def _read_pieces(self, line: bytes, offset: int, error: MalformedLineError, block: Block) -> None:
        self.lines.damaged += 1
        pieces = find_records(line)
        if pieces and "log" not in pieces[-1].members and read_proof(line) is not None:
            pieces.pop()  # the proof behind it shows that it was sealed, and is whole by accident
        if not pieces:
            self._note("corrupt_line", f"the line is {error}", offset, len(line))
            self.chain.note_damage()
            return
        rubbish = len(line.rstrip(b"\r\n")) - sum(piece.end - piece.start for piece in pieces)
        self._note(
            "glued_line",
            f"{len(pieces)} whole record{'s' * (len(pieces) > 1)} on one line with {rubbish} bytes that are none",
            offset,
            len(line),
        )
        if rubbish:
            self.chain.note_damage()
        for piece in pieces:
            text = line[piece.start : piece.end]
            members = piece.members
            head = Head(members["run_id"], members["event"], members["timestamp"], codec.task_id_text(members))
            if self._accept(head, "log" in members, text, text, offset + piece.start, block):
                self.lines.salvaged += 1

    def _accept(self, head: Head, has_log: bool, line: bytes, content: bytes, offset: int, block: Block) -> bool:
        """Judge a line of the right shape; put it into the block unless it can't be used."""
        proof = read_proof(content)  # a line that ends with one has a log, or had
        if self._was_changed(proof, has_log, content, offset, len(line)):
            return False
        if proof is None:
            self.chain.note_unsealed()
        if self._is_foreign(head, offset, len(line)):  # first: another run's place in a chain says nothing here
            return False
        if proof is None:
            self._note_unsealed_line(offset, len(line))
        elif self._judge_chain(proof, content, offset, len(line)) == "repeated":
            return False
        self._learn_from(head, proof, line, content, block)
        block.heads.append(head)
        block.lines.append(line)
        block.offsets.append(offset)  # type: ignore[union-attr]
        block.line_numbers.append(self.lines.read)  # type: ignore[union-attr]
        return True

    def _was_changed(self, proof: Proof | None, has_log: bool, content: bytes, offset: int, length: int) -> bool:
        """Return whether a line has, or had, a proof and is not what it proves."""
        if proof is None and not has_log:
            return False
        if proof is not None and has_log and proves_itself(content, proof):
            return False
        why = "its proof has not the fixed shape" if proof is None else f"its digest is not {proof.xxh3}"
        self._note("digest_mismatch", f"the line was changed after it was written: {why}", offset, length)
        self.chain.note_damage()
        return True

    def _is_foreign(self, head: Head, offset: int, length: int) -> bool:
        """Return whether a line is another run's; the first line says whose the stream is."""
        if self.run_id is None:
            self.run_id = head.run_id
        if head.run_id == self.run_id:
            return False
        self._note("foreign_run", f"run_id is {head.run_id!r}, the stream's is {self.run_id!r}", offset, length)
        return True

    def _note_unsealed_line(self, offset: int, length: int) -> None:
        if self.sealed:
            self._note("unsealed_line", "a line without proof after lines that have one", offset, length)
            self._accounts.unsealed.append(offset)

    def _learn_from(self, head: Head, proof: Proof | None, line: bytes, content: bytes, block: Block) -> None:
        """Take from an accepted line its event's name, what a repair says, and where a session begins."""
        if len(self._event_names) < _MAX_LEARNED_EVENTS:
            self._event_names.add(head.event)
        if proof is None:
            return
        if head.event == "stream_repaired":
            self._account_for_repair(line)
        if session_writer(content):
            block.sessions.append(len(block.heads))

    def _judge_chain(self, proof: Proof, content: bytes, offset: int, length: int) -> str | None:
        adopted = adopted_prefix(content) if self.chain.last is None and self.chain.unsealed else None
        if adopted is not None:
            self.chain.adopt(adopted, offset, self.lines.read - 1, lambda: self._digest(0, offset))
        verdict = self.chain.judge(Link(proof.seq, proof.xxh3), proof.prev)
        if verdict is not None:
            self._note(verdict.code, verdict.message, offset, length, proof.seq)
            return verdict.code
        return None

    # -- notes, and the end

    def _note(self, code: str, message: str, offset: int, length: int, seq: int | None = None) -> None:
        self.verdicts[code] += 1
        if self._max_findings is None or len(self.findings) < self._max_findings:
            self.findings.append(
                Finding(
                    code=code,
                    severity=VERDICTS[code],
                    message=message,
                    file=str(self.path),
                    line=self.lines.read or None,
                    offset=offset,
                    length=length,
                    seq=seq,
                )
            )

    def _account_for_repair(self, line: bytes) -> None:
        """A repair says what it removed; what it accounts for is no finding (stream format, "Reading")."""
        event = codec.decode(line)
        if isinstance(event, StreamRepaired):
            explained = self._accounts.take(event.payload, self.chain, self._digest)
            self.findings = [finding for finding in self.findings if not explained.covers(finding)]
            self.verdicts = +(self.verdicts - explained.counts)

    def _pass_over_line(self, offset: int) -> Block:
        self.lines.read += 1
        self.lines.damaged += 1
        length = self._reader.oversize_bytes
        hole = self._reader.hole_bytes
        nul = f", {hole} of them NUL bytes: a hole in the file" if hole else ""
        self._note("corrupt_line", f"the line is longer than {MAX_LINE_BYTES} bytes{nul}", offset, length)
        self.chain.note_damage()
        return Block([], [], self.records, offset, self.lines.read)

    def finish(self) -> None:
        """The verdicts that only the end of a stream allows: its tail, its mark, its kind."""
        reader = self._reader
        if reader.torn_bytes and self._whole_stream:
            self.tail = Tail(torn_bytes=reader.torn_bytes, offset=reader.torn_offset)
            what = "NUL bytes" if not reader.torn_sample.strip(b"\0") else "bytes"
            self.lines.read += 1  # for the finding's line number only
            self._note(
                "torn_tail",
                f"the last {reader.torn_bytes} {what} have no newline: a write was cut off",
                reader.torn_offset,
                reader.torn_bytes,
            )
            self.lines.read -= 1
        if self._whole_stream:
            self._check_mark()
            if self.records and not self.sealed:
                self._note("unsealed", "the lines carry no proof: AgentCompass's own", 0, self.bytes)

    def _check_mark(self) -> None:
        """The stream must hold what was once on stable storage, and end that part with the very same line."""
        mark = self.mark
        if mark is None or self.mark_superseded or (not self.sealed and is_reanalysis(self._fd, self.bytes)):
            return
        if self.bytes < mark.bytes:
            message = f"{mark.bytes} bytes up to seq {mark.seq} were on stable storage, {self.bytes} are left"
            self._note("lost_acknowledged", message, self.bytes, mark.bytes - self.bytes, mark.seq)
            return
        line = line_ending_at(self._fd, mark.bytes)
        proof = read_proof(line)
        if proof is None or (proof.seq, proof.xxh3) != (mark.seq, mark.xxh3) or not proves_itself(line, proof):
            message = f"the line that ends at byte {mark.bytes} is not the one with seq {mark.seq} that was there"
            self._note("lost_acknowledged", message, mark.bytes - len(line), len(line), mark.seq)

    def _digest(self, start: int, end: int) -> str:
        return range_digest(self._fd, start, end)


# -- Whether a stream without proofs is one that `agentcompass analysis` wrote in place of the evaluation's

_STEP = 1024 * 1024
_OVERLAP = 256
_ANALYZES = re.compile(rb'"phase"\s*:\s*"analyze"')
_EVALUATES = re.compile(rb'"event"\s*:\s*"(?:reuse_loaded|attempt_started|attempt_finished|execution_plan_resolved)"')


def is_reanalysis(fd: int, length: int) -> bool:
    """Whether the first `length` bytes of an open stream hold the phase of an analysis and nothing of an evaluation."""
    found, offset = False, next_data(fd, 0, length)
    while offset < length and (data := os.pread(fd, min(_STEP + _OVERLAP, length - offset), offset)):
        if _EVALUATES.search(data):
            return False
        found = found or _ANALYZES.search(data) is not None
        offset = next_data(fd, offset + _STEP, length)
    return found
