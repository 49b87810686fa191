"""The page of an audit: where two sides are the same, and where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from pipeline.report import plots
from pipeline.report.page import Page, Plot, Section, Table

SAME, MISSING, EXTRA, DIFFERENT = "same", "missing", "extra", "different"
KINDS: Final = ((SAME, "#cfe3d4"), (EXTRA, "#e9a23b"), (MISSING, "#c0392b"), (DIFFERENT, "#7b3fa0"))
"""Each with its colour, the worst last: where several windows share a field of the plot, it has the worst."""
NUMBERS: Final = {name: number for number, (name, _) in enumerate(KINDS)}
MOST_STEPS: Final = 240
MOST_ROWS: Final = 1_000


class Window(NamedTuple):
    """A window of time of a partition, on both sides."""

    topic: str
    partition: int
    start: datetime
    verdict: str
    left_records: int
    right_records: int
    told: str = ""
    """Where it is not the same: what the table of the job says."""


def page_of(left: str, right: str, window: str, windows: Sequence[Window]) -> Page:
    """The page of an audit. `left` and `right` name the sides, `window` is how long the windows are."""
    topics: dict[str, list[Window]] = {}
    for one in windows:
        topics.setdefault(one.topic, []).append(one)
    sections = [_overview(left, right, window, windows)]
    sections += [_of_topic(topic, topics[topic]) for topic in sorted(topics)]
    differing = sum(one.verdict != SAME for one in windows)
    verdict = "clean" if not differing else f"{differing:,} of {len(windows):,} windows differ"
    return Page(f"Audit: {verdict}", f"{left} (left) and {right} (right)", sections)


def _overview(left: str, right: str, window: str, windows: Sequence[Window]) -> Section:
    return Section(
        "Overview",
        [
            ("left", left),
            ("right", right),
            ("records on the left", sum(one.left_records for one in windows)),
            ("records on the right", sum(one.right_records for one in windows)),
            (f"windows of {window}", len(windows)),
            *[
                (
                    f"windows that are {name}"
                    if name in (SAME, DIFFERENT)
                    else f"windows with {name} records",
                    sum(one.verdict == name for one in windows),
                )
                for name, _ in KINDS
            ],
        ],
        notes=[
            "Missing is what the right side has less of, extra what it has more of, and different what is as "
            "much but not the same."
        ],
    )


def _of_topic(topic: str, windows: Sequence[Window]) -> Section:
    partitions = sorted({one.partition for one in windows})
    times, cells = fields(partitions, windows)
    differing = sorted((one for one in windows if one.verdict != SAME), key=lambda one: one[:3])
    tables = [
        Table(
            ["partition", "records left", "records right", "windows", "that differ"],
            [
                _row(partition, [one for one in windows if one.partition == partition])
                for partition in partitions
            ],
        )
    ]
    notes = []
    if differing:
        tables.append(
            Table(
                ["partition", "from", "verdict", "left", "right", "in words"],
                [
                    [
                        str(one.partition),
                        f"{one.start:%Y-%m-%d %H:%M}",
                        one.verdict,
                        one.left_records,
                        one.right_records,
                        one.told,
                    ]
                    for one in differing[:MOST_ROWS]
                ],
            )
        )
    if len(differing) > MOST_ROWS:
        notes.append(
            f"These are the first {MOST_ROWS:,} of {len(differing):,}; the job's output has them all."
        )
    picture = plots.grid(
        f"audit {topic}", [f"{topic}-{partition}" for partition in partitions], times, cells, KINDS
    )
    return Section(
        topic,
        plots=[Plot(picture, "Windows by partition and time; empty where neither side has records")],
        tables=tables,
        notes=notes,
    )


def _row(partition: int, windows: Sequence[Window]) -> list[str | int]:
    return [
        str(partition),
        sum(one.left_records for one in windows),
        sum(one.right_records for one in windows),
        len(windows),
        sum(one.verdict != SAME for one in windows),
    ]


def fields(
    partitions: Sequence[int], windows: Sequence[Window]
) -> tuple[list[datetime], list[list[int | None]]]:
    """The plot's fields: when each of its steps begins, and for each partition the verdicts' numbers."""
    starts = sorted({one.start for one in windows})
    step = _step(starts)
    count = (starts[-1] - starts[0]) // step + 1
    times = [starts[0] + step * number for number in range(count)]
    rows = {partition: number for number, partition in enumerate(partitions)}
    cells: list[list[int | None]] = [[None] * count for _ in partitions]
    for one in windows:
        row, at = cells[rows[one.partition]], (one.start - starts[0]) // step
        row[at] = max(row[at] or 0, NUMBERS[one.verdict])
    return times, cells


def _step(starts: Sequence[datetime]) -> timedelta:
    """The least distance of two windows, or what leaves a bearable number of steps."""
    least = min(_distances(starts), default=timedelta(hours=1))
    span = starts[-1] - starts[0]
    return least * max(1, -(-(span // least + 1) // MOST_STEPS))


def _distances(starts: Sequence[datetime]) -> Iterable[timedelta]:
    return (after - before for before, after in pairwise(starts))
