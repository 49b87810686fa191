"""What a doctor finds: how it is, and what to do about it."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """One thing that was looked at."""

    area: str
    severity: str
    message: str
    fix: str | None = None


def ok(area: str, message: str) -> Finding:
    return Finding(area, OK, message)


def warning(area: str, message: str, fix: str) -> Finding:
    """What may hurt, or hurts others."""
    return Finding(area, WARNING, message, fix)


def problem(area: str, message: str, fix: str) -> Finding:
    """What keeps a broker from starting, or from keeping what it promises."""
    return Finding(area, PROBLEM, message, fix)
