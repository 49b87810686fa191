"""A parser of arguments that says in one sentence what is wrong, and does not tell all options then."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """See the module; the parsers of its actions are likewise."""

    replacements: Mapping[str, str] = {}
    """Options that it has not and people look for, and what says the same."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        hint = "" if message.endswith("?") else f"; '{self.prog} --help' tells what it takes"
        self.exit(2, f"{self.prog}: {message}{hint}\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Nothing is left over: what an action does not take is told by its own name."""
        found, rest = super().parse_known_args(args, namespace)
        if rest and not self._take_trailing_positionals(found, rest):
            from difflib import get_close_matches  # which nobody needs who is not mistaken

            wanted = rest[0].partition("=")[0]
            near = get_close_matches(wanted, self._option_string_actions, 1)
            meant = self.replacements.get(wanted, near[0] if near else "")
            told = f", did you mean '{meant}'?" if meant else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}{told}")
        return found, []

    def _take_trailing_positionals(self, found: Any, rest: list[str]) -> bool:
        """Whether the last positional takes these words, which stand behind options.

        argparse fills all positionals where the first one stands: of `TOPIC --key KEY VALUE` the topic alone.
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
