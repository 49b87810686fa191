"""Geometry of the two drawings of a log, in SVG units; console.css has the colors and fonts.

The overview shows the complete log to scale by offset. The detail shows a range of batches in rows, like
text. The width of a batch grows with its number of records, within limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Final, NamedTuple

from kwire.console.fetching import Batch, LogOffsets

WIDTH: Final = 960
MIN_LABEL_WIDTH: Final = 70
"""Minimum width of a segment or epoch with a label."""
MIN_BATCH_WIDTH, BATCH_GROWTH, MAX_BATCH_WIDTH = 56, 12, 150
MARKER_WIDTH: Final = 14
ROW_HEIGHT, ROW_GAP = 46, 26
"""Height of a row of batches, and of the space above it for labels."""


class Segment(NamedTuple):
    """A segment file, from its base offset to the base offset of the next segment."""

    base_offset: int
    end_offset: int
    size_bytes: int


class Bar(NamedTuple):
    """A segment or leader epoch in the overview."""

    x: float
    width: float
    label: str
    title: str
    kind: str


class NamedOffset(NamedTuple):
    """A vertical line at a named offset, such as the high watermark."""

    x: float
    lane: int
    """Row of the label, so that labels do not overlap."""
    label: str
    at_end: bool
    """Whether the label is to the left of the line."""


class Overview(NamedTuple):
    """The drawing of the complete log."""

    segments: Sequence[Bar]
    epochs: Sequence[Bar]
    lines: Sequence[NamedOffset]
    window: tuple[float, float]
    """Position and width of the range that the detail shows."""


class Box(NamedTuple):
    """A batch in the detail."""

    x: float
    y: float
    width: float
    batch: Batch
    color: int | None
    """Color number of the producer; None without a producer id."""


class Mark(NamedTuple):
    """A vertical line between two batches, such as the start of a segment."""

    x: float
    y: float
    label: str
    kind: str


class Detail(NamedTuple):
    """The drawing of a range of batches."""

    boxes: Sequence[Box]
    marks: Sequence[Mark]
    height: float


def overview(
    bounds: LogOffsets,
    segments: Sequence[Segment],
    epochs: Sequence[tuple[int, int]],
    batches: Sequence[Batch],
) -> Overview:
    """Lay out the complete log.

    `epochs` are the leader epochs with their start offsets. `batches` are the batches that the detail shows.
    """
    first = min([bounds.log_start, *(segment.base_offset for segment in segments)])
    last = max([bounds.high_watermark, *(segment.end_offset for segment in segments)])
    scale = WIDTH / max(1, last - first)

    def x(offset: int) -> float:
        return round((min(max(offset, first), last) - first) * scale, 2)

    def bar(start: int, end: int, label: str, title: str, kind: str) -> Bar:
        width = round(x(end) - x(start), 2)
        return Bar(x(start), width, label if width >= MIN_LABEL_WIDTH else "", title, kind)

    begins = [start for _, start in epochs]
    return Overview(
        [
            bar(
                one.base_offset,
                one.end_offset,
                f"{one.base_offset:,}",
                f"segment {one.base_offset:,} to {one.end_offset:,}, {one.size_bytes:,} bytes",
                "active" if one is segments[-1] else "closed",
            )
            for one in segments
        ],
        [
            bar(start, end, f"epoch {epoch}", f"leader epoch {epoch}, from offset {start:,}", "epoch")
            for (epoch, start), end in zip(epochs, [*begins[1:], last], strict=True)
        ]
        if epochs
        else [],
        [
            NamedOffset(x(offset), lane, f"{name} {offset:,}", x(offset) > WIDTH / 2)
            for lane, (name, offset) in enumerate(
                (
                    ("log start", bounds.log_start),
                    ("last stable offset", bounds.last_stable),
                    ("high watermark", bounds.high_watermark),
                )
            )
        ],
        (
            x(batches[0].header.base_offset),
            max(2.0, x(batches[-1].header.next_offset) - x(batches[0].header.base_offset)),
        )
        if batches
        else (x(last), 2.0),
    )


def detail(
    bounds: LogOffsets, segments: Sequence[Segment], batches: Sequence[Batch], colors: Mapping[int, int]
) -> Detail:
    """Lay out batches in rows, with marks between them. `colors` has color numbers by producer id."""
    boxes: list[Box] = []
    marks: list[Mark] = []
    bases = {segment.base_offset for segment in segments}
    x, y = 0.0, float(ROW_GAP)
    epoch: int | None = None
    is_stable = True
    for batch in batches:
        header = batch.header
        width = _width(header.records_count)
        names: list[tuple[str, str]] = []
        if header.base_offset in bases:
            names.append((f"segment {header.base_offset:,}", "segment"))
        if header.leader_epoch != epoch:
            names.append((f"epoch {header.leader_epoch}", "epoch"))
        if is_stable and header.base_offset >= bounds.last_stable:
            names.append(("last stable offset", "stable"))
            is_stable = False
        epoch = header.leader_epoch
        if x + width + (MARKER_WIDTH if names else 0) > WIDTH:
            x, y = 0.0, y + ROW_HEIGHT + ROW_GAP
        if names:
            marks.append(Mark(x + MARKER_WIDTH / 2, y, ", ".join(name for name, _ in names), names[0][1]))
            x += MARKER_WIDTH
        boxes.append(Box(x, y, width, batch, colors.get(header.producer_id)))
        x += width + 4
    if batches and batches[-1].header.next_offset >= bounds.high_watermark:
        if x + MARKER_WIDTH > WIDTH:
            x, y = 0.0, y + ROW_HEIGHT + ROW_GAP
        marks.append(Mark(x + MARKER_WIDTH / 2, y, "high watermark", "watermark"))
    return Detail(boxes, marks, y + ROW_HEIGHT)


def _width(records: int) -> float:
    return round(min(MAX_BATCH_WIDTH, MIN_BATCH_WIDTH + BATCH_GROWTH * log2(max(1, records))), 2)
