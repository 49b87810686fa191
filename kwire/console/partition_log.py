"""The page that draws a partition's log: segments, batches, producers and transactions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from kwire.broker.storage.checkpoints import LEADER_EPOCHS, read_epochs
from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.cli.admin.transactions import PartitionProducer, describe_producers
from kwire.cli.files.internal_records import MARKERS
from kwire.cli.records.positions import resolve_position
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.client.errors import Disconnected
from kwire.console.backwards import batches_before
from kwire.console.drawing import Segment, detail, overview
from kwire.console.fetching import Batch, BatchStatus, LogOffsets, fetch, find_bounds
from kwire.console.local_log import SEGMENT
from kwire.console.page import Page, PageRequest, PageResult
from kwire.wire.batch import CorruptBatch, control_type
from kwire.wire.errors import ApiError

MAX_BATCHES: Final = 60
"""Maximum number of batches in the drawing."""
DRAWN_BYTES: Final = 1024 * 1024
"""Size of the batches from a position on. The first batch may exceed it."""
MAX_PRODUCERS: Final = 50
COLORS: Final = 8


class LocalReplica(NamedTuple):
    """Files of a partition's replica on this broker."""

    directory: str
    segments: Sequence[Segment]
    epochs: Sequence[tuple[int, int]]
    """Leader epochs and their start offsets."""


def log_page(request: PageRequest) -> PageResult:
    """Return the page that draws the newest batches, or those before an offset or from a position on."""
    topic, partition = request.topic, request.partition
    bounds = find_bounds(request.cluster, topic, partition)
    batches, bounds = _window(request, bounds)
    if request.settings.access is not None and not batches:
        # The files below are shown only to a user who may read the topic, and no Fetch has shown that yet.
        fetch(request.cluster, topic, partition, bounds.high_watermark)
    local_replica = _local_replica(request.settings.log_dirs, f"{topic}-{partition}", bounds.high_watermark)
    segments = local_replica.segments if local_replica is not None else ()
    epochs = local_replica.epochs if local_replica is not None else ()
    producers = list(dict.fromkeys(one.header.producer_id for one in batches if one.header.has_producer_id))
    colors = {producer: number % COLORS for number, producer in enumerate(producers)}
    descriptions = [describe_batch(batch) for batch in batches]
    placed = request.cluster.partition_metadata([(topic, partition)])[topic, partition]
    return Page(
        "log.html",
        {
            "topic": topic,
            "partition": partition,
            "bounds": bounds,
            "local_replica": local_replica,
            "replicas": placed.replica_nodes,
            "overview": overview(bounds, segments, epochs, batches),
            "detail": detail(bounds, segments, batches, descriptions, colors),
            "batches": list(zip(batches, descriptions, strict=True)),
            "colors": colors,
            "producers": _describe_producers(request),
            "first": batches[0].header.base_offset if batches else bounds.log_start,
            "next": batches[-1].header.next_offset if batches else bounds.high_watermark,
            "BatchStatus": BatchStatus,
        },
    )


def describe_batch(batch: Batch) -> str:
    """Return the type of a batch, such as "aborted" or "commit marker"."""
    if batch.status is not BatchStatus.CONTROL:
        return str(batch.status.value)
    try:
        kinds = {control_type(record)[1] for record in batch.records()}
    except (CorruptBatch, CommandError):
        kinds = set()
    ends = {name for kind, name in MARKERS.items() if kinds == {kind}}
    return f"{ends.pop()} marker" if ends else "control records"


def _window(request: PageRequest, bounds: LogOffsets) -> tuple[list[Batch], LogOffsets]:
    topic, partition = request.topic, request.partition
    if given := request.text("from"):
        at = resolve_position(request.cluster, given, [(topic, partition)], request.now_ms, "from")[
            topic, partition
        ]
        if not bounds.log_start <= at <= bounds.high_watermark:
            raise UsageError(
                f"offset {at} is out of range: this log has {bounds.log_start} to {bounds.high_watermark}"
            )
        fetched = fetch(request.cluster, topic, partition, at, size_bytes=DRAWN_BYTES)
        return list(fetched.batches[:MAX_BATCHES]), fetched.bounds
    before = request.number("before")
    newest = batches_before(
        request.cluster,
        topic,
        partition,
        bounds.high_watermark if before is None else before,
        bounds,
        MAX_BATCHES,
    )
    return newest, bounds


def _local_replica(log_dirs: Sequence[str], name: str, end: int) -> LocalReplica | None:
    """Return the files of the partition `name`; None if this broker has no replica of it.

    `end` is the high watermark, up to which the last segment is drawn.
    """
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
            continue  # no replica here, or a segment was deleted meanwhile
        bases = sorted(sizes)
        segments = (
            [
                Segment(base, following, sizes[base])
                for base, following in zip(bases, [*bases[1:], max(end, bases[-1])], strict=True)
            ]
            if bases
            else []
        )
        return LocalReplica(directory, segments, epochs)
    return None


def _describe_producers(request: PageRequest) -> list[PartitionProducer]:
    """Return the active producers of the partition, latest first; none if the request fails."""
    try:
        found = request.cluster.retry(
            lambda: list(describe_producers(request.cluster, [(request.topic, request.partition)]))
        )
    except (ApiError, Disconnected):
        return []
    return sorted(found, key=lambda one: -one.state.last_timestamp)[:MAX_PRODUCERS]
