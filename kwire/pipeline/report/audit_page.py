"""The HTML page of an audit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

from kwire.pipeline.report import plots
from kwire.pipeline.report.page import Page, Plot, Section, Table
from kwire.pipeline.report.times import minute, to_datetime
from kwire.wire.plural import plural

SAME, MISSING, EXTRA, DIFFERENT = "same", "missing", "extra", "different"
KINDS: Final = ((SAME, "#cfe3d4"), (EXTRA, "#e9a23b"), (MISSING, "#c0392b"), (DIFFERENT, "#7b3fa0"))
"""The verdicts on windows and their colors, the worst verdict last. A cell has the color of the worst."""
NUMBERS: Final = {name: number for number, (name, _) in enumerate(KINDS)}
MAX_STEPS: Final = 240
MAX_ROWS: Final = 1_000


class Window(NamedTuple):
    """The result of comparing one time window of a partition."""

    topic: str
    partition: int
    start_ms: int
    verdict: str
    left_records: int
    right_records: int
    description: str = ""
    """The difference in words; empty if there is no difference."""


def page_of(left: str, right: str, window: str, windows: Sequence[Window]) -> Page:
    """Return the page. `left` and `right` are the sides' names, and `window` is the length of a window."""
    topics: dict[str, list[Window]] = {}
    for one in windows:
        topics.setdefault(one.topic, []).append(one)
    sections = [_overview(left, right, window, windows)]
    sections += [_of_topic(topic, topics[topic]) for topic in sorted(topics)]
    differing = sum(one.verdict != SAME for one in windows)
    verdict = "clean" if not differing else f"{differing:,} of {plural(len(windows), 'window', ',')} differ"
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
            "Missing: the right side has fewer records. Extra: the right side has more records. "
            "Different: the numbers of records are equal, but the records are not."
        ],
    )


def _of_topic(topic: str, windows: Sequence[Window]) -> Section:
    partitions = sorted({one.partition for one in windows})
    drawn = [one for one in windows if to_datetime(one.start_ms) is not None]
    differing = sorted((one for one in windows if one.verdict != SAME), key=lambda one: one[:3])
    tables = [
        Table(
            ["partition", "records left", "records right", "windows", "windows that differ"],
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
                ["partition", "from", "verdict", "left", "right", "description"],
                [
                    [
                        str(one.partition),
                        minute(one.start_ms),
                        one.verdict,
                        one.left_records,
                        one.right_records,
                        one.description,
                    ]
                    for one in differing[:MAX_ROWS]
                ],
            )
        )
    if len(differing) > MAX_ROWS:
        notes.append(
            f"The table shows the first {MAX_ROWS:,} of {len(differing):,} windows; the job prints all."
        )
    pictures = []
    if drawn:
        times, cells = plot_cells(partitions, drawn)
        picture = plots.grid(
            f"audit {topic}", [f"{topic}-{partition}" for partition in partitions], times, cells, KINDS
        )
        pictures.append(Plot(picture, "Windows by partition and time; empty if neither side has records"))
    if len(drawn) < len(windows):
        left_off = plural(len(windows) - len(drawn), "window", ",")
        notes.append(f"{left_off} outside of the years 1 to 9999: not in the plot.")
    return Section(topic, plots=pictures, tables=tables, notes=notes)


def _row(partition: int, windows: Sequence[Window]) -> list[str | int]:
    return [
        str(partition),
        sum(one.left_records for one in windows),
        sum(one.right_records for one in windows),
        len(windows),
        sum(one.verdict != SAME for one in windows),
    ]


def plot_cells(
    partitions: Sequence[int], windows: Sequence[Window]
) -> tuple[list[datetime], list[list[int | None]]]:
    """Return the start times of the plot's columns, and the cells of each partition's row.

    A cell is an index of KINDS, or None without a window. The windows must be within the years 1 to 9999.
    """
    starts_ms = sorted({one.start_ms for one in windows})
    first_ms, step_ms = starts_ms[0], _step_ms(starts_ms)
    count = (starts_ms[-1] - first_ms) // step_ms + 1
    starts = (to_datetime(first_ms + step_ms * number) for number in range(count))
    times = [start for start in starts if start is not None]
    rows = {partition: number for number, partition in enumerate(partitions)}
    cells: list[list[int | None]] = [[None] * count for _ in partitions]
    for one in windows:
        row, at = cells[rows[one.partition]], (one.start_ms - first_ms) // step_ms
        row[at] = max(row[at] or 0, NUMBERS[one.verdict])
    return times, cells


def _step_ms(starts_ms: Sequence[int]) -> int:
    """Return the width of a column in ms.

    The width is the smallest distance between windows, or a multiple that limits the columns to MAX_STEPS.
    """
    least_ms = min(_distances(starts_ms), default=3_600_000)
    span_ms = starts_ms[-1] - starts_ms[0]
    return least_ms * max(1, -(-(span_ms // least_ms + 1) // MAX_STEPS))


def _distances(starts_ms: Sequence[int]) -> Iterable[int]:
    return (after - before for before, after in pairwise(starts_ms))
