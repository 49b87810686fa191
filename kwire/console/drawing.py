"""Where things stand in the two drawings of a log, in units of SVG. What they look like is in the sheet.

The overview is to scale: its width is all the offsets of the log. The detail is not: it goes on in rows, as
text does, and a batch is as wide as its number of records lets it, within bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Final, NamedTuple

from kwire.console.fetching import Batch, LogOffsets

WIDTH: Final = 960
MIN_LABEL_WIDTH: Final = 70
"""How wide a segment or an epoch is that has a label."""
MIN_BATCH_WIDTH, BATCH_GROWTH, MAX_BATCH_WIDTH = 56, 12, 150
MARKER_WIDTH: Final = 14
ROW_HEIGHT, ROW_GAP = 46, 26
"""Of a row of batches, and of the room above it that the names of markers take."""


class Segment(NamedTuple):
    """A segment file, from its base offset to where the next one begins."""

    base_offset: int
    end_offset: int
    size_bytes: int


class Bar(NamedTuple):
    """A piece of the overview."""

    x: float
    width: float
    label: str
    title: str
    kind: str


class InputRecord(NamedTuple):
    """An offset that has a name."""

    x: float
    lane: int
    """Which of the rows above its name stands in, so that names do not lie on each other."""
    label: str
    at_end: bool
    """Whether its name stands to the left of it."""


class Overview(NamedTuple):
    """A whole log."""

    segments: Sequence[Bar]
    epochs: Sequence[Bar]
    lines: Sequence[InputRecord]
    window: tuple[float, float]
    """Where what the detail shows begins, and how wide it is."""


class Box(NamedTuple):
    """A batch of the detail."""

    x: float
    y: float
    width: float
    batch: Batch
    color: int | None
    """Of its producer; None where it has no producer id."""


class Mark(NamedTuple):
    """What begins, or is reached, between two batches."""

    x: float
    y: float
    label: str
    kind: str


class Detail(NamedTuple):
    """Some batches."""

    boxes: Sequence[Box]
    marks: Sequence[Mark]
    height: float


def overview(
    bounds: LogOffsets,
    segments: Sequence[Segment],
    epochs: Sequence[tuple[int, int]],
    batches: Sequence[Batch],
) -> Overview:
    """The log from its first segment to its high watermark."""
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
            InputRecord(x(offset), lane, f"{name} {offset:,}", x(offset) > WIDTH / 2)
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
    """Batches one after the other, with what begins between them."""
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
