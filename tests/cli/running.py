"""How tests run commands, and what these have said."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """What a command has said, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """What it has failed with, which is one line."""
        assert self.status
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


Desk = Callable[..., Ran]
"""Runs a command with these arguments."""
