"""Timestamps for people. A timestamp outside Python's range (years 1 to 9999) is shown in milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_MS: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
END_MS: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1) + 1
"""The end of the year 9999."""


def to_datetime(time_ms: int) -> datetime | None:
    """Convert a timestamp to a UTC datetime, or return None outside of the years 1 to 9999."""
    return EPOCH + timedelta(milliseconds=time_ms) if FIRST_MS <= time_ms < END_MS else None


def minute(time_ms: int) -> str:
    """Format a timestamp to the minute, or in milliseconds if it is outside of the years 1 to 9999."""
    found = to_datetime(time_ms)
    if found is None:
        return f"{outside(time_ms)} ({time_ms} ms)"
    return f"{found:%Y-%m-%d %H:%M}"


def outside(time_ms: int) -> str:
    """Describe a timestamp outside of the years 1 to 9999."""
    return "before the year 1" if time_ms < FIRST_MS else "after the year 9999"
