"""metrics.json and summary.md against the task details, and results against their checkpoints and their source.

Pure: `ScoreCheck` takes the facts of each task as `details` has them, and writes findings when all were taken.
"""

from typing import Any

from eventstore.format.events import Json
from eventstore.format.values import as_object, short
from projections.score import AttemptScores, ScoreFold, TaskScores
from projections.summary import differing_line, normal_lines, summary_lines

from .details import RUNNING, TaskFacts
from .files import Document
from .findings import Notes

METRICS, SUMMARY = "metrics.json", "summary.md"
MAX_DIFFERENCES = 20


class ScoreCheck:
    """The rules about the score of one run. `metrics` is its metrics.json, `info` its run_info.json."""

    def __init__(self, metrics: Json | None, info: Json | None, params: Json | None) -> None:
        self._metrics, self._info = metrics, info or {}
        self._params = params or {}
        self._fold = None if metrics is None else ScoreFold(metrics, self._hierarchy())
        self._taken: set[str] = set()

    def _hierarchy(self) -> Any:
        """Return the benchmark's category hierarchy: an override of a later summary, params.json, or the request."""
        override = as_object(self._info.get("metric_artifacts")).get("benchmark_params_override")
        request = as_object(self._info.get("request"))
        for holder in (
            override,
            *(as_object(as_object(one.get("benchmark")).get("params")) for one in (self._params, request)),
        ):
            if as_object(holder).get("category_hierarchy"):
                return as_object(holder)["category_hierarchy"]
        return None

    def take(self, task: TaskFacts) -> None:
        """Fold one task; of a task in two states the first counts, as it does for AgentCompass."""
        fold = self._fold
        if fold is None or task.state == RUNNING:
            return
        if task.problem is not None or task.task_id is None or not task.name_matches:
            fold.refuse(f"{task.path}: {task.problem or 'it is not the folder of its task'}")
        elif task.published and task.task_id not in self._taken:
            self._taken.add(task.task_id)
            attempts = {}
            for attempt in task.attempts:
                if not attempt.listed or attempt.only_retry_count:
                    continue
                if attempt.result_problems or attempt.severity is None:
                    problems = [*attempt.result_problems, "its failure is not classified"]
                    fold.refuse(f"{attempt.path}/result.json: {problems[0]}")
                attempts[attempt.number] = AttemptScores(attempt.status, attempt.metrics, attempt.severity or "")
            fold.add(TaskScores(task.task_id, task.category, attempts))

    def finish(self, notes: Notes, summary: Document | str | None) -> None:
        """Note what differs. `summary` is the text of summary.md, or its problem, or None where there is none."""
        if self._metrics is None or self._fold is None:
            return
        for number, difference in enumerate(self._fold.differences()):
            if number < MAX_DIFFERENCES:
                words = (
                    f"{difference.place} is {short(difference.stored)}, the details give {short(difference.computed)}"
                )
                notes.add("score_differs", words, file=METRICS)
        for problem in self._fold.problems:
            notes.add("score_not_checked", problem, file=METRICS)
        if self._metrics.get("evaluation_failed") is True and self._info.get("status") == "completed":
            notes.add("evaluation_failed", "evaluation_failed is true, and the run's status is completed", file=METRICS)
        self._check_summary(notes, summary)

    def _check_summary(self, notes: Notes, summary: Document | str | None) -> None:
        if summary is None:
            notes.add("summary_missing", f"{METRICS} is there, {SUMMARY} is not", file=SUMMARY)
            return
        if isinstance(summary, Document):
            notes.add("summary_differs", str(summary.problem), file=SUMMARY)
            return
        request = as_object(self._info.get("request"))
        model, benchmark = (
            _name(request.get(name)) or _name(self._params.get(name)) for name in ("model", "benchmark")
        )
        expected = summary_lines(self._metrics or {}, model, benchmark)
        if expected is None:
            notes.add("score_not_checked", f"{METRICS} lacks what {SUMMARY} shows", file=SUMMARY)
            return
        found = differing_line(expected, normal_lines(summary))
        if found is not None:
            ours, theirs = (("nothing" if line is None else short(line)) for line in found)
            notes.add("summary_differs", f"it says {theirs}, {METRICS} gives {ours}", file=SUMMARY)


def _name(component: Any) -> str | None:
    name = as_object(component).get("id")
    return name.strip() if isinstance(name, str) and name.strip() else None
