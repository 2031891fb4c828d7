"""A toy evaluation on the real AgentCompass, offline: sums, answered by a harness that can add.

    python agentcompass_toy.py RESULTS RUN_ID '{"tasks": 6, "k": 2, "reporter": true, …}'

With `"die_at_operation": 40` the process kills itself before the 40th change of a file in the results folder, counted
from the first opening of the stream; with `"die_after": 1.5` it does so that many seconds after that opening.

Run by an interpreter that has AgentCompass 1.0.1. Prints one JSON object as its last line: how the run went, how long
it took, and how the event loop fared.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agentcompass.launcher import async_run_evaluation, async_summary, run_analysis_only
from agentcompass.runtime import BENCHMARKS, HARNESSES, BaseBenchmark, BaseHarness
from agentcompass.runtime.base import BenchmarkPlan, RunResult, TaskSpec
from agentcompass.runtime.models import PreparedTask, TaskInput, TaskOutput, TaskStatus
from agentcompass.runtime.models.result import ExecutionIssue

SECONDS_A_TASK = 0.01
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Watched:
    """Counts the changes of files in a folder from the first opening of a stream, and ends the process at one."""

    def __init__(self, folder: str, die_at_operation: int | None, die_after: float | None) -> None:
        self.folder, self.die_at_operation, self.die_after = os.path.abspath(folder), die_at_operation, die_after
        self.operations, self.began = 0, 0.0
        sys.addaudithook(self.notice)

    def notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event of the interpreter; it comes before the operation is done."""
        changes = event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING)
        path = arguments[0] if changes else None
        if not isinstance(path, str | os.PathLike) or not os.path.abspath(path).startswith(self.folder):
            return
        if not self.began:
            if os.path.basename(path) != "progress.jsonl":
                return
            self.began = time.perf_counter()
            if self.die_after is not None:
                threading.Timer(self.die_after, die).start()
        self.operations += 1
        if self.operations == self.die_at_operation:
            die()


def die() -> None:
    """End this process as a crash does, with nothing tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)


@BENCHMARKS.register()
class ToySums(BaseBenchmark):
    """`n` sums; every fifth answer carries a warning, every seventh an error."""

    id = "toy_sums"
    description = "Sums of small numbers."
    parallel_attempts_safe = True

    def load_tasks(self, req: Any) -> list[TaskSpec]:
        return [
            TaskSpec(
                task_id=f"sum {n:03}/é",
                question=f"{n}+{n}",
                category="even" if n % 2 else "odd",
                ground_truth=str(2 * n),
                metadata={},
            )
            for n in range(int(req.benchmark.params["n"]))
        ]

    def build_plan(self, task: TaskSpec, req: Any, environment: Any) -> BenchmarkPlan:
        return BenchmarkPlan()

    async def prepare_task(self, task: TaskSpec, env: Any, req: Any, plan: Any) -> PreparedTask:
        return PreparedTask(
            task_id=task.task_id,
            category=task.category,
            ground_truth=task.ground_truth,
            input=TaskInput(prompt=task.question),
            output=TaskOutput(answer="a number"),
            metadata={},
        )

    async def evaluate(self, task: TaskSpec, prepared: Any, result: Any, req: Any, plan: Any, env: Any = None) -> Any:
        result.category, result.ground_truth = prepared.category, prepared.ground_truth
        result.metrics = {"correct": str(result.final_answer) == str(prepared.ground_truth)}
        return result


@HARNESSES.register()
class ToyAdder(BaseHarness):
    """Adds, after a moment."""

    id = "toy_adder"
    description = "Adds two numbers."
    parallel_attempts_safe = True

    def supports(self, environment: Any, model: Any) -> bool:
        return True

    async def start_session(self, env: Any, req: Any, plan: Any) -> Any:
        return {"calls": 0}

    async def run_task(self, session: Any, prepared: PreparedTask, req: Any, plan: Any) -> RunResult:
        await asyncio.sleep(float(os.environ.get("TOY_SECONDS", SECONDS_A_TASK)))
        first, second = map(int, str(prepared.input.prompt).split("+"))
        issues = []
        if first % 5 == 4:
            issues = [ExecutionIssue("warning", "run", "toy_warning", "answered in a hurry")]
        elif first % 7 == 6:
            issues = [ExecutionIssue("error", "run", "toy_failure", "the adder is broken")]
        return RunResult(
            task_id=prepared.task_id, status=TaskStatus.COMPLETED, final_answer=str(first + second), issues=issues
        )


async def watch_loop(stalls: list[float]) -> None:
    """Note by how much each of many short sleeps was late: what the event loop was held up."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        stalls.append(time.perf_counter() - began - 0.001)


async def evaluate(results: str, run_id: str, options: dict[str, Any], on_progress: Any) -> None:
    """Run the toy benchmark once."""
    await async_run_evaluation(
        benchmark="toy_sums",
        harness="toy_adder",
        model="toy",
        environment="host_process",
        benchmark_params={"n": options.get("tasks", 6)},
        model_base_url="http://127.0.0.1:9/v1",
        model_api_key="sk-toy-0123456789abcdef",
        task_concurrency=options.get("concurrency", 4),
        k=options.get("k", 1),
        max_retries=options.get("max_retries", 0),
        results_dir=results,
        run_id=run_id,
        progress="none",
        enable_analysis=False,
        on_progress=on_progress,
        log_level="ERROR",
        reuse_run_id=options.get("reuse_run_id", ""),
    )


async def run(results: str, run_id: str, options: dict[str, Any]) -> dict[str, Any]:
    """One evaluation, with our reporter or with AgentCompass's own sinks."""
    on_progress, seen = None, []
    if options.get("reporter", True):
        from eventstore.recording.agentcompass import reporter

        on_progress = reporter(
            durability=options.get("durability", "group"),
            display="plain",
            on_event=(lambda event, progress: seen.append(progress["status"])) if options.get("callback") else None,
        )
    for earlier in options.get("after", ()):  # the same reporter serves these requests first
        await evaluate(results, earlier, options, on_progress)
    watched = Watched(results, options.get("die_at_operation"), options.get("die_after"))
    stalls: list[float] = []
    watching = asyncio.create_task(watch_loop(stalls))
    began = time.perf_counter()
    error = ""
    try:
        await evaluate(results, run_id, options, on_progress)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    seconds = time.perf_counter() - began
    watching.cancel()
    stalls.sort()
    return {
        "seconds": seconds,
        "recording_seconds": time.perf_counter() - watched.began,
        "operations": watched.operations,
        "error": error,
        "callbacks": len(seen),
        "stall_p50": stalls[len(stalls) // 2],
        "stall_p99": stalls[int(len(stalls) * 0.99)],
        "stall_max": stalls[-1],
    }


def main(results: str, run_id: str, text: str) -> None:
    """Do what the options say: an evaluation, a summary of one, or an analysis."""
    options = json.loads(text)
    run_dir = next(iter(Path(results).glob(f"*/{run_id}")), None)
    if options.get("do") == "summary":
        done = asyncio.run(async_summary(str(run_dir)))
        told = {"error": "", "keys": sorted(done)}
    elif options.get("do") == "analysis":
        done = run_analysis_only(result_dir=str(run_dir), override=options.get("override", False), progress="none")
        told = {"error": "", "result": str(done)[:2000]}
    else:
        told = asyncio.run(run(results, run_id, options))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
