"""Lines that name one member of the envelope twice: readers differ in which value they take.

Cheap on lines as AgentCompass writes them: before the payload stand eight members, and what follows the payload is the
same on every line of a stream. Only a line that looks otherwise is parsed. A sealed line proves that it is as written.
"""

from eventstore import codec
from eventstore.records import Block

from .noting import Notes, Place

_MEMBERS_BEFORE_PAYLOAD = 8
_TAIL_STARTS = (b', "orchestration_id"', b',"orchestration_id"')


class DuplicateKeys:
    """The check along one stream."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._tail: bytes | None = None

    def apply_block(self, block: Block, *, sealed: bool = False) -> None:
        """Check a batch of records."""
        if sealed:
            return
        if self._tail is None:
            self._tail = _learn_tail(block.lines[0])
        tail = self._tail
        for index, line in enumerate(block.lines):
            if line.count(b'":', 0, line.find(b'"payload"')) != _MEMBERS_BEFORE_PAYLOAD or not line.endswith(tail):
                self._look(block, index)

    def _look(self, block: Block, index: int) -> None:
        line = block.lines[index]
        for name in codec.duplicate_keys(line):
            task_id = block.heads[index].task_id
            words = f"{name[:80]} stands twice in one object"
            self._notes.add("duplicate_key", words, Place(block, index), task_id=task_id)


def _learn_tail(line: bytes) -> bytes:
    """What follows the payload of a line without repeated keys; nothing can match where it isn't there."""
    starts = [start for name in _TAIL_STARTS if (start := line.rfind(name)) > 0]
    return line[min(starts) :] if starts and not codec.duplicate_keys(line) else b"\0"
