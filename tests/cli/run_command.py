"""The result of a command that a test runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class CommandResult(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The error message of a failed command, which is one line."""
        assert self.status
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


RunCommand = Callable[..., CommandResult]
"""A function that runs a command with these arguments."""
