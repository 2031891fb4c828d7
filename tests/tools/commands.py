"""Commands in this process, as a user calls them."""

import json
from typing import Any

import pytest

from cli.main import main


class Command:
    """`command("replay", path, "--json")` runs it; afterwards `out`, `err` and `document` tell what was said."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capture = capfd
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        self._capture.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        self.out, self.err = self._capture.readouterr()
        assert "Traceback" not in self.err
        return int(left.value.code or 0)

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)
