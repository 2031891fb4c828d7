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


class Chain:
    """State of the check along one stream. `last` is the line with the highest number so far."""

    def __init__(self, last: Link | None = None) -> None:
        self.last = last
        self.unsealed = 0
        self._damaged = 0
        self._missing: list[tuple[int, int]] = []
        self._start: Link | None = None

    def note_damage(self) -> None:
        """A damaged line stood here: it may be the one that a later number misses."""
        self._damaged += 1

    def note_unsealed(self) -> None:
        """A line without proof stood here."""
        self.unsealed += 1

    @property
    def settled(self) -> bool:
        """Whether nothing stands between the last sealed line and here that a later line might explain."""
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
        """What a sealed line that proves itself means here; the state moves on."""
        verdict = self._judge_first(link, prev) if self.last is None else self._judge_next(self.last, link, prev)
        if self.last is None or link.seq > self.last.seq:
            self.last = link
            self._damaged = 0
        return verdict

    def _judge_first(self, link: Link, prev: str) -> ChainVerdict | None:
        before = self._start or Link(-1, NO_PREDECESSOR)
        if self.unsealed and not self._damaged:
            return ChainVerdict("chain_break", "the lines before it are not those that its session found")
        return self._judge_next(before, link, prev)

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

    def accounted_for(self, repair: dict[str, Any]) -> set[int]:
        """Numbers of lines whose gap or break a `stream_repaired` record explains: they resume after what it removed.

        The record's `removed` is a list of `{"first_seq", "last_seq", "resumes_seq", "resumes_prev"}`.
        """
        removed = repair.get("removed")
        parts = removed if isinstance(removed, list) else []
        resumes = (part.get("resumes_seq") for part in parts if isinstance(part, dict))
        return {seq for seq in resumes if isinstance(seq, int)}
