"""Which lines of a batch have a payload: most of a stream's lines have an empty one, and need no closer look.

Shared by the folds that look into payloads, so that each line's end is looked at once.
"""

from itertools import repeat

from eventstore.format import codec
from eventstore.format.records import Block

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
