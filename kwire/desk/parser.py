"""A parser of arguments that says in one sentence what is wrong, and does not tell all options then."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """See the module; the parsers of its actions are likewise."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        hint = "" if message.endswith("?") else f"; '{self.prog} --help' tells what it takes"
        self.exit(2, f"{self.prog}: {message}{hint}\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Nothing is left over: what an action does not take is told by its own name."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            near = get_close_matches(rest[0], self._option_string_actions, 1)
            meant = f", did you mean '{near[0]}'?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}{meant}")
        return found, rest
