"""The bootstrap metadata of a new cluster: `bootstrap.checkpoint`, or else Kafka 4.3.1's default features.

KIP-778: formatting a log directory decides the cluster's first metadata.version and feature levels.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.metadata.batches import decode_batches
from kwire.broker.metadata.features import default_features
from kwire.broker.metadata.image import ELR_VERSION, METADATA_VERSION, RESOURCE_BROKER
from kwire.broker.metadata.records import (
    ELR_LEVEL,
    MAX_LEVEL,
    TRANSACTIONS_LEVEL,
    StoredRecord,
    partition_record_version,
)
from kwire.broker.storage.dirs.meta_properties import BOOTSTRAP_CHECKPOINT
from kwire.broker.storage.disk import Disk
from kwire.wire.records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionRecord,
)
from kwire.wire.schema import Message

TRANSACTION_NAME: Final = "Bootstrap records"
ABORT_REASON: Final = "Controller failover"


def bootstrap_records(disk: Disk, log_dir: str) -> list[Message]:
    """Return the records of `bootstrap.checkpoint` in `log_dir`, or the default feature levels."""
    path = f"{log_dir}/{BOOTSTRAP_CHECKPOINT}"
    if disk.exists(path):
        return [record for batch in decode_batches(disk.read(path)) for record in batch.records]
    return [FeatureLevelRecord(name=name, feature_level=level) for name, level in default_features()]


def activation_records(
    records: list[Message], min_insync_replicas: int, *, is_transaction_open: bool
) -> list[StoredRecord]:
    """Return the records that the first active controller writes to an empty log, including `records`.

    `is_transaction_open`: an earlier controller failed while it wrote them, so its transaction is aborted.
    """
    levels = {
        record.name: record.feature_level for record in records if isinstance(record, FeatureLevelRecord)
    }
    level = levels.get(METADATA_VERSION, MAX_LEVEL)
    out: list[Message] = []
    if is_transaction_open:
        out.append(AbortTransactionRecord(reason=ABORT_REASON))
    if level >= TRANSACTIONS_LEVEL:
        out.append(BeginTransactionRecord(name=TRANSACTION_NAME))
    out.extend(records)
    if level >= ELR_LEVEL and levels.get(ELR_VERSION, 0) >= 1:
        # KIP-966: with ELR, min.insync.replicas must be the same on all brokers.
        out.append(
            ConfigRecord(
                resource_type=RESOURCE_BROKER,
                resource_name="",
                name="min.insync.replicas",
                value=str(min_insync_replicas),
            )
        )
    if level >= TRANSACTIONS_LEVEL:
        out.append(EndTransactionRecord())
    # The checkpoint of a restored archive contains topics, too.
    partition_version = partition_record_version(level)
    return [
        StoredRecord(record, partition_version if isinstance(record, PartitionRecord) else 0)
        for record in out
    ]
