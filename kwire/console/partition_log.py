"""The log of a partition as it is made: segments, batches, who wrote them, and what became of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from kwire.broker.storage.checkpoints import LEADER_EPOCHS, read_epochs
from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.cli.admin.transactions import Writer, writers_of
from kwire.cli.files.internal_records import MARKERS
from kwire.cli.records.positions import offsets_of
from kwire.cli.shared.failure import Failure, UsageError
from kwire.client.failure import Lost
from kwire.console.asked import Page, PageAnswer, PageRequest
from kwire.console.drawing import Segment, detail, overview
from kwire.console.passing import SEGMENT
from kwire.console.reading import Batch, Bounds, Fate, bounds_of, fetch
from kwire.wire.batch import CorruptBatch, control_type
from kwire.wire.errors import ApiError

MAX_BATCHES: Final = 60
"""Batches of a drawing."""
FEW_BATCHES: Final = 30
"""Of the newest so many are looked for."""
DRAWN_BYTES: Final = 1024 * 1024
FIRST_SPAN, SPAN_GROWTH, MAX_SPANS = 64, 8, 6
MAX_WRITERS: Final = 50
COLOURS: Final = 8


class Kept(NamedTuple):
    """What this broker has of a partition on its disks."""

    directory: str
    segments: Sequence[Segment]
    epochs: Sequence[tuple[int, int]]
    """Leader epochs, and where each begins."""


def log_page(asked: PageRequest) -> PageAnswer:
    """The newest batches, or those from a place on. UsageError, Failure, ApiError."""
    topic, partition = asked.topic, asked.partition
    bounds = bounds_of(asked.cluster, topic, partition)
    batches, bounds = _window(asked, bounds)
    kept = _kept(asked.place.log_dirs, f"{topic}-{partition}", bounds.high_watermark)
    segments = kept.segments if kept is not None else ()
    epochs = kept.epochs if kept is not None else ()
    producers = list(dict.fromkeys(one.header.producer_id for one in batches if one.header.has_producer_id))
    colours = {producer: number % COLOURS for number, producer in enumerate(producers)}
    placed = asked.cluster.placed([(topic, partition)])[topic, partition]
    return Page(
        "log.html",
        {
            "topic": topic,
            "partition": partition,
            "bounds": bounds,
            "kept": kept,
            "replicas": placed.replica_nodes,
            "overview": overview(bounds, segments, epochs, batches),
            "detail": detail(bounds, segments, batches, colours),
            "batches": [(batch, said_of(batch)) for batch in batches],
            "colours": colours,
            "writers": _writers(asked),
            "first": batches[0].header.base_offset if batches else bounds.log_start,
            "next": batches[-1].header.next_offset if batches else bounds.high_watermark,
            "span": batches[-1].header.next_offset - batches[0].header.base_offset if batches else 0,
            "fate": Fate,
        },
    )


def said_of(batch: Batch) -> str:
    """What a batch is, in a word or two."""
    if batch.fate is not Fate.CONTROL:
        return str(batch.fate.value)
    try:
        kinds = {control_type(record)[1] for record in batch.records()}
    except (CorruptBatch, Failure):
        kinds = set()
    ends = {name for kind, name in MARKERS.items() if kinds == {kind}}
    return f"{ends.pop()} marker" if ends else "control records"


def _window(asked: PageRequest, bounds: Bounds) -> tuple[list[Batch], Bounds]:
    topic, partition = asked.topic, asked.partition
    if given := asked.text("from"):
        at = offsets_of(asked.cluster, given, [(topic, partition)], asked.now_ms, "from")[topic, partition]
        if not bounds.log_start <= at <= bounds.high_watermark:
            raise UsageError(
                f"offset {at} is not there: this log goes from {bounds.log_start} to {bounds.high_watermark}"
            )
        fetched = fetch(asked.cluster, topic, partition, at, size_bytes=DRAWN_BYTES)
        return list(fetched.batches[:MAX_BATCHES]), fetched.bounds
    # How many records a batch has is not known before it is read, so ever more are looked at.
    span, found = FIRST_SPAN, fetch(asked.cluster, topic, partition, bounds.high_watermark)
    for _ in range(MAX_SPANS):
        at = max(bounds.log_start, bounds.high_watermark - span)
        wider = fetch(asked.cluster, topic, partition, at, size_bytes=DRAWN_BYTES)
        if found.batches and wider.batches[-1].header.next_offset < bounds.high_watermark:
            break  # more than is fetched at once
        found = wider
        if at == bounds.log_start or len(found.batches) >= FEW_BATCHES:
            break
        span *= SPAN_GROWTH
    return list(found.batches[-MAX_BATCHES:]), found.bounds


def _kept(log_dirs: Sequence[str], name: str, end: int) -> Kept | None:
    """What is on the disks of this broker; None where it has no replica."""
    for log_dir in log_dirs:
        directory = os.path.join(log_dir, name)
        try:
            with os.scandir(directory) as entries:
                sizes = {
                    int(found[1]): entry.stat().st_size
                    for entry in entries
                    if (found := SEGMENT.fullmatch(entry.name))
                }
            epochs = read_epochs(RealDisk(), os.path.join(directory, LEADER_EPOCHS))
        except (OSError, StorageError):
            continue  # not there, or a segment has been deleted just now
        bases = sorted(sizes)
        segments = (
            [
                Segment(base, following, sizes[base])
                for base, following in zip(bases, [*bases[1:], max(end, bases[-1])], strict=True)
            ]
            if bases
            else []
        )
        return Kept(directory, segments, epochs)
    return None


def _writers(asked: PageRequest) -> list[Writer]:
    """Whom the leader knows as a producer of the partition."""
    try:
        found = asked.cluster.retried(
            lambda: list(writers_of(asked.cluster, [(asked.topic, asked.partition)]))
        )
    except (ApiError, Lost):
        return []
    return sorted(found, key=lambda one: -one.state.last_timestamp)[:MAX_WRITERS]
