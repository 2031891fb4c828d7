"""A process that dies in the middle: an action is run in a child that ends at its n-th change of the disk.

Nothing runs after that, no `except` and no `finally`, as with SIGKILL. What the action has done to the disk stays.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

CHANGES = (
    "open",
    "write",
    "replace",
    "rename",
    "mkdir",
    "link",
    "symlink",
    "unlink",
    "rmdir",
    "fsync",
    "chmod",
    "fchmod",
)


def dies_at(number: int, action: Callable[[], Any]) -> bool:
    """Run `action` in a child that dies before its `number`-th change (from 1); False where it came to its end."""
    child = os.fork()
    if child == 0:
        _run(number, action)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), f"the action failed in the child, status {status}"
    return status == 9


def deaths(action: Callable[[], Any], prepare: Callable[[], Any], step: int = 1) -> Iterator[int]:
    """Prepare and run `action`, dying at every `step`-th change in turn, until it comes to its end (yielded as 0)."""
    number = 1
    while True:
        prepare()
        if not dies_at(number, action):
            yield 0
            return
        yield number
        number += step


def _run(number: int, action: Callable[[], Any]) -> NoReturn:
    left = number

    def counted(real: Callable[..., Any], is_open: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **names: Any) -> Any:
            nonlocal left
            if not is_open or (len(arguments) > 1 and arguments[1] & os.O_CREAT):
                left -= 1
                if left == 0:
                    os._exit(9)
            return real(*arguments, **names)

        return call

    try:
        patch = pytest.MonkeyPatch()
        for name in CHANGES:
            patch.setattr(os, name, counted(getattr(os, name), name == "open"))
        from eventstore.results import intents
        from eventstore.stream.filesystem import FileSystem

        patch.setattr(FileSystem, "write", staticmethod(os.write))
        patch.setattr(intents, "exchange", counted(intents.exchange, False))
        action()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
