"""What a recording begins with: the `run_started` event of a new run, of one found, of a re-analysis; the secrets."""

import os
from collections.abc import Sequence
from datetime import datetime

from msgspec import UNSET

from eventstore.errors import UsageError
from eventstore.format import codec
from eventstore.format.events import Json, RunStarted, RunStartedPayload
from eventstore.redaction.redactor import redact, secret_environment_values

from .request import Request


def run_started(
    request: Request, run_id: str, reused_from: Json | None, secrets: Sequence[str], now: float
) -> RunStarted:
    """The first event of a new run; it holds all that `run_info.json` says of the beginning."""
    members: Json = {name: getattr(request, name).id for name in ("benchmark", "harness", "environment", "model")}
    members["request"] = request.record(secrets)
    members["started_at"] = datetime.fromtimestamp(now).astimezone().isoformat(timespec="seconds")
    if reused_from:
        members["reused_from"] = redact(reused_from, secrets)
    started = RunStarted(run_id=run_id, timestamp=now, payload=started_payload(members))
    try:
        codec.encode(started)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the request can't be written as JSON: {error}") from None
    return started


def stored_start(info: Json) -> RunStarted:
    """The first event of a run that has only its `run_info.json` so far."""
    members = _stored_ids(info)
    members |= {name: info[name] for name in ("request", "started_at", "reused_from") if info.get(name)}
    return RunStarted(payload=started_payload(members))


def analysis_started(info: Json, run_id: str) -> RunStarted:
    """The first event of a re-analysis, under the id of the evaluation."""
    return RunStarted(run_id=run_id, payload=started_payload(_stored_ids(info) | {"analysis": True}))


def _stored_ids(info: Json) -> Json:
    request = info.get("request")
    sections: Json = request if isinstance(request, dict) else {}
    ids = {name: sections.get(name) for name in ("benchmark", "harness", "environment", "model")}
    return {name: part.get("id") for name, part in ids.items() if isinstance(part, dict)}


def started_payload(members: Json) -> RunStartedPayload:
    """The typed payload with these members; ones that it doesn't name are kept."""
    known = {name: v for name, v in members.items() if name in RunStartedPayload.__struct_fields__}
    return RunStartedPayload(**known, **({"extra": members} if known.keys() != members.keys() else {"extra": UNSET}))


def secrets_of(request: Request) -> tuple[str, ...]:
    """Values to mask wherever they stand: this environment's, and the request's own key."""
    key = request.model.api_key
    own = (key,) if len(key) >= 8 and not key.startswith("${") else ()
    return secret_environment_values(os.environ) + own
