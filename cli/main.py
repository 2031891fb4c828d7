"""`compass-es`: one file per command, loaded when it is called, so that starting costs little."""

import importlib
import io
import sys
from importlib import metadata
from typing import Any, NoReturn

import click

from eventstore.errors import CompassError, UsageError

from . import output

__distribution__ = "compass-es"

COMMANDS = {
    "replay": "fold a run's stream and rebuild its snapshots",
    "repair": "show, or carry out, what makes a damaged stream whole",
    "close": "give a run that died its terminal event",
    "verify": "check run directories for contradictions and damage",
    "runs": "list runs, one row each",
    "show": "status page of one run",
    "reuse": "what a new run would reuse and why; do it; where results came from",
    "diagnose": "explain why a run failed or died, and what to do",
    "task": "one task over attempts, phases and retries",
    "tail": "the events of a run as JSON lines, and those to come",
    "watch": "a live board of runs",
    "diff": "what changed between two runs or moments",
    "query": "answer SQL over runs",
    "scrub": "copy a run with its credentials masked, to share it",
    "index": "build or refresh the catalog that query answers from",
    "export": "write the history as Parquet for other engines",
}
"""Each command is `command` in the module of its name; the help here spares loading it."""


class Commands(click.Group):
    """A group that knows its commands by name and loads each only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"cli.{name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would make it exit 1, which means here that something was found
            output.quit_quietly()
        except KeyboardInterrupt:  # click would write an empty line first
            raise click.Abort from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"compass-es {metadata.version('compass-es')}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True, help="Show it.")
def commands() -> None:
    """Records of agent-evaluation runs: replay, verify, repair and query them.

    PATH is a run directory (it holds run_info.json or progress.jsonl) or any folder above run directories.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; every error ends here, in words and with the exit code that docs/cli.md lists."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    output.open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no such letter is no reason to fail
    try:
        result: Any = commands.main(arguments, prog_name="compass-es", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        raise SystemExit(output.USAGE) from None
    except click.UsageError as error:
        if not as_json:
            error.show()
            raise SystemExit(output.USAGE) from None
        output.fail(UsageError(error.format_message()), as_json)
    except click.ClickException as error:
        output.fail(CompassError(error.format_message()), as_json)
    except CompassError as error:
        output.fail(error, as_json)
    except (KeyboardInterrupt, click.Abort):
        output.say("interrupted")
        raise SystemExit(output.INTERRUPTED) from None
    except OSError as error:
        output.fail_on_system_error(error)
    raise SystemExit(result if isinstance(result, int) else output.OK)
