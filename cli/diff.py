"""`compass-es diff A B`: what changed between two runs, or two moments."""

from typing import Any

import click

from eventstore.operations.diff import diff_runs
from eventstore.operations.reports.diff import diff_report

from . import output

SHOWN = 40


@click.command(name="diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(a: str, b: str, as_json: bool) -> int:
    """Show what changed from run A to run B: parameters, tasks, metrics, phase times, retries, issues, counts.

    A and B are run directories, or RUN@N for the run after its first N events. Where both have the same tasks, the
    comparison is paired; p is that of an exact two-sided test.
    """
    report = diff_runs(a, b)
    if as_json:
        output.print_json(diff_report(report))
    else:
        _print_report(report)
    return output.OK


def _print_report(report: dict[str, Any]) -> None:
    for name in ("a", "b"):
        side = report[name]
        at = f" after {side['at_event']} events" if side["at_event"] is not None else ""
        status = output.clean(side["status"])
        click.echo(f"{name}: {output.clean(side['run_dir'])}{at}: {status}, {side['events']} events")
    _print_pairs("counts", report["counts"])
    if report["parameters"]:
        click.echo("\nparameters")
        rows = [(p["name"], output.clean(p["a"], 60), output.clean(p["b"], 60)) for p in report["parameters"][:SHOWN]]
        output.print_table(("name", "a", "b"), rows)
    _print_metrics(report["metrics"])
    _print_tasks(report["tasks"])
    _print_phases(report["phases"])
    _print_pairs("issues", report["issues"])
    _print_pairs("plans, and how many attempts had them", report["plans"])


def _print_pairs(title: str, pairs: dict[str, Any]) -> None:
    if pairs:
        click.echo(f"\n{title}")
        rows = [(output.clean(name, 120), _number(pair["a"]), _number(pair["b"])) for name, pair in pairs.items()]
        output.print_table(("name", "a", "b"), rows, right=("a", "b"))


def _number(value: Any) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else output.clean(value)


def _print_metrics(metrics: list[dict[str, Any]]) -> None:
    if metrics:
        click.echo("\nmetrics, over the tasks that both have")
        rows = [
            (
                m["metric"],
                m["tasks"],
                _number(m["mean"]["a"]),
                _number(m["mean"]["b"]),
                m["higher"],
                m["lower"],
                _probability(m["p_value"]),
            )
            for m in metrics
        ]
        output.print_table(("metric", "tasks", "a", "b", "higher", "lower", "p"), rows, right=("tasks", "a", "b", *_P))


_P = ("higher", "lower", "p")


def _probability(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _print_tasks(tasks: list[dict[str, Any]]) -> None:
    if not tasks:
        click.echo("\ntasks: no difference")
        return
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task["change"]] = counts.get(task["change"], 0) + 1
    click.echo("\ntasks: " + ", ".join(f"{count} {change}" for change, count in counts.items()))
    rows = [(output.clean(t["task_id"], 60), t["change"], _side(t["a"]), _side(t["b"])) for t in tasks[:SHOWN]]
    output.print_table(("task", "change", "a", "b"), rows)
    if len(tasks) > SHOWN:
        click.echo(f"… and {len(tasks) - SHOWN} more (--json has all)")


def _side(side: dict[str, Any] | None) -> str:
    if side is None:
        return "-"
    words = [str(side["status"]), side["severity"] or "", f"{side['retries']} retries" if side["retries"] else ""]
    words += [f"{name}={_number(value)}" for name, value in side["metrics"].items()]
    return output.clean(" ".join(word for word in words if word), 100)


def _print_phases(phases: list[dict[str, Any]]) -> None:
    if phases:
        click.echo("\nphases")
        rows = [
            (
                p["phase"],
                p["stays"]["a"],
                p["stays"]["b"],
                output.duration(p["median_seconds"]["a"]),
                output.duration(p["median_seconds"]["b"]),
                *_paired(p["paired"]),
            )
            for p in phases
        ]
        columns = ("phase", "stays a", "b", "median a", "median b", "paired", "p")
        output.print_table(columns, rows, right=columns[1:])


def _paired(paired: dict[str, Any] | None) -> tuple[str, str]:
    if paired is None:
        return "", ""
    return f"{paired['median_difference_seconds']:+.2f}s", _probability(paired["p_value"])
