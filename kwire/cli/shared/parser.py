"""An argument parser that reports an error in one sentence, without the complete usage."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser with one-sentence errors; subparsers have the same class."""

    replacements: Mapping[str, str] = {}
    """Options that other programs have, and what to use instead."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        hint = "" if message.endswith("?") else f"; see '{self.prog} --help'"
        self.exit(2, f"{self.prog}: {message}{hint}\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse all arguments, and report unknown ones with the name of the action that rejected them."""
        found, rest = super().parse_known_args(args, namespace)
        if rest and not self._take_trailing_positionals(found, rest):
            from difflib import get_close_matches  # only needed for errors

            wanted = rest[0].partition("=")[0]
            near = get_close_matches(wanted, self._option_string_actions, 1)
            meant = self.replacements.get(wanted, near[0] if near else "")
            suggestion = f", did you mean '{meant}'?" if meant else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}{suggestion}")
        return found, []

    def _take_trailing_positionals(self, found: Any, rest: list[str]) -> bool:
        """Assign positional arguments that follow options, and return whether all were assigned.

        argparse fills all positionals when it meets the first one, so `TOPIC --key KEY VALUE` has VALUE left.
        """
        positionals = self._get_positional_actions()
        if not positionals or any(word.startswith("-") for word in rest):
            return False
        last = positionals[-1]
        given = getattr(found, last.dest)
        if last.nargs in ("*", "+"):
            setattr(found, last.dest, [*given, *self._get_values(last, rest)])
        elif last.nargs == "?" and given is last.default and len(rest) == 1:
            setattr(found, last.dest, self._get_values(last, rest))
        else:
            return False
        return True
