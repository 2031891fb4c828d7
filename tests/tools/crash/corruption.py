"""Corrupt small streams in every way on a list.

    python -m tests.tools.crash.corruption --seed 1 --random 100000

Of a sealed stream no corruption may go unseen, no whole line may be passed over, and the first finding names the line
in which the first changed byte stands. Of a stream without proof less can be promised; its figures are printed too.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from eventstore.format.records import VERDICTS
from eventstore.format.seal import NO_PREDECESSOR, read_proof, seal
from eventstore.stream.lock_file import LOCK_NAME, Mark, render_slot, render_writer, slot_offset
from eventstore.stream.scan import STREAM_NAME, scan

Corrupted = tuple[str, bytes]


def plain_stream(rng: random.Random, count: int, run_id: str = "r") -> list[bytes]:
    """Lines without proof, of changing length."""
    lines = []
    for number in range(count):
        note = "".join(rng.choice("abc \\u20ac{}[],:") for _ in range(rng.randint(0, 12))).replace("\\", "")
        event = '"run_started"' if number == 0 else '"phase_changed"'
        lines.append(
            f'{{"run_id":"{run_id}","event":{event},"timestamp":{1000 + number}.5,"task_id":"t{number}",'
            f'"category":null,"attempt":1,"phase":"plan","status":null,"payload":{{"note":"{note}"}},"orchestration_id":null,'
            f'"request_key":null,"request_name":null,"request_index":null}}'.encode()
        )
    return lines


def sealed_stream(rng: random.Random, count: int, run_id: str = "r", *, sessions: int = 1) -> list[bytes]:
    """Sealed lines of one or two sessions."""
    openings = {0, count // 2} if sessions > 1 else {0}
    return continue_stream(plain_stream(rng, count, run_id), 0, NO_PREDECESSOR, openings)


def continue_stream(plain: list[bytes], seq: int, prev: str, openings: set[int]) -> list[bytes]:
    """Seal lines after line `seq - 1`."""
    lines = []
    for number, line in enumerate(plain):
        session = b'"writer":{"id":"w","host":"h","pid":1,"boot":"b","opened_at":"o","version":"0"},'
        text, prev = seal(line, seq + number, prev, session if number in openings else b"")
        lines.append(text)
    return lines


# -- what can happen to a stream


def every_byte(content: bytes) -> Iterator[Corrupted]:
    """Each byte with one bit flipped, zeroed, dropped, doubled, and made a newline."""
    for at, byte in enumerate(content):
        before, after = content[:at], content[at + 1 :]
        for bit in range(8):
            yield "flip", before + bytes([byte ^ (1 << bit)]) + after
        yield "zero", before + b"\0" + after
        yield "drop", before + after
        yield "double", before + bytes([byte, byte]) + after
        yield "newline", before + b"\n" + after


def every_line(lines: list[bytes]) -> Iterator[Corrupted]:
    """Lines swapped, repeated, removed, emptied; each pair, each place, each range."""
    count = len(lines)
    for one in range(count):
        for other in range(one + 1, count):
            swapped = list(lines)
            swapped[one], swapped[other] = lines[other], lines[one]
            yield "swap", b"".join(swapped)
            if other < count:
                yield "remove", b"".join(lines[:one] + lines[other:])
        for place in range(count + 1):
            yield "repeat", b"".join([*lines[:place], lines[one], *lines[place:]])
        yield "empty", b"".join([*lines[:one], b"\n", *lines[one + 1 :]])
        yield "nul", b"".join([*lines[:one], b"\0" * len(lines[one]), *lines[one + 1 :]])


def every_splice(lines: list[bytes]) -> Iterator[Corrupted]:
    """Halves of two lines joined to one that is JSON again; a stub before a whole line; a member changed."""
    for one, line in enumerate(lines):
        for other in lines:
            for mark in (b',"task_id"', b',"payload"', b',"orchestration_id"', b',"log"'):
                head, tail = line[: line.find(mark)], other[other.find(mark) :]
                if line.find(mark) > 0 and other.find(mark) > 0:
                    yield "splice", b"".join([*lines[:one], head + tail, *lines[one + 1 :]])
        for cut in range(1, len(line) - 1, 7):
            yield "stub", b"".join([*lines[:one], line[:cut] + line, *lines[one + 1 :]])
            yield "half", b"".join([*lines[:one], line[:cut] + b"\n", *lines[one + 1 :]])
        yield "member", b"".join([*lines[:one], line.replace(b'"attempt":1', b'"attempt":2'), *lines[one + 1 :]])


def two_writers(lines: list[bytes], rng: random.Random) -> Iterator[Corrupted]:
    """A second writer's lines among the first one's: another run, the same run from the same line on, unsealed ones."""
    count = len(lines)
    plain = plain_stream(rng, count + 3)
    for fork in range(1, count):
        proof = read_proof(lines[fork - 1])
        assert proof is not None
        fork_plain = [line.replace(b'"task_id":"t', b'"task_id":"other') for line in plain[fork : count + 2]]
        for other in (
            continue_stream(fork_plain, fork, proof.xxh3, {0}),
            sealed_stream(rng, 3, "another"),
            [line + b"\n" for line in fork_plain],
        ):
            for _ in range(4):
                yield "mixed", b"".join([*lines[:fork], *_interleaved(lines[fork:], other, rng)])


def _interleaved(one: list[bytes], other: list[bytes], rng: random.Random) -> list[bytes]:
    one, other, mixed = list(one), list(other[: max(1, rng.randint(1, len(other)))]), []
    mixed.append(other.pop(0))
    while one or other:
        mixed.append((one if one and (not other or rng.random() < 0.5) else other).pop(0))
    return mixed


def at_random(lines: list[bytes], rng: random.Random, count: int) -> Iterator[Corrupted]:
    """Two to five faults at once."""
    for _ in range(count):
        content = b"".join(lines)
        for _ in range(rng.randint(2, 5)):
            content = _one_fault(content, rng)
        yield "several", content


def _one_fault(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content)) if content else 0
    end = min(len(content), start + rng.choice((1, 1, 3, 17, 64, 400)))
    middle = content[start:end]
    choice = rng.randrange(6)
    if choice == 0:
        return content[:start] + rng.randbytes(len(middle)) + content[end:]
    if choice == 1:
        return content[:start] + b"\0" * len(middle) + content[end:]
    if choice == 2:
        return content[:start] + content[end:]
    if choice == 3:
        return content[:end] + middle + content[end:]
    lines = content.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    if choice == 4:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines.insert(one, lines[other])
    return b"\n".join(lines)


# -- judging


class Campaign:
    """Counts by kind of corruption: tried; then one of seen, harmless (what is read is the same), tail, missed.

    Of a sealed stream also: used (a record that was not in it is read, and something is reported), passed (a whole
    line of it is not read), elsewhere (the first error is not at the first changed line). With one fault, the last two
    are wrong; with several, or two writers, they are counted only: a line may rightly count as another's there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / STREAM_NAME
        self.lock = folder / LOCK_NAME
        self.counts: dict[str, Counter[str]] = {}
        self.failures: list[str] = []

    def run(self, lines: list[bytes], corrupted: Iterator[Corrupted], *, sealed: bool, witness: bool = False) -> None:
        """Judge corruptions of a stream; with `witness` the lock file says that all of it was on stable storage."""
        whole = b"".join(lines)
        self._write_witness(lines if witness else [])
        for kind, content in corrupted:
            if content != whole:
                self._judge(kind, lines, whole, content, sealed, witness)

    def _write_witness(self, lines: list[bytes]) -> None:
        self.lock.unlink(missing_ok=True)
        proof = read_proof(lines[-1]) if lines else None
        if proof is not None:
            slot = render_slot(Mark(proof.seq, sum(map(len, lines)), proof.xxh3))
            self.lock.write_bytes(render_writer({"id": "w"}).ljust(slot_offset(0)) + slot)

    def _judge(self, kind: str, lines: list[bytes], whole: bytes, content: bytes, sealed: bool, witness: bool) -> None:
        self.path.write_bytes(content)
        found = scan(self.path)
        texts = [line.rstrip(b"\n") for block in found.blocks() for line in block.lines]
        errors = [finding for finding in found.findings if VERDICTS[finding.code] == "error"]
        counts = self.counts.setdefault(kind, Counter())
        counts["tried"] += 1
        counts[self._outcome(lines, content, texts, bool(errors), found.tail.torn_bytes)] += 1
        lines_add_up = found.lines.read == found.lines.kept + found.lines.damaged + found.lines.blank
        self._expect(lines_add_up and found.lines.read == content.count(b"\n"), "lines add up", kind, content)
        if not sealed:
            return
        allowed = {line.rstrip(b"\n") for line in lines}
        invented = [text for text in texts if text not in allowed]
        explained = {"unsealed_line", "chain_break", "gap", "repeated", "glued_line"} & found.verdicts.keys()
        self._expect(not invented or bool(explained), "what is changed is not used in silence", kind, content)
        counts["used"] += bool(invented)
        ended = content[: content.rfind(b"\n") + 1]  # what has no newline yet is a tail, whole or not
        missing = [line for line in allowed if line in ended and line not in texts]
        counts["passed"] += bool(missing)
        pairs = enumerate(zip(content, whole, strict=False))
        first = next((at for at, (a, b) in pairs if a != b), min(len(content), len(whole)))
        start = content.rfind(b"\n", 0, first) + 1
        place = errors[0].offset or 0 if errors else start
        named = start <= place <= start + 1  # a newline put in front of a line makes a blank one
        counts["elsewhere"] += not named and not witness
        if kind not in ("several", "mixed"):
            self._expect(not missing, f"{len(missing)} whole lines are passed over", kind, content)
            self._expect(named or witness, f"first at {place}, changed at {first}", kind, content)

    def _outcome(self, lines: list[bytes], content: bytes, texts: list[bytes], errors: bool, torn: int) -> str:
        if errors:
            return "seen"
        originals = [line.rstrip(b"\n") for line in lines]
        if texts == originals:
            return "harmless"
        good = len(texts)
        if texts == originals[:good] and b"".join(lines).startswith(b"".join(lines[:good])):
            return "tail"  # whole lines missing at the very end, or a torn one: nothing contradicts
        self.failures.append(f"missed: {content!r}")
        return "missed"

    def _expect(self, holds: bool, promise: str, kind: str, content: bytes) -> None:
        if not holds:
            self.counts[kind]["wrong"] += 1
            self.failures.append(f"{kind}: {promise}: {content!r}")

    def total(self, name: str) -> int:
        """How many of an outcome in all kinds."""
        return sum(counts[name] for counts in self.counts.values())

    def table(self) -> str:
        """The counts, one row a kind."""
        columns = ("tried", "seen", "harmless", "tail", "missed", "used", "passed", "elsewhere", "wrong")
        rows: list[tuple[str, ...]] = [("kind", *columns)]
        rows += [(kind, *(str(counts[name]) for name in columns)) for kind, counts in sorted(self.counts.items())]
        rows.append(("all", *(str(self.total(name)) for name in columns)))
        return "\n".join("".join(cell.ljust(10) for cell in row).rstrip() for row in rows)


