"""The real AgentCompass, where an interpreter that has it is named by COMPASS_ES_AGENTCOMPASS_PYTHON."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("COMPASS_ES_AGENTCOMPASS_PYTHON", "")
PROGRAM = Path(__file__).parent / "agentcompass_program.py"
needs_agentcompass = pytest.mark.agentcompass
"""Skips a test where no such interpreter is named, and fails it with --no-skips (tests/conftest.py)."""


def agentcompass(*arguments: object, expect: int = 0, **environment: str) -> Any:
    """Run tests/tools/agentcompass_program.py there; what it printed last, as JSON (None where it ended itself)."""
    names = ("PATH", "HOME", "LANG", "TMPDIR")
    clean = {name: os.environ[name] for name in names if name in os.environ} | environment
    done = subprocess.run(
        [PYTHON, PROGRAM, *map(str, arguments)], capture_output=True, text=True, env=clean, check=False, timeout=120
    )
    assert done.returncode == expect, done.stderr[-4000:]
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines and expect == 0 else None
