"""`compass-es diagnose RUN`: why it failed or died, what it is doing, what to do next."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from eventstore.operations.diagnose.diagnose import diagnose_run
from eventstore.operations.reports.diagnose import diagnose_report

from . import markdown, output
from .paging import no_pager_option, paged
from .runs import moment_text

SHOWN_IN_FLIGHT = 10
SHOWN_EVIDENCE = 3
CODE_LIMIT = 600
FINE = ("completed", "running")


@click.command(name="diagnose")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Runs that show how long phases take, for a run without siblings of its own.",
)
@click.option("--format", "form", type=click.Choice(["text", "markdown"]), default="text", help="For an issue tracker.")
@no_pager_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(run: Path, history: tuple[Path, ...], form: str, no_pager: bool, as_json: bool) -> int:
    """Explain why RUN failed or died: the first cause and its echoes, what was in flight, and what to do.

    Exit code 1 when something is wrong, 0 when nothing is. Conclusions are marked certain (a record says so) or
    inferred. Causes and their codes: docs/diagnose.md.
    """
    report = diagnose_run(run, history=history)
    if as_json:
        output.print_json(diagnose_report(report))
    elif form == "markdown":
        for line in _markdown(report):
            click.echo(line)
    else:
        with paged(no_pager):
            _print_text(report)
    return output.FOUND if report["causes"] or report["outcome"] not in FINE else output.OK


# -- text


def _print_text(report: dict[str, Any]) -> None:
    line, clean = click.echo, output.clean
    output.paragraph(f"{clean(report['run_id'] or '(no run id)')}: {_outcome_words(report)}")
    names = [clean(name) for name in report["identity"].values() if name]
    if names:
        line(" · ".join(names))
    if report["error"]:
        output.paragraph(f"error: {clean(report['error'], 500)}")
    if not report["causes"]:
        line("no cause of trouble found")
    for number, cause in enumerate(report["causes"]):
        line("")
        line(f"{'first cause' if number == 0 else 'also'}: {cause['code']} ({cause['certainty']}; {cause['blame']})")
        output.paragraph(clean(cause["message"], 600), "  ", "  ")
        for evidence in cause["evidence"][:SHOWN_EVIDENCE]:
            output.paragraph(_evidence_words(evidence), "  - ", "    ")
    _print_in_flight(report["in_flight"], ended=report["ended"])
    line("")
    for words in _facts(report):
        output.paragraph(words, "", "  ")
    if report["next_steps"]:
        line("\nnext")
        for step in report["next_steps"]:
            line(f"  {clean(step)}")


def _outcome_words(report: dict[str, Any]) -> str:
    certainty = "" if report["certainty"] == "certain" else f" ({report['certainty']})"
    life = report["life"]
    return f"{report['outcome']}{certainty}; life: {life['state']}: {output.clean('; '.join(life['evidence']))}"


def _evidence_words(evidence: dict[str, Any]) -> str:
    place = output.clean(evidence["file"])
    if evidence["line"] is not None:
        place += f":{evidence['line']}"
    if evidence["seq"] is not None:
        place += f" (seq {evidence['seq']})"
    task = f" [{output.clean(evidence['task_id'], 60)}]" if evidence["task_id"] is not None else ""
    return f"{place}{task}: {output.clean(evidence['text'], 300)}"


def _print_in_flight(flights: list[dict[str, Any]], *, ended: bool) -> None:
    if not flights:
        return
    click.echo(f"\nin flight{' at the end' * ended}: {len(flights)}")
    rows = [
        (
            output.clean(f["task_id"], 60),
            f["attempt"],
            f["phase"],
            output.duration(f["phase_seconds"]),
            output.duration(f["siblings_seconds"]),
            f["retries"] or "",
        )
        for f in flights[:SHOWN_IN_FLIGHT]
    ]
    output.print_table(_FLIGHT_COLUMNS, rows, right=_FLIGHT_COLUMNS[3:])
    if len(flights) > SHOWN_IN_FLIGHT:
        click.echo(f"… and {len(flights) - SHOWN_IN_FLIGHT} more (--json has all)")


_FLIGHT_COLUMNS = ("task", "attempt", "phase", "for", "siblings", "retries")


def _facts(report: dict[str, Any]) -> Iterator[str]:
    """The sentences that every form has, clean."""
    clean, stream, results = output.clean, report["stream"], report["results"]
    if stream["events"]:
        damage = ", ".join(f"{count} {name}" for name, count in stream["verdicts"].items() if name != "unsealed")
        yield (
            f"stream: {stream['events']} events in {output.duration(report['duration_seconds'])}, the last at "
            f"{moment_text(report['last_event_at'])} UTC" + (f"; {damage}" if damage else "")
        )
    else:
        yield "stream: no event"
    keeps = report["reuse"]["keeps"]
    yield (
        f"tasks: {results['complete']} complete, {results['partial']} partial, {results['missing']} missing; "
        + ("details are not stored here" if keeps is None else _reuse_words(report["reuse"]))
    )
    retries = report["retries"]
    if retries["count"]:
        reasons = ", ".join(f"{r['count']} in {r['stage']} for {r['matched_pattern']}" for r in retries["reasons"][:3])
        yield (
            f"retries: {retries['count']} in {retries['tasks']} tasks burnt "
            f"{output.duration(retries['discarded_seconds'])} ({clean(reasons, 200)}); "
            f"{retries['recovered_tasks']} of those tasks ended well"
        )
    score = report["score"]
    usable = "usable" if score["usable"] else "not usable"
    answered = "?" if score["answered"] is None else score["answered"]
    reasons = "; ".join(score["reasons"])
    yield f"score: {usable}, {answered} of {score['planned']} attempts answered" + (
        f": {clean(reasons)}" * bool(reasons)
    )
    if report["params"]["problem"]:
        yield f"params.json {clean(report['params']['problem'])}: a summary can't be made again from it alone"
    for plan in report["plans"][:3]:
        recipes = plan.get("applied_recipes") or ["no recipe"]
        modes = [plan.get("network_mode"), plan.get("run_network_mode"), plan.get("verifier_network_mode")]
        yield clean(
            f"plan of {plan['attempts']} attempts: {plan.get('environment')}, {', '.join(map(str, recipes))}, "
            f"network {' / '.join(map(str, modes))}"
        )
    for found in report["resources"][:5]:
        of_task = f"of task {found['task_id']}: {found['file']}"
        yield clean(f"open environment: {found['provider']} ({found['state']}) {of_task}")
    if report["secrets"]:
        where = report["secrets"][0]
        place = f"{where['file']} line {where['line']}" if "line" in where else f"{where['file']} seq {where['seq']}"
        yield f"credentials: {len(report['secrets'])} found, the first ({where['kind']}) in {place}"


def _reuse_words(reuse: dict[str, Any]) -> str:
    failed = f", {reuse['keeps_failed']} of them failed" * bool(reuse["keeps_failed"])
    return f"reuse would keep {reuse['keeps']}{failed} (retry budget {reuse['max_retries']})"


# -- markdown


def _markdown(report: dict[str, Any]) -> Iterator[str]:
    """The same, for an issue tracker; text of records stands in code spans, so that it can't become markup."""
    yield f"## {_code(report['run_id'] or '(no run id)')}: {markdown.cell(str(report['outcome']))}"
    yield ""
    yield f"{_code(' · '.join(str(name) for name in report['identity'].values() if name))}"
    if report["error"]:
        yield f"\nError: {_code(report['error'])}"
    for number, cause in enumerate(report["causes"]):
        rank = "First cause" if number == 0 else "Also"
        yield f"\n### {rank}: `{cause['code']}` ({cause['certainty']}; {cause['blame']})"
        yield ""
        yield _code(cause["message"])
        yield ""
        for evidence in cause["evidence"][:SHOWN_EVIDENCE]:
            yield f"- {_code(_evidence_words(evidence))}"
    if report["in_flight"]:
        at_the_end = " at the end" if report["ended"] else ""
        yield f"\n### In flight{at_the_end}: {len(report['in_flight'])}\n"
        yield "| task | attempt | phase | in phase |"
        yield "|---|---|---|---|"
        for f in report["in_flight"][:SHOWN_IN_FLIGHT]:
            cells = (_cell(f["task_id"]), str(f["attempt"]), _cell(f["phase"]), output.duration(f["phase_seconds"]))
            yield f"| {' | '.join(cells)} |"
    yield "\n### Facts\n"
    for words in _facts(report):
        yield f"- {_code(words)}"
    yield "\n### Next\n"
    for step in report["next_steps"]:
        yield f"- {_code(step)}"


def _code(text: object) -> str:
    return markdown.code(output.masked(str(text))[:CODE_LIMIT])


def _cell(text: object) -> str:
    """A cell: a code span, too, unless it holds what would end the cell."""
    words = output.masked(str(text))[:CODE_LIMIT]
    return markdown.cell(words) if "|" in words else markdown.code(words)
