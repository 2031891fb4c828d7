"""run_info.json in pieces: the bytes of `run_info.render`, made step by step.

A run of many thousand attempts has tens of megabytes of plans; rendering them in one call would hold the interpreter,
and with it every other thread, for as long.
"""

from collections.abc import Iterator
from typing import Any

from eventstore.format import codec
from eventstore.format.events import Json

_BIG = ("resolved_execution_plans",)


def pretty_pieces(info: Json) -> Iterator[bytes]:
    """What `codec.dump_pretty(info, sort_keys=True)` gives, with a piece of its own for each task's plans."""
    opening = b"{\n"
    for name, value in sorted(info.items()):
        yield opening + b"  " + codec.dump_compact(name) + b": "
        if name in _BIG and isinstance(value, dict) and value:
            yield from _members(value)
        else:
            yield _indented(value, b"  ")
        opening = b",\n"
    yield b"{}\n" if not info else b"\n}\n"


def _members(value: Json) -> Iterator[bytes]:
    opening = b"{\n"
    for name, item in sorted(value.items()):
        yield opening + b"    " + codec.dump_compact(name) + b": " + _indented(item, b"    ")
        opening = b",\n"
    yield b"\n  }"


def _indented(value: Any, margin: bytes) -> bytes:
    # A newline in JSON text is always layout: inside a string it is an escape.
    return codec.dump_pretty(value, sort_keys=True)[:-1].replace(b"\n", b"\n" + margin)
