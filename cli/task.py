"""`compass-es task RUN TASK`: one task over all its attempts."""

from pathlib import Path
from typing import Any

import click

from eventstore.operations.reports.task import task_report
from eventstore.operations.task import task_page

from . import output
from .runs import moment_text

SHOWN_LOG_LINES = 20


@click.command(name="task")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("task")
@click.option("--log-lines", type=click.IntRange(min=0), default=SHOWN_LOG_LINES, help="How many lines of run.log.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(run: Path, task: str, log_lines: int, as_json: bool) -> int:
    """Show one task of RUN over attempts, phases and retries, with its plan, issues, result and log lines.

    TASK is its id, or any part of it that no other task of the run has in its own.
    """
    page = task_page(run, output.utf8_text(task, "TASK"))
    if as_json:
        output.print_json(task_report(page))
    else:
        _print_page(page, log_lines)
    return output.OK


def _print_page(page: dict[str, Any], log_lines: int) -> None:
    line, clean = click.echo, output.clean
    status = "reused: no event of it in this stream" if not page["in_stream"] else page.get("status") or "unfinished"
    severity = f", severity {page['severity']}" if page.get("severity") else ""
    line(f"{clean(page['task_id'])}  {clean(status)}{clean(severity)}")
    line(
        f"run {clean(page['run_id'] or '(no run id)')}"
        + (f", in {clean(page['directory'])}" if page["directory"] else ", no details")
    )
    if page["in_stream"]:
        line(
            f"started {moment_text(page['started_at'])} UTC, took {output.duration(page['duration_seconds'])}, "
            f"{page['retries']} retries"
        )
    for problem in page["problems"]:
        line(f"problem: {clean(problem, 300)}")
    for attempt in page["attempts"]:
        _print_attempt(attempt)
    if page["phases"]:
        line("\nphases of the task")
        _print_phases(page["phases"])
    log = page["log"]
    shown = log["lines"][-log_lines:] if log_lines else []
    if log["count"]:
        line(f"\nrun.log: {log['count']} lines" + (f", the last {len(shown)} of those kept" if shown else ""))
    for entry in shown:
        line(f"  {entry['line']}: {clean(entry['text'], 300)}")


def _print_attempt(attempt: dict[str, Any]) -> None:
    line, clean = click.echo, output.clean
    line(
        f"\nattempt {attempt['attempt']}: {clean(attempt['status'] or 'unfinished')}, "
        f"{output.duration(attempt['duration_seconds'])}"
    )
    _print_phases(attempt["phases"])
    for retry in attempt["retries"]:
        line(
            f"  retry {retry['retry']}/{retry['max_retries']} at seq {retry['seq']} in {clean(retry['stage'])} for "
            f"{clean(retry['matched_pattern'])}, {output.duration(retry['discarded_seconds'])} discarded"
        )
        for issue in retry["issues"]:
            output.paragraph(_issue_words(issue), "    ", "      ")
    result = attempt["result"]
    if result is not None:
        said = (result["status"], result["metrics"] or "", result["problem"] or "")
        line(f"  result: {' '.join(clean(word, 200) for word in said)}")
        for issue in result["issues"]:
            output.paragraph(_issue_words(issue), "    ", "      ")
    checkpoint, plan = attempt["checkpoint"], attempt["plan"]
    if checkpoint is not None and checkpoint["file"]:
        words = "an evaluation can resume from it" if checkpoint["evaluation"] else "no evaluation in it"
        line(f"  checkpoint: {clean(checkpoint['problem'] or words)}")
    if plan is not None:
        recipes = plan.get("applied_recipes") or "none"
        named = ", ".join(map(str, recipes)) if isinstance(recipes, list) else recipes
        line(clean(f"  plan: recipes {named}; run network {_mode(plan.get('run_network_policy'))}"))


def _mode(policy: Any) -> Any:
    return policy.get("network_mode") if isinstance(policy, dict) else policy


def _issue_words(issue: dict[str, Any]) -> str:
    return output.clean(f"{issue['severity']} in {issue['phase']}: {issue['code']}: {issue['message']}", 400)


def _print_phases(phases: list[dict[str, Any]]) -> None:
    if phases:
        rows = [
            (
                p["phase"],
                p["seq"],
                output.duration(p["duration_seconds"]),
                p["ended_by"] or "(open)",
                p["status"] or "",
                output.clean(p["error"] or "", 200),
            )
            for p in phases
        ]
        output.print_table(("  phase", "seq", "took", "ended by", "status", "error"), rows, right=("seq", "took"))
