"""Small streams for tests: sealed ones made with the library's own seal, and pieces of recorded ones."""

from collections.abc import Sequence
from typing import Any

from eventstore.format import codec
from eventstore.format.events import ENVELOPE
from eventstore.format.seal import NO_PREDECESSOR, seal


def plain_line(number: int, run_id: str = "r", **changes: Any) -> bytes:
    """A compact line without a newline; `number` tells its task and its time."""
    members: dict[str, Any] = dict.fromkeys(ENVELOPE)
    members |= {
        "run_id": run_id,
        "event": "phase_changed",
        "timestamp": 1000.5 + number,
        "task_id": f"t{number}",
        "phase": "plan",
        "payload": {},
    }
    return codec.dump_compact(members | changes)


def sealed_lines(plain: Sequence[bytes], seq: int = 0, prev: str = NO_PREDECESSOR, session: bytes = b"") -> list[bytes]:
    """The lines sealed in a chain; `session` opens the first one."""
    lines = []
    for number, line in enumerate(plain):
        text, prev = seal(line, seq + number, prev, session if number == 0 else b"")
        lines.append(text)
    return lines


def sealed_stream(count: int, **changes: Any) -> list[bytes]:
    """`count` sealed lines of one session."""
    return sealed_lines([plain_line(number, **changes) for number in range(count)], session=b'"writer":{"id":"w"},')
