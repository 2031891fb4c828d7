"""The request of a stored run: `run_info.json.request` first, filled in from `params.json`.

That is how AgentCompass 1.0.1 regenerates a summary (specification, "params.json"): objects are merged member by
member, except the benchmark's parameters, which are taken whole from the first file that has them.
"""

from pathlib import Path
from typing import Any

from msgspec import Struct

from eventstore.format.events import Json

from .directory import PARAMS_NAME, RUN_INFO_NAME, StoredFile, read_json_file


class StoredRequest(Struct, frozen=True):
    """The merged request of a run, and the two files it came from; `problems` tells in words what couldn't be read."""

    request: Json
    run_info: StoredFile
    params: StoredFile
    problems: list[str]

    @property
    def benchmark_id(self) -> str:
        """The benchmark's id, or ""."""
        return str(section(self.request, "benchmark").get("id") or "").strip()

    @property
    def attempt_plan(self) -> Json:
        """`execution.attempts`, {k, strategy} as stored, or an empty object."""
        return section(section(self.request, "execution"), "attempts")


def read_request(run_dir: Path) -> StoredRequest:
    """Return the request of a run directory; never raises for what the files hold."""
    return request_in(read_json_file(run_dir / RUN_INFO_NAME), read_json_file(run_dir / PARAMS_NAME))


def request_in(run_info: StoredFile, params: StoredFile) -> StoredRequest:
    """Return what `read_request` returns, from files already read."""
    problems = [f"{file.path.name} {file.problem}" for file in (run_info, params) if file.problem]
    request = section(run_info.members, "request")
    return StoredRequest(merge_request(request, params.members or {}), run_info, params, problems)


def merge_request(request: Json, params: Json) -> Json:
    """Return `request` with what it lacks taken from `params`."""
    merged: Json = dict(request)
    for name, value in params.items():
        if name not in merged:
            merged[name] = value
        elif isinstance(merged[name], dict) and isinstance(value, dict):
            whole = name == "benchmark" and isinstance(merged[name].get("params"), dict)
            merged[name] = _fill(merged[name], {**value, "params": {}} if whole else value)
    return merged


def _fill(first: Json, second: Json) -> Json:
    filled = dict(first)
    for name, value in second.items():
        if name not in filled:
            filled[name] = value
        elif isinstance(filled[name], dict) and isinstance(value, dict):
            filled[name] = _fill(filled[name], value)
    return filled


def section(members: Any, name: str) -> Json:
    """Return a member that should be an object, as one: empty where it is missing or something else."""
    value = members.get(name) if isinstance(members, dict) else None
    return value if isinstance(value, dict) else {}
