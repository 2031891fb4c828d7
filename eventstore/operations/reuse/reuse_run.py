"""A new run that reuses another, begun with the recorder: `reused_from` in its first event, `reuse_loaded` after.

    applied = reuse_into(plan, target_run)      # made where it is missing, else opened; left without a terminal event

A runner that has its recorder open calls `reuse_apply.apply_reuse` with `append=recorder.append` and
`save_plans=recorder.keep_plans` instead.
"""

from pathlib import Path

from eventstore.errors import RefusedError
from eventstore.format.events import Json, TasksLoaded, TasksLoadedPayload
from eventstore.recording.recorder import RunRecorder
from eventstore.recording.request import Request
from eventstore.run.directory import is_run_dir
from eventstore.run.request_record import read_request, section

from .apply import Applied, apply_reuse
from .plan import ReusePlan


def reuse_into(
    plan: ReusePlan,
    target_run: Path,
    *,
    request: Json | None = None,
    total_tasks: int | None = None,
    link: bool = True,
    durable: bool = True,
) -> Applied:
    """Begin (or open) `target_run` and bring over what the plan keeps.

    `request` of a new run defaults to the source's own, with `runtime.reuse` set. `total_tasks` defaults to the number
    that the source loaded. Raises RefusedError where the plan refuses its source, or the target has begun its tasks.
    """
    if plan.refusal is not None:
        raise RefusedError(f"{plan.source}: nothing can be reused: {plan.refusal}", plan.source)
    total = total_tasks if total_tasks is not None else plan.total_tasks
    recorder = _recorder(plan, target_run, request)
    try:
        if recorder.progress.get("attempts_started") or recorder.progress.get("reused_tasks"):
            raise RefusedError(f"{target_run}: its tasks have begun; results are reused before that", target_run)
        if not recorder.progress.get("total_tasks"):
            recorder.append(TasksLoaded(payload=TasksLoadedPayload(total_tasks=total)))
        applied = apply_reuse(
            plan,
            target_run,
            append=recorder.append,
            save_plans=recorder.keep_plans,
            total_tasks=total,
            link=link,
            durable=durable,
        )
        recorder.save_params()  # they belong to task details, and there are some now
        return applied
    finally:
        recorder.close()


def _recorder(plan: ReusePlan, target_run: Path, request: Json | None) -> RunRecorder:
    if is_run_dir(target_run):
        return RunRecorder.open(target_run, file_log_level=None)
    reused_from = {"run_id": plan.run_id, "path": str(plan.source.resolve())}
    members = request if request is not None else _like_source(plan, target_run)
    return RunRecorder.create(target_run, request=Request.from_members(members), reused_from=reused_from)


def _like_source(plan: ReusePlan, target_run: Path) -> Json:
    stored = read_request(plan.source).request
    wanted = plan.wanted
    execution = {**section(stored, "execution"), "attempts": {"k": wanted.k, "strategy": wanted.strategy}}
    execution |= {"max_retries": wanted.max_retries, "retry_pattern_list": list(wanted.retry_patterns)}
    runtime = {**section(stored, "runtime"), "reuse": True, "reuse_run_id": plan.run_id}
    runtime["checkpoint_resume"] = wanted.checkpoint_resume
    output = {**section(stored, "output"), "run_id": target_run.resolve().name}
    return {**stored, "execution": execution, "runtime": runtime, "output": output}
