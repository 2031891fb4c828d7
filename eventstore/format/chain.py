"""The chain of sealed lines: which number and digest must come next, and what it means when something else does.

A table of what can be seen at a sealed line that proves itself (`seq` expected is n, its predecessor's digest is d):

| seq | prev | damaged lines before it | verdict |
|---|---|---|---|
| n | d | any | follows |
| n | other | none | chain_break: the line before is not the one it was written after |
| n | other | some | follows: what stood between is gone, and reported where it stood |
| n + k | any | k or more | follows: the damaged lines are the missing ones |
| n + k | any | fewer than k | gap: lines are missing |
| below n, was missing | any | any | chain_break: lines stand in another order; the line is used |
| below n, was there | any | any | repeated: the line is not used again |
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from .seal import NO_PREDECESSOR


class Link(Struct, frozen=True):
    """A sealed line's number and digest."""

    seq: int
    xxh3: str


class ChainVerdict(Struct, frozen=True):
    code: str
    message: str


class Break(Struct, frozen=True):
    """A place where the chain doesn't go on: between which two lines, as a `stream_repaired` record names it.

    Numbers from `first_seq` to `last_seq` are missing (none, where `last_seq` is smaller). `follows` is the digest of
    the line before, or empty for unsealed lines that no session vouches for; `resumes_prev` is what the line with
    number `resumes_seq` says of its predecessor.
    """

    code: str
    first_seq: int
    last_seq: int
    follows: str
    resumes_seq: int
    resumes_prev: str


class Chain:
    """State of the check along one stream. `last` is the line with the highest number so far.

    `breaks` has what was reported as gap or chain_break, by the number of the line where the chain goes on;
    `displaced` the numbers of lines that stand after a later one.
    """

    def __init__(self, last: Link | None = None) -> None:
        self.last = last
        self.unsealed = 0
        self._damaged = 0
        self._missing: list[tuple[int, int]] = []
        self._start: Link | None = None
        self.breaks: dict[int, Break] = {}
        self.displaced: set[int] = set()

    @classmethod
    def resume(cls, last: Link | None, start: Link | None, unsealed: int) -> "Chain":
        """The chain after a part without damage, from what its `last`, `start` and `unsealed` were at the end."""
        chain = cls(last)
        chain._start, chain.unsealed = start, unsealed
        return chain

    @property
    def start(self) -> Link | None:
        """The end of the unsealed lines that the first session vouches for, None where there are none."""
        return self._start

    def note_damage(self) -> None:
        """A damaged line stood here: it may be the one that a later number misses."""
        self._damaged += 1

    def note_unsealed(self) -> None:
        """A line without proof stood here."""
        self.unsealed += 1

    @property
    def settled(self) -> bool:
        """True where nothing stands between the last sealed line and here that a later line might explain."""
        return self._damaged == 0 and not self._missing

    def advance(self, last: Link) -> None:
        """A whole block was checked and follows."""
        self.last = last
        self._damaged = 0

    def adopt(self, adopted: dict[str, Any], offset: int, lines: int, digest: Callable[[], str]) -> None:
        """The first session found unsealed lines and vouches for them; believed only where they are still the same."""
        claimed = (adopted.get("bytes"), adopted.get("lines"))
        if claimed == (offset, lines) and adopted.get("xxh3") == digest():
            self._start = Link(lines - 1, str(adopted["xxh3"]))
        self.unsealed = 0 if self._start is not None else self.unsealed

    def judge(self, link: Link, prev: str) -> ChainVerdict | None:
        """Return what a sealed line that proves itself means here; the state moves on."""
        verdict = self._judge_first(link, prev) if self.last is None else self._judge_next(self.last, link, prev)
        if self.last is not None and link.seq <= self.last.seq:
            if verdict is not None and verdict.code == "chain_break":
                self.displaced.add(link.seq)
            return verdict
        if verdict is not None:
            self._note_break(verdict.code, link, prev)
        self.last = link
        self._damaged = 0
        return verdict

    def _note_break(self, code: str, link: Link, prev: str) -> None:
        before, follows = self.last or self._start, NO_PREDECESSOR
        if before is not None:
            follows = before.xxh3
        elif self.unsealed:
            follows = ""
        first = before.seq + 1 if before is not None else 0
        self.breaks[link.seq] = Break(code, first, link.seq - 1, follows, link.seq, prev)

    def _judge_first(self, link: Link, prev: str) -> ChainVerdict | None:
        if self._start is None and self.unsealed:
            return self._judge_unvouched(link)
        return self._judge_next(self._start or Link(-1, NO_PREDECESSOR), link, prev)

    def _judge_unvouched(self, link: Link) -> ChainVerdict | None:
        """Unsealed lines stand before the first sealed one, and they are not what its session says."""
        missing = link.seq - self.unsealed
        if not self._damaged or missing < 0:
            return ChainVerdict("chain_break", "the lines before it are not those that its session found")
        if missing <= self._damaged:
            return None
        return ChainVerdict("gap", f"{missing} of the {link.seq} lines before it are missing")

    def _judge_next(self, last: Link, link: Link, prev: str) -> ChainVerdict | None:
        skipped = link.seq - last.seq - 1
        if skipped < 0:
            return self._judge_earlier(link)
        if skipped == 0:
            if prev == last.xxh3 or self._damaged:
                return None
            return ChainVerdict("chain_break", f"it was written after a line with digest {prev}, not {last.xxh3}")
        if skipped > 0:
            self._missing.append((last.seq + 1, link.seq - 1))
        if skipped <= self._damaged:
            return None
        return ChainVerdict("gap", f"seq {link.seq} follows {last.seq}: {skipped} lines are missing")

    def _judge_earlier(self, link: Link) -> ChainVerdict:
        for index, (first, last) in enumerate(self._missing):
            if first <= link.seq <= last:
                self._missing[index : index + 1] = [
                    part for part in ((first, link.seq - 1), (link.seq + 1, last)) if part[0] <= part[1]
                ]
                return ChainVerdict("chain_break", f"seq {link.seq} stands after a later line")
        return ChainVerdict("repeated", f"seq {link.seq} was there before")

    def account_for(self, removed: object, *, vouched: bool) -> list[Break]:
        """Take back the breaks that a `stream_repaired` record explains, exactly as it names them; which those are.

        `removed` is a list of objects with the members of `Break`. Breaks after unsealed lines count as explained only
        where these are `vouched` for.
        """
        parts = [part for part in removed if isinstance(part, dict)] if isinstance(removed, list) else []
        explained = []
        for part in parts:
            seq = part.get("resumes_seq")
            known = self.breaks.get(seq) if isinstance(seq, int) else None
            if known is not None and _names(part, known) and (known.follows or vouched):
                explained.append(self.breaks.pop(known.resumes_seq))
        return explained


def _names(part: dict[str, Any], known: Break) -> bool:
    names = ("first_seq", "last_seq", "follows", "resumes_seq", "resumes_prev")
    return all(part.get(name) == getattr(known, name) for name in names)
