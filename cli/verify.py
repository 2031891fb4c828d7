"""`compass-es verify PATH…`: every contradiction in run directories, named, with its place."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventstore.errors import UsageError

from . import output
from .moment import parse_time

if TYPE_CHECKING:
    from eventstore.operations.reports.verify import Outcome
    from eventstore.operations.verify.catalogue import Finding
    from eventstore.operations.verify.texts import SecretsIn

FORMATS = ("text", "json", "sarif", "junit")
SEVERITIES = ("error", "warning", "info")


@click.command(name="verify")
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings count as errors for the exit code.")
@click.option("--only", metavar="CODE,...", help="Report these codes and no others.")
@click.option("--ignore", metavar="CODE,...", help="Don't report these codes.")
@click.option("--since", metavar="T", help="Leave out runs whose files haven't changed since T (ISO 8601 or Unix).")
@click.option("--max-findings", metavar="N", type=click.IntRange(min=0), help="List at most N findings; count all.")
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Leave out findings that FILE lists.")
@click.option("--write-baseline", type=click.Path(path_type=Path), metavar="FILE", help="Write FILE with all findings.")
@click.option(
    "--secrets",
    type=click.Choice(("none", "records", "all")),
    default="records",
    help="Look for credentials nowhere, in the run records (default), or in every file.",
)
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Processes to use (default: processors).")
@click.option("--format", "style", type=click.Choice(FORMATS), default="text", help="How to report.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--rules", "list_rules", is_flag=True, help="List all rules and end.")
def command(
    paths: tuple[Path, ...],
    strict: bool,
    only: str | None,
    ignore: str | None,
    since: str | None,
    max_findings: int | None,
    baseline: Path | None,
    write_baseline: Path | None,
    secrets: "SecretsIn",
    jobs: int | None,
    style: str,
    as_json: bool,
    list_rules: bool,
) -> int:
    """Check run directories at or below each PATH, and change nothing.

    Exit code 1 where an error is found (with --strict also for a warning), 0 otherwise. A run that was merely killed
    has warnings; an error is a contradiction or damage.
    """
    if list_rules:
        return _list_rules(as_json or style == "json")
    if not paths:
        raise UsageError("give at least one PATH: a run directory, or a folder above some")
    from eventstore.operations.reports.verify import Outcome
    from eventstore.operations.verify.catalogue import parse_codes
    from eventstore.operations.verify.verify import Options

    options = Options(
        only=parse_codes(only),
        ignore=parse_codes(ignore),
        since=None if since is None else parse_time(since),
        secrets=secrets,
    )
    outcome = Outcome(max_findings, _read_baseline(baseline))
    outcome.take(_reports(paths, options, jobs or os.cpu_count() or 1))
    if write_baseline is not None:
        _write_baseline(write_baseline, outcome)
    _print(outcome, "json" if as_json else style)
    bad = outcome.severities["error"] + (outcome.severities["warning"] if strict else 0)
    return output.FOUND if bad else output.OK


# -- the work


def _reports(paths: tuple[Path, ...], options: Any, processes: int) -> Iterator[Any]:
    from eventstore.operations.verify.verify import runs_to_verify, verify_runs

    runs = runs_to_verify(paths, options, lambda path, words: output.say(f"{output.clean(path)}: {words}"))
    reports = verify_runs(runs, options, processes=processes)
    if not sys.stderr.isatty() or len(runs) < 2:
        return reports
    return _with_progress_bar(reports, len(runs))


def _with_progress_bar(reports: Iterator[Any], total: int) -> Iterator[Any]:
    """A bar on stderr. The first report is awaited before it starts: workers must be forked before it has threads."""
    from rich.console import Console
    from rich.progress import track

    first = next(reports, None)
    if first is None:
        return
    yield first
    yield from track(reports, "verify", total=total - 1, console=Console(stderr=True), transient=True)


# -- baseline


def _read_baseline(path: Path | None) -> Counter[str]:
    from eventstore.operations.verify.baseline import read_baseline

    return Counter() if path is None else read_baseline(path)


def _write_baseline(path: Path, outcome: "Outcome") -> None:
    from eventstore.operations.verify.baseline import write_baseline

    write_baseline(path, outcome.keys)
    output.say(f"{output.clean(path)}: {len(outcome.keys)} findings written")


# -- reports


def _print(outcome: "Outcome", style: str) -> None:
    if style == "json":
        from eventstore.operations.reports.verify import verify_report

        output.print_json(verify_report(outcome))
    elif style == "sarif":
        from .verify_formats import sarif

        output.print_json(sarif(outcome.findings))
    elif style == "junit":
        from .verify_formats import junit

        click.echo(junit(outcome.findings), nl=False)
    else:
        _print_text(outcome)


def _print_text(outcome: "Outcome") -> None:
    """`path:line:offset: severity code: sentence`, a hint at the first finding of a code, and a line of facts last."""
    from eventstore.operations.verify.catalogue import rule_of

    hinted: set[str] = set()
    unsealed = 0
    for finding in outcome.findings:
        if finding.code == "unsealed":
            unsealed += 1
            continue
        click.echo(_line(finding))
        hint = rule_of(finding.code).hint
        if hint and finding.code not in hinted:
            hinted.add(finding.code)
            click.echo(f"    hint: {hint}")
    if unsealed:
        streams = "1 stream carries" if unsealed == 1 else f"{unsealed} streams carry"
        click.echo(f"info unsealed: {streams} no proof of their lines: AgentCompass's own")
    click.echo(_summary(outcome))


def _line(finding: "Finding") -> str:
    place = "".join(f":{number}" for number in (finding.line, finding.offset) if number is not None)
    about = "" if finding.task_id is None else f" [task {output.clean(finding.task_id, 80)}"
    if about:
        about += "]" if finding.attempt is None else f" attempt {finding.attempt}]"
    message = output.clean(finding.message, 400)
    return f"{output.clean(finding.file)}{place}: {finding.severity} {finding.code}: {message}{about}"


def _summary(outcome: "Outcome") -> str:
    runs = f"{outcome.runs} run{'s' * (outcome.runs != 1)}"
    read = f"{outcome.files} files, {outcome.bytes} bytes, {outcome.events} events"
    counts = ", ".join(f"{outcome.severities[name]} {name}s".replace("infos", "info") for name in SEVERITIES)
    rest = f", {outcome.known} known" if outcome.known else ""
    rest += f"; {outcome.hidden} not listed" if outcome.hidden else ""
    return f"{runs}: {read}: {counts}{rest}"


def _list_rules(as_json: bool) -> int:
    from eventstore.operations.reports.verify import rules_report

    catalogue = rules_report()
    if as_json:
        output.print_json(catalogue)
    else:
        rows = [(rule.code, rule.severity, rule.group, rule.sentence) for rule in catalogue.rules]
        output.print_table(("code", "severity", "group", "rule"), rows)
    return output.OK
