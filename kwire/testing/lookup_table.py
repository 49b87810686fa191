"""A dict whose missing keys are explained in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_KEYS_SHOWN = 20


class LookupTable(dict[K, V]):
    """A dict that raises LookupError, with the keys that exist, where a plain dict raises KeyError.

    `noun` names what a key identifies, such as "broker".
    """

    noun = "key"

    def named(self, noun: str) -> LookupTable[K, V]:
        """Set the noun and return the table."""
        self.noun = noun
        return self

    def __missing__(self, key: object) -> V:
        raise LookupError(f"there is no {self.noun} {_text(key)}: {describe_choice(list(self))}")


def describe_choice(known: Sequence[object]) -> str:
    """Return the end of a message about a wrong name: the names that exist."""
    if not known:
        return "none exists"
    left_off = len(known) - MAX_KEYS_SHOWN
    shown = ", ".join(
        [*map(_text, known[:MAX_KEYS_SHOWN]), *([f"or {left_off} more"] if left_off > 0 else [])]
    )
    return f"use {'one of ' if len(known) > 1 else ''}{shown}"


def describe_near(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about a wrong name: the nearest name, and the names that exist."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    if not near:
        return describe_choice(known)
    return f"did you mean {near[0]!r}?" + (f" Or {describe_choice(known)}" if len(known) > 1 else "")


def _text(key: object) -> str:
    return repr(tuple(key) if isinstance(key, tuple) else key)
