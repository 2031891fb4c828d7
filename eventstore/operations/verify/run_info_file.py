"""run_info.json read with its plans unparsed: of a run with thousands of attempts they are nearly all of the file."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from eventstore.errors import InputError
from eventstore.format.events import Json
from eventstore.run.json_files import read_bytes
from projections.verify.plans import TaskPlans

PLANS_MEMBER = "resolved_execution_plans"
_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_members_decoder = msgspec.json.Decoder(dict[str, Raw])
_plans_decoder = msgspec.json.Decoder(dict[str, TaskPlans])


class RunInfoFile(Struct, frozen=True):
    """The members but for the plans, the plans unparsed, and the size of the file in bytes."""

    members: Json
    plans: dict[str, TaskPlans] | None
    size: int


def read_run_info(path: Path) -> RunInfoFile | None:
    """The file in two parts; None where it is not there, odd or damaged, so that it must be read the slow way."""
    try:
        content = read_bytes(path)
        content.decode("utf-8")
        parts = _members_decoder.decode(content)
        plans = parts.pop(PLANS_MEMBER, None)
        members: dict[str, Any] = {name: msgspec.json.decode(part) for name, part in parts.items()}
        return RunInfoFile(members, None if plans is None else _plans_decoder.decode(plans), len(content))
    except (FileNotFoundError, InputError, *_REFUSALS):
        return None
