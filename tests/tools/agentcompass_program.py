"""Run by an interpreter that has AgentCompass 1.0.1: its own functions and its own runs, for tests that compare.

    agentcompass_program.py fingerprint PATH...       one JSON object a line
    agentcompass_program.py results RUN               what its reader says of every published task, as JSON
    agentcompass_program.py checkpoint PATH           its checked reading of an evaluation checkpoint
    agentcompass_program.py evaluate RESULTS RUN_ID K [SOURCE_RUN_ID] [--strategy S] [--max-retries N] [--pattern P]
                                  [--stop-after N]

`evaluate` runs the benchmark `toy` and prints which attempts an agent worked on and which were scored. The environment
variable TOY_TASKS says how many tasks there are (t0, t1, …), TOY_FAULTS which attempts end with an issue, as {"t0/1":
"error run"}. With `--stop-after` the process ends itself, without any clean-up, after so many agents.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any


def fingerprint(paths: list[str]) -> None:
    from agentcompass.runtime.artifacts import ArtifactLimits, _fingerprint

    for path in paths:
        print(json.dumps(_fingerprint(Path(path), ArtifactLimits())))


def results(run_dir: str) -> None:
    from agentcompass.runtime.results.layout import read_result, result_files

    print(json.dumps([read_result(path) for path in result_files(Path(run_dir))]))


def checkpoint(path: str) -> None:
    from agentcompass.runtime.checkpoint import read_checkpoint

    print(json.dumps(read_checkpoint(Path(path)).to_dict()))


os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched
RAN: list[tuple[str, int]] = []
SCORED: list[str] = []


def define_toy(stop_after: int) -> None:
    from agentcompass.runtime import BENCHMARKS, PreparedTask, RunResult, TaskInput, TaskOutput, TaskSpec
    from agentcompass.runtime.base import HarnessFreeBenchmark
    from agentcompass.runtime.context import runtime_context
    from agentcompass.runtime.issues import with_issue
    from agentcompass.runtime.metrics import make_metric_contract
    from agentcompass.runtime.models.result import ExecutionIssue, TaskStatus

    faults = json.loads(os.environ.get("TOY_FAULTS", "{}"))

    def with_fault(result: Any, phase: str) -> Any:
        context = runtime_context.get()
        severity, _, wanted = faults.get(f"{result.task_id}/{context.attempt if context else 0}", "").partition(" ")
        if wanted != phase:
            return result
        return with_issue(result, ExecutionIssue(severity, phase, f"{phase}_failed", f"HTTP 400 in {phase}"))

    class Toy(HarnessFreeBenchmark):
        id = "toy"
        description = "Numbers to be repeated."
        metric_contract = make_metric_contract(primary="correct", binary=("correct",))
        parallel_attempts_safe = False

        def load_tasks(self, req: Any) -> list[Any]:
            count = int(os.environ.get("TOY_TASKS", "4"))
            return [
                TaskSpec(task_id=f"t{n}", question=str(n), category="all", ground_truth=str(n)) for n in range(count)
            ]

        async def prepare_task(self, task: Any, env: Any, req: Any, plan: Any) -> Any:
            return PreparedTask(
                task_id=task.task_id,
                category=task.category,
                ground_truth=task.ground_truth,
                input=TaskInput(prompt=task.question),
                output=TaskOutput(answer="a number"),
                metadata={},
            )

        async def run_task(self, task: Any, prepared: Any, req: Any, plan: Any, env: Any = None) -> Any:
            context = runtime_context.get()
            RAN.append((task.task_id, context.attempt if context is not None else 0))
            if stop_after and len(RAN) > stop_after:
                os._exit(9)
            made = RunResult(
                task_id=task.task_id, status=TaskStatus.COMPLETED, category=task.category, final_answer=task.question
            )
            return with_fault(made, "run")

        async def evaluate(self, task: Any, prepared: Any, result: Any, req: Any, plan: Any, env: Any = None) -> Any:
            SCORED.append(task.task_id)
            result.metrics = {"correct": result.final_answer == prepared.ground_truth}
            result.ground_truth = prepared.ground_truth
            return with_fault(result, "evaluate")

    BENCHMARKS.register()(Toy)


def evaluate(options: argparse.Namespace) -> None:
    from agentcompass import run_evaluation
    from agentcompass.runtime.registry import load_builtin_components

    load_builtin_components()
    define_toy(options.stop_after)
    try:
        run_evaluation(
            benchmark="toy",
            harness="none",
            model="m",
            results_dir=options.results,
            run_id=options.run_id,
            model_base_url="http://127.0.0.1:9",
            model_api_key="none",
            k=options.k,
            attempt_strategy=options.strategy,
            task_concurrency=1,
            max_retries=options.max_retries,
            retry_pattern_list=options.pattern,
            reuse=bool(options.source),
            reuse_run_id=options.source or "",
            progress="none",
            enable_analysis=False,
            log_level="ERROR",
            auto_install_dependencies=False,
        )
    except RuntimeError as error:  # a run whose results hold fatal issues ends so, with everything saved
        if "FATAL" not in str(error):
            raise
    print("\n" + json.dumps({"ran": RAN, "scored": SCORED}))


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "evaluate":
        parser = argparse.ArgumentParser()
        parser.add_argument("results")
        parser.add_argument("run_id")
        parser.add_argument("k", type=int)
        parser.add_argument("source", nargs="?")
        parser.add_argument("--strategy", default="avg")
        parser.add_argument("--max-retries", type=int, default=0)
        parser.add_argument("--pattern", action="append", default=[])
        parser.add_argument("--stop-after", type=int, default=0)
        evaluate(parser.parse_args(arguments))
    elif command == "fingerprint":
        fingerprint(arguments)
    else:
        {"results": results, "checkpoint": checkpoint}[command](*arguments)


if __name__ == "__main__":
    main()
