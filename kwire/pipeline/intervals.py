"""Interval units of Spark with a fixed length, unlike months and years."""

from __future__ import annotations

from typing import Final

UNIT_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
MAX_INTERVAL_MS: Final = 10_000 * 365 * UNIT_MS["day"]
"""The longest allowed interval, 10,000 years. An event time plus this interval is a valid Spark timestamp."""
