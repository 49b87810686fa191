"""The metadata image that a node would load from its metadata log and snapshots."""

from __future__ import annotations

from pathlib import Path

from kwire.broker.metadata.batches import TransactionFilter, decode_batches, size_of_complete_batches
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.snapshot import snapshot_records
from kwire.wire.records.metadata import RegisterBrokerRecord, RegisterControllerRecord


def image_at(home: Path, last_offset: int) -> list[str]:
    """Return the records of the image at `last_offset`, as sorted text. `home` is the log's directory.

    The records come from the newest snapshot that ends at `last_offset` or before, and from the log after the
    snapshot.
    """
    ends = {int(path.name.partition("-")[0]): path for path in home.glob("*-*.checkpoint")}
    start = max((end for end in ends if end <= last_offset + 1), default=0)
    batches = list(decode_batches(ends[start].read_bytes())) if start in ends else []
    for path in sorted(home.glob("*.log")):
        log = path.read_bytes()
        batches += [
            batch
            for batch in decode_batches(log[: size_of_complete_batches(log)])
            if start <= batch.base_offset and batch.last_offset <= last_offset
        ]
    transactions, delta = TransactionFilter(), MetadataDelta(MetadataImage())
    for batch in batches:
        delta.replay_all(transactions.feed(batch.records))
    return sorted(normalized_repr(stored.record) for stored in snapshot_records(delta.apply(last_offset, 0)))


def normalized_repr(record: object) -> str:
    """Return a record as text. Sorts its features, which Apache Kafka writes in arbitrary order."""
    if isinstance(record, RegisterBrokerRecord):
        record.features.sort(key=lambda feature: feature.name)
    if isinstance(record, RegisterControllerRecord):
        record.features.sort(key=lambda feature: feature.name)
    return repr(record)
