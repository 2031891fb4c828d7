"""A result.json that holds no result, under a final state: AgentCompass scores such a task again, nothing keeps it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.operations.reuse.plan import plan_like_source
from eventstore.operations.verify.verify import verify_run
from eventstore.run.directory import RunDir


@pytest.mark.parametrize(("text", "code"), [("{}", "result_file"), ('{"retry_count": 0}', "result_missing")])
def test_a_result_without_a_result_is_not_finished(text: str, code: str, run_dir: Callable[[str], Path]) -> None:
    """`verify` has an error, and reuse runs the task again."""
    run = run_dir("r_ok")
    next(run.glob("details/normal/*/attempt-1/result.json")).write_text(text)
    assert code in verify_run(RunDir(run, "r_ok")).counts
    plan = plan_like_source(run)
    assert len(plan.reused) == 3 and plan.total_tasks == 4
