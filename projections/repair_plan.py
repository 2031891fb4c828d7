"""What repairing a stream would do: which bytes are kept, which are set aside, and each step in words. Pure.

The plan is made from what `scan` found. Whole lines and whole records inside glued lines are kept byte for byte;
everything else is set aside. Nothing is invented and nothing kept is changed.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from eventstore.format.records import Finding

Action: TypeAlias = Literal["set_aside", "cut", "split", "drop", "move", "account", "vouch", "accept_loss"]

ACTIONS: dict[str, Action] = {
    "torn_tail": "cut",
    "lost_acknowledged": "accept_loss",
    "corrupt_line": "set_aside",
    "glued_line": "split",
    "digest_mismatch": "set_aside",
    "chain_break": "account",
    "gap": "account",
    "repeated": "drop",
    "foreign_run": "set_aside",
    "unsealed_line": "vouch",
}
"""What is done about each verdict that is no mere remark; a displaced line's `chain_break` becomes a move."""

_REMOVED = frozenset({"torn_tail", "corrupt_line", "digest_mismatch", "repeated", "foreign_run"})
_WORDS: dict[Action, str] = {
    "set_aside": "set aside",
    "cut": "cut off and set aside",
    "split": "keep the whole records, set the rest aside",
    "drop": "keep the first, set this one aside",
    "move": "put back to its place",
    "account": "note in the stream what is missing",
    "vouch": "keep, and note that nothing proves it",
    "accept_loss": "go on without what was promised",
}


class Piece(Struct, frozen=True):
    """Bytes of the damaged stream that are kept; `newline` tells that one has to be added."""

    start: int
    end: int
    newline: bool = False


class Step(Struct, frozen=True, kw_only=True):
    """One thing that repair does, with its place in the damaged stream and the reason."""

    action: Action
    code: str
    message: str
    offset: int | None = None
    length: int | None = None
    line: int | None = None
    seq: int | None = None


class Layout(Struct, frozen=True):
    """The kept pieces in the order in which they are written, the ranges set aside, and the steps."""

    pieces: list[Piece]
    aside: list[tuple[int, int]]
    steps: list[Step]


def lay_out(
    findings: Sequence[Finding], salvaged: Sequence[tuple[int, int]], size: int, displaced: frozenset[int] = frozenset()
) -> Layout:
    """Return what becomes of a stream of `size` bytes with these findings, in file order.

    `salvaged` are the ranges of whole records inside glued lines, `displaced` the numbers of lines that stand after a
    later one. Lines are not moved here: see `in_order`.
    """
    pieces: list[Piece] = []
    aside: list[tuple[int, int]] = []
    steps: list[Step] = []
    position, next_salvaged = 0, 0
    for finding in findings:
        if finding.code not in ACTIONS:
            continue
        steps.append(_step(finding, finding.seq in displaced))
        start, length = finding.offset or 0, finding.length or 0
        if start < position or finding.code not in (*_REMOVED, "glued_line"):
            continue  # inside a glued line that was dealt with, or nothing to remove
        if start > position:
            pieces.append(Piece(position, start))
        position = start + length
        if finding.code != "glued_line":
            aside.append((start, position))
            continue
        while next_salvaged < len(salvaged) and salvaged[next_salvaged][0] < position:
            first, last = salvaged[next_salvaged]
            if first > start:
                aside.append((start, first))
            pieces.append(Piece(first, last, newline=True))
            start, next_salvaged = last, next_salvaged + 1
        if start < position - 1:  # the line's own newline is nothing to keep
            aside.append((start, position))
    if position < size:
        pieces.append(Piece(position, size))
    return Layout(pieces, aside, steps)


def _step(finding: Finding, displaced: bool) -> Step:
    action = "move" if displaced and finding.code == "chain_break" else ACTIONS[finding.code]
    return Step(
        action=action,
        code=finding.code,
        message=f"{finding.message}: {_WORDS[action]}",
        offset=finding.offset,
        length=finding.length,
        line=finding.line,
        seq=finding.seq,
    )


class Row(Struct, frozen=True):
    """An accepted line for ordering: where it stands, and its number if it is sealed."""

    start: int
    end: int
    seq: int | None
    newline: bool


def in_order(rows: Iterable[Row]) -> list[Piece]:
    """Return the pieces of a stream whose sealed lines stand in another order, by their numbers.

    A line without a number stays behind the one that it stands behind now.
    """
    runs: list[tuple[int, Piece]] = []
    key = last = -1
    for row in rows:
        follows = row.seq is None or row.seq == last + 1
        last = row.seq if row.seq is not None else last
        if runs and follows and runs[-1][1].end == row.start and not runs[-1][1].newline and not row.newline:
            runs[-1] = (key, Piece(runs[-1][1].start, row.end))
            continue
        key = last
        runs.append((key, Piece(row.start, row.end, row.newline)))
    return [piece for _, piece in sorted(runs, key=lambda run: run[0])]
