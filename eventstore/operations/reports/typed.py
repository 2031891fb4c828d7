"""From a document that was put together as an object to its struct."""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from eventstore.format.events import Json

R = TypeVar("R", bound=Struct)


def typed(document: Json, report: type[R]) -> R | Json:
    """Return the document as its struct.

    A document with values that no struct has, which damaged records may bring, is returned as it is: it is better seen
    than refused.
    """
    try:
        return msgspec.convert(document, report)
    except msgspec.ValidationError:
        return document


class Pair(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value on both sides of a comparison. Both are of one type, which depends on what is compared."""

    a: Any
    b: Any
