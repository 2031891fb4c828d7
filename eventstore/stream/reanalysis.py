"""Whether a stream without proofs is one that `agentcompass analysis` wrote in place of the evaluation's.

It deletes both progress files before it records (specification, "progress.jsonl"), in the run or in a copy of it, and
leaves the lock file of a run that we recorded: that witness is then about a stream that was removed on purpose.
"""

import os
import re

_STEP = 1024 * 1024
_OVERLAP = 256
_ANALYZES = re.compile(rb'"phase"\s*:\s*"analyze"')
_EVALUATES = re.compile(rb'"event"\s*:\s*"(?:reuse_loaded|attempt_started|attempt_finished|execution_plan_resolved)"')


def is_reanalysis(fd: int, length: int) -> bool:
    """Whether the first `length` bytes of an open stream hold the phase of an analysis and nothing of an evaluation."""
    found, offset = False, 0
    while offset < length and (data := os.pread(fd, min(_STEP + _OVERLAP, length - offset), offset)):
        if _EVALUATES.search(data):
            return False
        found = found or _ANALYZES.search(data) is not None
        offset += _STEP
    return found
