"""The metadata image that a node would load from its metadata log and snapshots."""

from __future__ import annotations

from pathlib import Path

from kwire.broker.metadata.batches import TransactionFilter, decode_batches, size_of_complete_batches
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.snapshot import snapshot_records
from kwire.wire.records.metadata import (
    ConfigRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UserScramCredentialRecord,
)


def image_at(home: Path, last_offset: int) -> list[str]:
    """Return the records of the image at `last_offset`, as sorted text. `home` is the log's directory.

    The records come from the newest snapshot that ends at `last_offset` or before, and from the log after the
    snapshot. The snapshot that formatting wrote does not count: its records are also in the log (KIP-1170).
    """
    ends = {int(path.name.partition("-")[0]): path for path in home.glob("*-*.checkpoint")}
    start = max((end for end in ends if 0 < end <= last_offset + 1), default=0)
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


def bootstrap_values(log: bytes) -> list[tuple[str, object]]:
    """Return the features, users (without a value) and settings before the first registration of a node."""
    found: list[tuple[str, object]] = []
    for batch in decode_batches(log):
        for record in batch.records:
            match record:
                case RegisterBrokerRecord() | RegisterControllerRecord():
                    return found
                case FeatureLevelRecord():
                    found.append((record.name, record.feature_level))
                case UserScramCredentialRecord():
                    found.append((record.name, None))
                case ConfigRecord():
                    found.append((record.name, record.value))
    return found


def normalized_repr(record: object) -> str:
    """Return a record as text. Sorts its features, which Apache Kafka writes in arbitrary order."""
    if isinstance(record, RegisterBrokerRecord):
        record.features.sort(key=lambda feature: feature.name)
    if isinstance(record, RegisterControllerRecord):
        record.features.sort(key=lambda feature: feature.name)
    return repr(record)
