"""Values from files as a column can hold them: text that UTF-8 has a form for, whole numbers of 64 bits, JSON text."""

import math
from typing import Any

from eventstore.format import codec
from projections.timeline.rows import JsonText, as_float, as_int, safe_text

__all__ = ["as_float", "as_int", "float_text", "is_beyond", "json_text", "key_text", "text"]

text = safe_text


def key_text(run_key: str) -> str:
    """Return a run key or a path as SQL can hold it: bytes of a name that are no UTF-8 become visible escapes."""
    return run_key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_beyond(value: Any) -> bool:
    """Return whether a value is a whole number that 64 bits can't hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return as_int(value) is None and (isinstance(value, int) or value.is_integer())


def json_text(value: Any) -> JsonText | None:
    """Return a value as compact JSON text; None for null. NaN and infinities are spelled as Python spells them."""
    return None if value is None else codec.dump_compact(value, default=str).decode("utf-8")


def float_text(value: Any) -> str | None:
    """Return a number or boolean as the text of a number, NaN and infinities included; None for anything else."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, int | float):
        return None
    number = as_float(value)
    if math.isnan(number):
        return "nan"
    return repr(number) if math.isfinite(number) else ("inf" if number > 0 else "-inf")
