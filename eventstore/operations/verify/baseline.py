"""Baseline files for `verify`: findings that are known and accepted, so that a pipeline fails only for new ones.

One line a finding, so that a baseline can be read, reviewed and merged as text:

    {"code":"task_in_flight","run_key":"k/r_1","file":"progress.jsonl","task_id":"t","attempt":1,"message":"…"}

Offsets and lines are no part of it: they move when a file grows. A finding that stands twice is known twice.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from eventstore.errors import InputError
from eventstore.format.records import Finding
from eventstore.run.output_path import check_output_file
from eventstore.stream.atomic_file import replace_file


def fingerprint(finding: Finding, run_path: str) -> str:
    """Return the line of a finding in a baseline. Independent of where the history lies."""
    file = os.path.relpath(finding.file, run_path) if finding.file else ""
    members = {
        "code": finding.code,
        "run_key": finding.run_key,
        "file": file,
        "task_id": finding.task_id,
        "attempt": finding.attempt,
        "message": finding.message,
    }
    return json.dumps(members, ensure_ascii=True, separators=(",", ":"))


def read_baseline(path: Path) -> Counter[str]:
    """Return the findings of a baseline. Raises InputError if it can't be read or a line is none."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: the baseline can't be read: {why}", path) from None
    lines: Counter[str] = Counter()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            members = json.loads(line)
            lines[json.dumps(members, ensure_ascii=True, separators=(",", ":"))] += 1
        except (ValueError, RecursionError):
            raise InputError(f"{path}: line {number} of the baseline is no finding", path) from None
    return lines


def write_baseline(path: Path, lines: Iterable[str]) -> None:
    """Write a baseline, sorted. Raises OutputError if it can't be written, UsageError in place of any other file."""
    check_output_file(path, is_ours=_is_baseline)
    replace_file(path, "".join(f"{line}\n" for line in sorted(lines)).encode(), durable=True)


def _is_baseline(path: Path) -> bool:
    try:
        lines = read_baseline(path)
    except InputError:
        return False
    return all(isinstance(members := json.loads(line), dict) and "code" in members for line in lines)
