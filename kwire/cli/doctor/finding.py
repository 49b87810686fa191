"""What a doctor finds: how it is, and what to do about it."""

from __future__ import annotations

from typing import Final, NamedTuple

GOOD: Final = "good"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """One thing that was looked at."""

    area: str
    verdict: str
    found: str
    to_do: str | None = None


def good(area: str, found: str) -> Finding:
    return Finding(area, GOOD, found)


def warning(area: str, found: str, to_do: str) -> Finding:
    """What may hurt, or hurts others."""
    return Finding(area, WARNING, found, to_do)


def problem(area: str, found: str, to_do: str) -> Finding:
    """What keeps a broker from starting, or from keeping what it promises."""
    return Finding(area, PROBLEM, found, to_do)
