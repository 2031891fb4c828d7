"""Lines that name one member of the envelope twice: readers differ in which value they take.

Cheap on lines as AgentCompass writes them: eight names stand before the payload, and what follows it is the same on
every line of a stream. Only a line that looks otherwise is parsed. A sealed line proves that it is as written.
"""

from itertools import compress, repeat

from eventstore.format import codec
from eventstore.format.records import Block

from .findings import Notes, Place

_NAME, _PAYLOAD = b'":', b'"payload"'
_MEMBERS_BEFORE_PAYLOAD = 8
_USUAL = frozenset({_MEMBERS_BEFORE_PAYLOAD})


_TAIL_STARTS = (b', "orchestration_id"', b',"orchestration_id"')
_NONE = b"\0"


class Endings:
    """How lines of one stream end, learned from its first line, as AgentCompass writes it.

    `tail` is what follows the payload, `empty` an empty payload with it: bytes that no line has, where the first line
    is of another shape.
    """

    def __init__(self) -> None:
        self.tail = self.empty = b""

    def apply_block(self, block: Block) -> list[bool]:
        """For each line whether its payload is surely empty."""
        if not self.empty:
            self._learn(block.lines[0])
        return list(map(bytes.endswith, block.lines, repeat(self.empty)))

    def _learn(self, line: bytes) -> None:
        starts = [start for name in _TAIL_STARTS if (start := line.rfind(name)) > 0]
        self.tail = line[min(starts) :] if starts and not codec.duplicate_keys(line) else _NONE
        self.empty = (b'"payload": {}' if b'"payload": ' in line else b'"payload":{}') + self.tail


class DuplicateKeys:
    """The check along one stream."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def apply_block(self, block: Block, endings: Endings, empty: list[bool], filled: list[int]) -> None:
        """Check a batch of records: `empty` is what `endings` says of them, `filled` the indexes of the others."""
        lines, tail = block.lines, endings.tail
        end = -len(endings.empty)
        counts = map(bytes.count, compress(lines, empty), repeat(_NAME), repeat(0), repeat(end))
        if not _USUAL.issuperset(counts):
            for index in compress(range(len(lines)), empty):
                if lines[index].count(_NAME, 0, end) != _MEMBERS_BEFORE_PAYLOAD:
                    self._look(block, index)
        for index in filled:
            line = lines[index]
            start = line.find(_PAYLOAD)
            if line.count(_NAME, 0, start) != _MEMBERS_BEFORE_PAYLOAD or not line.endswith(tail):
                self._look(block, index)

    def _look(self, block: Block, index: int) -> None:
        line = block.lines[index]
        for name in codec.duplicate_keys(line):
            task_id = block.heads[index].task_id
            words = f"{name[:80]} stands twice in one object"
            self._notes.add("duplicate_key", words, Place(block, index), task_id=task_id)


# -- Which lines of a batch have a payload: most of a stream's lines have an empty one, and need no closer look
