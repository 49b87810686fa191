"""The bootstrap metadata of a new cluster: its first feature levels and SCRAM credentials. KIP-778, KIP-900.

Formatting a log directory decides them. Apache Kafka 4.4 stores the records in snapshot 0-0 of the metadata
log (KIP-1170). Older releases and kwire store them in `bootstrap.checkpoint`. Neither file is committed
metadata: the first active controller writes the records to the metadata log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kwire.broker.metadata.batches import CorruptMetadata, NoBootstrapMetadata, decode_batches
from kwire.broker.metadata.features import check_levels
from kwire.broker.metadata.image import ELR_VERSION, METADATA_VERSION, RESOURCE_BROKER
from kwire.broker.metadata.records import (
    ELR_LEVEL,
    TRANSACTIONS_LEVEL,
    StoredRecord,
    partition_record_version,
)
from kwire.broker.storage.dirs.meta_properties import (
    BOOTSTRAP_CHECKPOINT,
    FIRST_SNAPSHOT,
    METADATA_LOG,
)
from kwire.broker.storage.disk import Disk, join
from kwire.wire.records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionRecord,
)
from kwire.wire.registry import UnknownRecord
from kwire.wire.schema import Message

TRANSACTION_NAME: Final = "Bootstrap records"
ABORT_REASON: Final = "Controller failover"


def bootstrap_records(disk: Disk, log_dir: str) -> list[Message]:
    """Return the bootstrap metadata in `log_dir`. As in Kafka 4.4, records in snapshot 0-0 take precedence.

    Raises NoBootstrapMetadata if there are no records, and CorruptMetadata if they cannot be used.
    """
    for path in (join(join(log_dir, METADATA_LOG), FIRST_SNAPSHOT), join(log_dir, BOOTSTRAP_CHECKPOINT)):
        if not disk.exists(path):
            continue
        found = [record for batch in decode_batches(disk.read(path)) for record in batch.records]
        if found:
            _check(found, path)
            return found
    raise NoBootstrapMetadata(
        f"{log_dir} has no bootstrap metadata to start a new cluster with, neither in {BOOTSTRAP_CHECKPOINT} "
        f"nor in {METADATA_LOG}/{FIRST_SNAPSHOT}: copy the file from another controller, or remove "
        f"meta.properties and {METADATA_LOG} and format the directory again"
    )


def _check(records: Sequence[Message], path: str) -> None:
    levels = {
        record.name: record.feature_level for record in records if isinstance(record, FeatureLevelRecord)
    }
    if METADATA_VERSION not in levels:
        raise CorruptMetadata(f"{path} has no {METADATA_VERSION}: format the directory again")
    remedy = (
        "start the release that formatted the directory, or format it again with --release-version 4.3-IV0"
    )
    check_levels(levels, path, remedy)
    if any(isinstance(record, UnknownRecord) for record in records):
        raise CorruptMetadata(f"{path} has records that this release does not know: {remedy}")


def activation_records(
    records: list[Message], min_insync_replicas: int, *, is_transaction_open: bool
) -> list[StoredRecord]:
    """Return the records that the first active controller writes to an empty log, including `records`.

    `is_transaction_open`: an earlier controller failed while it wrote them, so its transaction is aborted.
    """
    levels = {
        record.name: record.feature_level for record in records if isinstance(record, FeatureLevelRecord)
    }
    level = levels[METADATA_VERSION]
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
