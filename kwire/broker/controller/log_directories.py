"""Log directories of brokers: replica assignments, failed and cordoned directories. KIP-858, KIP-1066.

A broker with several log directories chooses a directory for each new replica, and reports its choice with
AssignReplicasToDirs. When the broker starts, it reports every replica whose directory differs from the
metadata. So the controller knows the replicas in each directory. If a directory fails, the broker is removed
only from the ISRs of the replicas in that directory.
"""

from __future__ import annotations

from collections.abc import Collection

from kwire.broker.controller.broker_registration import check_broker_epoch
from kwire.broker.controller.commands import AssignReplicasToDirs, ControllerResult
from kwire.broker.controller.partition_change_builder import (
    PartitionChangeBuilder,
    election_for_topic,
    remove_broker_from_isrs,
    without,
)
from kwire.broker.metadata.image import BrokerImage, MetadataImage
from kwire.broker.metadata.records import CORDONED_LEVEL, DIRECTORIES_LEVEL, StoredRecord
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import BrokerRegistrationChangeRecord


def assign_replicas_to_dirs(
    command: AssignReplicasToDirs, image: MetadataImage, *, unclean_enabled: bool
) -> ControllerResult[dict[tuple[Uuid, int], ErrorCode]]:
    """Record the directories that changed, and return an error for each refused replica.

    A replica in a failed directory is removed from the ISR. Before metadata.version 3.7-IV2, nothing is
    recorded. Raises ApiError STALE_BROKER_EPOCH if the broker is not registered with `command.broker_epoch`.
    """
    broker = check_broker_epoch(image, command.broker_id, command.broker_epoch)
    records: list[StoredRecord] = []
    refused: dict[tuple[Uuid, int], ErrorCode] = {}
    if image.metadata_version < DIRECTORIES_LEVEL:
        return ControllerResult(records, refused)
    for (topic_id, index), chosen in command.directories.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            refused[topic_id, index] = ErrorCode.UNKNOWN_TOPIC_ID
        elif not 0 <= index < len(topic.partitions):
            refused[topic_id, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif broker.broker_id not in topic.partitions[index].replicas:
            refused[topic_id, index] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            change = PartitionChangeBuilder(image, topic, index)
            change.directories = {broker.broker_id: chosen}
            if not broker.has_online_directory(chosen):
                change.election = election_for_topic(image, topic.name, unclean_enabled=unclean_enabled)
                change.isr = without(topic.partitions[index].isr, [broker.broker_id])
                change.broker_to_remove = broker.broker_id
            record = change.build()
            if record is not None:
                records.append(record)
    return ControllerResult(records, refused, atomic=False)


def offline_directory_records(
    image: MetadataImage, broker: BrokerImage, offline: Collection[Uuid], *, unclean_enabled: bool
) -> list[StoredRecord]:
    """Return the records for newly failed log directories. `offline` may also name earlier failures."""
    failed = [directory for directory in broker.log_dirs if directory in offline]
    if not failed or image.metadata_version < DIRECTORIES_LEVEL:
        return []
    records = list(
        remove_broker_from_isrs(
            image, broker.broker_id, unclean_shutdown=False, unclean_enabled=unclean_enabled, only=failed
        )
    )
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        log_dirs=[directory for directory in broker.log_dirs if directory not in failed],
    )
    return [*records, StoredRecord(change, 2)]


def cordoned_directory_records(
    image: MetadataImage, broker: BrokerImage, cordoned: Collection[Uuid]
) -> list[StoredRecord]:
    """Return a record with the cordoned log directories; no record if the set is unchanged. KIP-1066."""
    known = broker.cordoned_log_dirs
    if image.metadata_version < CORDONED_LEVEL or (known is not None and set(known) == set(cordoned)):
        return []
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, cordoned_log_dirs=sorted(cordoned)
    )
    return [StoredRecord(change, 3)]
