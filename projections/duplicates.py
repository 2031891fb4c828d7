"""Lines that name one member of the envelope twice: readers differ in which value they take.

Cheap on lines as AgentCompass writes them: eight names stand before the payload, and what follows it is the same on
every line of a stream. Only a line that looks otherwise is parsed. A sealed line proves that it is as written.
"""

from eventstore import codec
from eventstore.records import Block

from .noting import Notes, Place

_NAME, _PAYLOAD = b'":', b'"payload"'
_MEMBERS_BEFORE_PAYLOAD = 8
_TAIL_STARTS = (b', "orchestration_id"', b',"orchestration_id"')


class DuplicateKeys:
    """The check along one stream."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._tail = self._empty = b""
        self._end = 0

    def apply_block(self, block: Block, *, sealed: bool = False) -> None:
        """Check a batch of records."""
        if sealed:
            return
        if not self._tail:
            self._learn(block.lines[0])
        tail, empty, end = self._tail, self._empty, self._end
        for index, line in enumerate(block.lines):
            if line.endswith(empty):
                if line.count(_NAME, 0, end) == _MEMBERS_BEFORE_PAYLOAD:
                    continue
            elif line.count(_NAME, 0, line.find(_PAYLOAD)) == _MEMBERS_BEFORE_PAYLOAD and line.endswith(tail):
                continue
            self._look(block, index)

    def _learn(self, line: bytes) -> None:
        """What follows the payload, and an empty payload with it; nothing matches where the first line hasn't it."""
        starts = [start for name in _TAIL_STARTS if (start := line.rfind(name)) > 0]
        self._tail = line[min(starts) :] if starts and not codec.duplicate_keys(line) else b"\0"
        self._empty = (b'"payload": {}' if b'"payload": ' in line else b'"payload":{}') + self._tail
        self._end = -len(self._empty)

    def _look(self, block: Block, index: int) -> None:
        line = block.lines[index]
        for name in codec.duplicate_keys(line):
            task_id = block.heads[index].task_id
            words = f"{name[:80]} stands twice in one object"
            self._notes.add("duplicate_key", words, Place(block, index), task_id=task_id)

