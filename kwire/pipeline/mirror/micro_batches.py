"""A micro-batch of the mirror: its offset ranges, and the delivery of its records by tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaException

from kwire.pipeline.delivery import MappedDelivery, Outgoing, Target
from kwire.pipeline.offset_map import DeliveryError

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
RESULT: Final = "topic string, partition int, records long, next_offset long"


class PartitionPlan(NamedTuple):
    """The part of a micro-batch for one source partition: an offset range, and the target of its records."""

    target: Target
    origin: str
    """The text of the source topic's Origin."""
    start: int | None
    """The first source offset; None to start at the first record."""
    end: int
    is_new: bool
    """Whether no earlier micro-batch covered this partition."""


class PartitionResult(NamedTuple):
    """The result of a micro-batch for one source partition."""

    topic: str
    partition: int
    records: int
    """The number of records that this attempt delivered."""
    next_offset: int


Plan = Mapping[tuple[str, int], PartitionPlan]


def deliver_batches(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Deliver the records of Arrow batches, and yield a batch with the PartitionResult of each partition.

    The records of a partition must be consecutive and in offset order. Raises DeliveryError.
    """
    for key, rows in groupby(_rows(batches), key=lambda row: row[0]):
        topic, partition = key
        if key not in plan:
            raise DeliveryError(f"{topic}-{partition} has records but is not part of this micro-batch")
        done = deliver_part(key, plan[key], (record for _, record in rows))
        yield pa.RecordBatch.from_pydict(
            {name: [value] for name, value in done._asdict().items()},
            schema=pa.schema(
                [
                    ("topic", pa.string()),
                    ("partition", pa.int32()),
                    ("records", pa.int64()),
                    ("next_offset", pa.int64()),
                ]
            ),
        )


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[tuple[str, int], Outgoing]]:
    for batch in batches:
        columns: dict[str, Any] = {
            name: batch.column(name).to_pylist() for name in COLUMNS if name != "timestamp"
        }
        times = batch.column("timestamp").cast(pa.int64())
        columns["timestamp"] = [time // 1000 for time in times.to_pylist()]
        for topic, partition, offset, time_ms, key, value, headers in zip(
            *[columns[name] for name in COLUMNS], strict=True
        ):
            pairs = [(header["key"], header["value"]) for header in headers or ()]
            yield (topic, partition), Outgoing(offset, time_ms, key, value, pairs)


def deliver_part(key: tuple[str, int], part: PartitionPlan, records: Iterable[Outgoing]) -> PartitionResult:
    """Deliver the records that the target does not have yet, and extend the offset map to `part.end`.

    `key` is the source topic and partition. Raises DeliveryError.
    """
    topic, partition = key
    try:
        with MappedDelivery(part.target, part.origin) as delivery:
            start, records = first_offset(delivery.next_offset, part, records)
            count = delivery.deliver((one for one in records if one.source_offset >= start), start, part.end)
            assert delivery.next_offset is not None
            return PartitionResult(topic, partition, count, delivery.next_offset)
    except KafkaException as error:
        raise DeliveryError(
            f"cannot write to {part.target.name} of the target cluster: {error.args[0].str()}"
        ) from None


def first_offset(
    progress: int | None, part: PartitionPlan, records: Iterable[Outgoing]
) -> tuple[int, Iterable[Outgoing]]:
    """Return the source offset at which to continue, and all the records.

    `progress` is the source offset at which the offset map ends; None if the map has no entry. Raises
    DeliveryError if `progress` does not fit the offsets in the checkpoint.
    """
    name = part.target.name
    remedy = "delete the checkpoint to mirror the missing records"
    if progress is None:
        if not part.is_new:
            raise DeliveryError(
                f"{name} has no offset map, but the checkpoint says that it was mirrored: the checkpoint "
                f"belongs to another mirror, or the target was deleted; {remedy}"
            )
        if part.start is not None:
            return part.start, records
        records = iter(records)
        first = next(records, None)
        return (part.end, ()) if first is None else (first.source_offset, chain([first], records))
    if part.start is not None and progress < part.start:
        raise DeliveryError(
            f"{name} was mirrored up to source offset {progress}, but the checkpoint continues at "
            f"{part.start}: it belongs to another mirror, or the target is an older copy; {remedy}"
        )
    return progress, records


class PartitionRange(NamedTuple):
    """The offset range of a partition in a micro-batch, from Spark's checkpoint. See PartitionPlan."""

    start: int | None
    end: int
    is_new: bool


def checkpoint_ranges(checkpoint: Path, batch_id: int) -> dict[tuple[str, int], PartitionRange]:
    """Read the offset range of each partition in a micro-batch.

    Raises DeliveryError if the checkpoint is malformed.
    """
    ends = _offsets(checkpoint / "offsets" / str(batch_id))
    before: dict[tuple[str, int], int] = {}
    first = checkpoint / "sources" / "0" / "0"
    if batch_id:
        before = _offsets(checkpoint / "offsets" / str(batch_id - 1))
    elif first.exists():
        before = _offsets(first)  # Spark's Kafka source records its starting offsets here.
    return {
        key: PartitionRange(before.get(key), end, not batch_id or key not in before)
        for key, end in ends.items()
    }


def _offsets(path: Path) -> dict[tuple[str, int], int]:
    try:
        content = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in content.items()
            for partition, offset in partitions.items()
        }
    except (OSError, ValueError, AttributeError, IndexError) as error:
        raise DeliveryError(f"{path} does not contain offsets in Spark's format: {error}") from None
