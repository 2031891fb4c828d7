"""Long output through a pager, on a terminal only: what fits, what is piped, and JSON go straight out."""

import io
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click

no_pager_option: Callable[[Any], Any] = click.option(
    "--no-pager", is_flag=True, help="Never through a pager, however long it is."
)


class _Page(io.StringIO):
    """Gathers what is printed, and passes for the terminal that it will be shown on."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._terminal.encoding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()


@contextmanager
def paged(no_pager: bool) -> Iterator[None]:
    """What is printed inside goes through the user's pager (`PAGER`, else less) where it is longer than the terminal.

    Without a terminal on both sides, or with `no_pager`, nothing is held back.
    """
    terminal = sys.stdout
    if no_pager or not (terminal.isatty() and sys.stdin is not None and sys.stdin.isatty()):
        yield
        return
    page = _Page(terminal)
    sys.stdout = page
    try:
        yield
    finally:
        sys.stdout = terminal
        _show(page.getvalue())


def _show(text: str) -> None:
    if text.count("\n") < shutil.get_terminal_size().lines:
        click.echo(text, nl=False)
    else:
        click.echo_via_pager(text, color="\x1b[" in text or None)
