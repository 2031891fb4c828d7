"""What rules write their findings to: severities from the catalogue, places from blocks, and a bound on memory."""

from collections import Counter
from typing import Any

from msgspec import Struct

from eventstore.format.records import Block, Finding
from eventstore.format.seal import read_proof

from .rules import RULES

MAX_FINDINGS_PER_CODE = 1000
"""Findings of one code that are kept for one run; all are counted."""


class Place(Struct, frozen=True, gc=False):
    """Where something stands in a stream: the block and the record's index in it; worked out only when asked for."""

    block: Block
    index: int

    def where(self) -> dict[str, Any]:
        """Return `offset`, `length`, `line` and, for a sealed line, `seq`, by the names that a finding has for them."""
        block, index = self.block, self.index
        line = block.lines[index]
        proof = read_proof(line)
        if block.offsets is not None and block.line_numbers is not None:
            offset, number = block.offsets[index], block.line_numbers[index]
        else:
            offset, number = block.offset + sum(map(len, block.lines[:index])), block.first_line + index
        return {"offset": offset, "length": len(line), "line": number, "seq": None if proof is None else proof.seq}


class Notes:
    """Findings of one run. `counts` has all of them by code, `findings` the first of each code."""

    def __init__(self, limit: int = MAX_FINDINGS_PER_CODE) -> None:
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._limit = limit

    def take(self, finding: Finding) -> None:
        """Note a finding that was made elsewhere; its severity stays."""
        self.counts[finding.code] += 1
        if self.counts[finding.code] <= self._limit:
            self.findings.append(finding)

    def add(
        self,
        code: str,
        message: str,
        place: Place | None = None,
        *,
        file: str = "",
        task_id: str | None = None,
        attempt: Any = None,
        offset: int | None = None,
        line: int | None = None,
    ) -> None:
        """Note one finding; its severity is the catalogue's. `file` is empty for the stream itself."""
        self.counts[code] += 1
        if self.counts[code] > self._limit:
            return
        where = place.where() if place is not None else {"offset": offset, "line": line}
        self.findings.append(
            Finding(
                code=code,
                severity=RULES[code].severity,
                message=message,
                file=file,
                task_id=task_id,
                attempt=attempt if isinstance(attempt, int) and not isinstance(attempt, bool) else None,
                **where,
            )
        )
