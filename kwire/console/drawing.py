"""Geometry of the two drawings of a log, in SVG units; console.css has the colors and fonts.

The overview shows the complete log to scale by offset. The detail shows a range of batches in rows, like
text. The width of a batch grows with its number of records, within limits, and fits the batch's labels.

A label is drawn only where it fits. The browser's font is unknown here, so `text_width` returns the width of
a text in a wide font.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import log2
from typing import Final, NamedTuple

from kwire.console.fetching import Batch, BatchStatus, LogOffsets
from kwire.wire.plural import plural

WIDTH: Final = 960
FONT_SIZE, SMALL_FONT_SIZE = 13, 11.5
"""Font sizes of labels, as in console.css."""
PADDING: Final = 6
"""Space beside a label."""
MIN_BATCH_WIDTH, BATCH_GROWTH, MAX_BATCH_WIDTH = 56, 12, 150
MARKER_WIDTH: Final = 14
ROW_HEIGHT, ROW_GAP = 46, 26
"""Height of a row of batches, and of the space above it for one lane of labels."""
LANE_HEIGHT: Final = 17
"""Additional height for each further lane of labels."""
NARROW: Final = frozenset(" ,.-ijl|'")
WIDE: Final = frozenset("mwMW×")


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
    label: str
    """The base offset."""
    note: str
    """The number of records, or the type of the control batch."""


class Mark(NamedTuple):
    """A vertical line between two batches, such as the start of a segment."""

    x: float
    y: float
    """Top of the batches beside the line."""
    label: str
    kind: str
    label_x: float
    label_y: float
    """Baseline of the label."""
    at_end: bool
    """Whether the label ends at `label_x`."""


class _Name(NamedTuple):
    """A mark in a row, before its lane is known."""

    x: float
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
        fits = text_width(label, FONT_SIZE) + 2 * PADDING <= width
        return Bar(x(start), width, label if fits else "", title, kind)

    begins = [start for _, start in epochs]
    return Overview(
        [
            bar(
                one.base_offset,
                one.end_offset,
                f"{one.base_offset:,}",
                f"segment {one.base_offset:,} to {one.end_offset:,}, {plural(one.size_bytes, 'byte', ',')}",
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
    bounds: LogOffsets,
    segments: Sequence[Segment],
    batches: Sequence[Batch],
    descriptions: Sequence[str],
    colors: Mapping[int, int],
) -> Detail:
    """Lay out batches in rows, with marks between them.

    `descriptions` are the types of the batches, and `colors` has color numbers by producer id.
    """
    bases = {segment.base_offset for segment in segments}
    rows: list[tuple[list[Box], list[_Name]]] = [([], [])]
    x = 0.0
    epoch: int | None = None
    is_stable = True
    for batch, description in zip(batches, descriptions, strict=True):
        header = batch.header
        names: list[tuple[str, str]] = []
        if header.base_offset in bases:
            names.append((f"segment {header.base_offset:,}", "segment"))
        if header.leader_epoch != epoch:
            names.append((f"epoch {header.leader_epoch}", "epoch"))
        if is_stable and header.base_offset >= bounds.last_stable:
            names.append(("last stable offset", "stable"))
            is_stable = False
        epoch = header.leader_epoch
        label = str(header.base_offset)
        is_control = batch.status is BatchStatus.CONTROL
        note = description.partition(" ")[0] if is_control else f"×{header.records_count}"
        width = _width(header.records_count, label, note)
        if x + width + (MARKER_WIDTH if names else 0) > WIDTH:
            x = 0.0
            rows.append(([], []))
        boxes, marks = rows[-1]
        if names:
            marks.append(_Name(x + MARKER_WIDTH / 2, ", ".join(name for name, _ in names), names[0][1]))
            x += MARKER_WIDTH
        boxes.append(Box(x, 0, width, batch, colors.get(header.producer_id), label, note))
        x += width + 4
    if batches and batches[-1].header.next_offset >= bounds.high_watermark:
        if x + MARKER_WIDTH > WIDTH:
            x = 0.0
            rows.append(([], []))
        rows[-1][1].append(_Name(x + MARKER_WIDTH / 2, "high watermark", "watermark"))
    return _stack(rows)


def text_width(text: str, font_size: float) -> float:
    """Return the width of a text in a wide font, such as DejaVu Sans or Verdana."""
    ems = sum(0.4 if letter in NARROW else 1.0 if letter in WIDE else 0.65 for letter in text)
    return ems * font_size


def _stack(rows: Sequence[tuple[Sequence[Box], Sequence[_Name]]]) -> Detail:
    """Place rows below each other, with the lanes that the labels of each row need above it."""
    boxes: list[Box] = []
    marks: list[Mark] = []
    y = 0.0
    for row_boxes, names in rows:
        places = [_place_label(name) for name in names]
        lanes = _lanes([(start, end) for start, end, _ in places])
        y += ROW_GAP + LANE_HEIGHT * max(lanes, default=0)
        boxes += [box._replace(y=y) for box in row_boxes]
        for name, (start, end, at_end), lane in zip(names, places, lanes, strict=True):
            label_y = y - 8 - LANE_HEIGHT * lane
            marks.append(Mark(name.x, y, name.label, name.kind, end if at_end else start, label_y, at_end))
        y += ROW_HEIGHT
    return Detail(boxes, marks, y)


def _place_label(name: _Name) -> tuple[float, float, bool]:
    """Return start and end of a label beside its line, and whether it is to the left of the line."""
    width = text_width(name.label, SMALL_FONT_SIZE)
    start = name.x + PADDING
    if start + width <= WIDTH:
        return start, start + width, False
    if name.x - PADDING >= width:
        return name.x - PADDING - width, name.x - PADDING, True
    return max(0.0, WIDTH - width), WIDTH, False


def _lanes(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """Return the lowest lane for each interval in which it does not overlap an earlier one."""
    placed: list[tuple[float, float, int]] = []
    for start, end in intervals:
        taken = {
            lane
            for other_start, other_end, lane in placed
            if start < other_end + PADDING and other_start < end + PADDING
        }
        placed.append((start, end, next(lane for lane in count() if lane not in taken)))
    return [lane for _, _, lane in placed]


def _width(records: int, label: str, note: str) -> float:
    """Return the width of a batch, which fits its two labels."""
    width = min(MAX_BATCH_WIDTH, MIN_BATCH_WIDTH + BATCH_GROWTH * log2(max(1, records)))
    labels = max(text_width(label, FONT_SIZE), text_width(note, SMALL_FONT_SIZE))
    return round(max(width, labels + PADDING), 2)
