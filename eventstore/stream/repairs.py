"""What a `stream_repaired` record answers for: breaks of the chain, lines without proof, a mark that no longer holds.

The record's payload (docs/repair.md, "The record"): `removed` lists the breaks; `vouched` is the range of bytes, with
its digest, in which lines without proof were kept; `mark` is the mark that the repaired stream replaces. A record is
believed only where everything it names is exactly as it says, so damage that came later is seen.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from eventstore.format.chain import Chain
from eventstore.format.records import Finding

from .lock_file import Mark


class Explained(Struct, frozen=True):
    """Findings that a repair accounts for: `breaks` (code, number), and lines without proof from `start` to `end`."""

    breaks: frozenset[tuple[str, int | None]]
    start: int
    end: int
    counts: Counter[str]

    def covers(self, finding: Finding) -> bool:
        """Return whether a finding is one of them."""
        if finding.code == "unsealed_line":
            return finding.offset is not None and self.start <= finding.offset < self.end
        return (finding.code, finding.seq) in self.breaks


class Accounts:
    """Along one stream: offsets of lines without proof, and the marks that repairs replaced."""

    def __init__(self) -> None:
        self.unsealed: list[int] = []
        self.superseded: set[Mark] = set()

    def take(self, payload: dict[str, Any], chain: Chain, digest: Callable[[int, int], str]) -> Explained:
        """Read a repair's payload; `digest(start, end)` is that of the stream's bytes."""
        start, end = _vouched_range(payload.get("vouched"), digest)
        breaks = chain.account_for(payload.get("removed"), vouched=start == 0 < end)
        first, last = bisect_left(self.unsealed, start), bisect_left(self.unsealed, end)
        counts = Counter(known.code for known in breaks)
        if last > first:
            counts["unsealed_line"] = last - first
            del self.unsealed[first:last]
        with suppress(msgspec.ValidationError):
            self.superseded.add(msgspec.convert(payload.get("mark"), Mark))
        return Explained(frozenset((known.code, known.resumes_seq) for known in breaks), start, end, counts)


def _vouched_range(vouched: Any, digest: Callable[[int, int], str]) -> tuple[int, int]:
    if not isinstance(vouched, dict):
        return 0, 0
    start, length = vouched.get("offset"), vouched.get("bytes")
    if not (isinstance(start, int) and isinstance(length, int) and 0 <= start < start + length):
        return 0, 0
    return (start, start + length) if digest(start, start + length) == vouched.get("xxh3") else (0, 0)
