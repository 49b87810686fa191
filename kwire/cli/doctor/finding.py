"""Findings of `kwire doctor`, with fixes."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """Result of one check."""

    area: str
    severity: str
    message: str
    fix: str | None = None


def ok(area: str, message: str) -> Finding:
    return Finding(area, OK, message)


def warning(area: str, message: str, fix: str) -> Finding:
    """Return a finding about something that may cause trouble."""
    return Finding(area, WARNING, message, fix)


def problem(area: str, message: str, fix: str) -> Finding:
    """Return a finding about something that keeps a broker from starting or from working correctly."""
    return Finding(area, PROBLEM, message, fix)