def sealed_campaign(folder: Path, seed: int, random_faults: int, *, lines: int = 5) -> Campaign:
    """Everything above on a sealed stream, without a witness; then with one, where no tail goes unseen either."""
    rng = random.Random(seed)
    campaign = Campaign(folder)
    stream = sealed_stream(rng, lines, sessions=2)
    for corrupted in (
        every_byte(b"".join(stream)),
        every_line(stream),
        every_splice(stream),
        two_writers(stream, rng),
        at_random(stream, rng, random_faults),
    ):
        campaign.run(stream, corrupted, sealed=True)
    return campaign


def witnessed_campaign(folder: Path, seed: int, *, lines: int = 4) -> Campaign:
    """Every cut and every lost line of a stream that is known to have been on stable storage."""
    rng = random.Random(seed)
    campaign = Campaign(folder)
    stream = sealed_stream(rng, lines)
    content = b"".join(stream)
    cuts = (("cut", content[:length]) for length in range(len(content)))
    zeros = (("zeros", content[:length].ljust(len(content), b"\0")) for length in range(len(content)))
    for corrupted in (cuts, zeros, every_line(stream)):
        campaign.run(stream, corrupted, sealed=True, witness=True)
    return campaign


def plain_campaign(folder: Path, seed: int, random_faults: int, *, lines: int = 5) -> Campaign:
    """The same corruptions of lines without proof: what is seen is what is no event any more."""
    rng = random.Random(seed)
    campaign = Campaign(folder)
    stream = [line + b"\n" for line in plain_stream(rng, lines)]
    for corrupted in (every_byte(b"".join(stream)), every_line(stream), at_random(stream, rng, random_faults)):
        campaign.run(stream, corrupted, sealed=False)
    return campaign


def main() -> int:
    """Run all three, print their counts, and give 1 where a sealed stream's promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--random", type=int, default=20_000, help="how many random corruptions of several faults")
    parser.add_argument("--lines", type=int, default=5)
    options = parser.parse_args()
    started = time.monotonic()
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        sealed = sealed_campaign(Path(folder), options.seed, options.random, lines=options.lines)
        witnessed = witnessed_campaign(Path(folder), options.seed)
        plain = plain_campaign(Path(folder), options.seed, options.random, lines=options.lines)
    for name, campaign in (("sealed", sealed), ("sealed, with a witness", witnessed), ("without proof", plain)):
        print(f"# {name}\n{campaign.table()}\n")
    print(f"seed {options.seed}, {time.monotonic() - started:.0f} s")
    failures = [*sealed.failures, *witnessed.failures]
    for words in failures[:20]:
        print(words)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
