"""Lengths of time as Spark tells them, of units whose length does not depend on the calendar."""

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
"""What is added to the time of an event still is one."""
