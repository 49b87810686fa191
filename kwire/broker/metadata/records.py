"""Constructors of metadata records, in the versions that the cluster's metadata.version allows."""

from __future__ import annotations

from typing import Final

from kwire.broker.metadata.image import BrokerImage, ControllerImage, MetadataImage, PartitionImage
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from kwire.wire.schema import Message


class StoredRecord(NamedTuple):
    """A metadata record, and the record version with which it is written."""

    record: Message
    version: int = 0


# The metadata.version levels that added records or fields.
MIGRATION_LEVEL: Final = 8  # 3.4-IV0
SCRAM_LEVEL: Final = 11  # 3.5-IV2, KIP-900
TRANSACTIONS_LEVEL: Final = 13  # 3.6-IV1, KIP-868
DIRECTORIES_LEVEL: Final = 17  # 3.7-IV2, KIP-858
ELR_LEVEL: Final = 23  # 4.0-IV1, KIP-966
CORDONED_LEVEL: Final = 30  # 4.3-IV0, KIP-1066
CONTROLLER_REGISTRATION_LEVEL: Final = 15  # 3.7-IV0, KIP-919

MIN_LEVEL: Final = 7  # 3.3-IV3
MAX_LEVEL: Final = 30  # 4.3-IV0


def partition_record_version(level: int) -> int:
    """Return the version of PartitionRecord and PartitionChangeRecord at a metadata.version level."""
    if level >= ELR_LEVEL:
        return 2
    return 1 if level >= DIRECTORIES_LEVEL else 0


def register_broker_version(level: int) -> int:
    """Return the version of RegisterBrokerRecord at a metadata.version level."""
    if level >= CORDONED_LEVEL:
        return 4
    if level >= DIRECTORIES_LEVEL:
        return 3
    return 2 if level >= MIGRATION_LEVEL else 1


def partition_record(
    image: MetadataImage, topic_id: Uuid, index: int, partition: PartitionImage
) -> StoredRecord:
    """Return the record that creates this partition."""
    level = image.metadata_version
    record = PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
    if level >= DIRECTORIES_LEVEL:
        record.directories = list(partition.directories)
    if level >= ELR_LEVEL:
        record.eligible_leader_replicas = list(partition.elr) or None
        record.last_known_elr = list(partition.last_known_elr) or None
    return StoredRecord(record, partition_record_version(level))


def broker_record(broker: BrokerImage, level: int) -> StoredRecord:
    """Return the registration record of a broker at a metadata.version level."""
    record = RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=[
            BrokerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in broker.endpoints.values()
        ],
        features=[
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
    )
    if level >= MIGRATION_LEVEL:
        record.is_migrating_zk_broker = broker.is_migrating
    if level >= DIRECTORIES_LEVEL:
        record.log_dirs = list(broker.log_dirs)
    if level >= CORDONED_LEVEL and broker.cordoned_log_dirs is not None:
        record.cordoned_log_dirs = list(broker.cordoned_log_dirs)
    return StoredRecord(record, register_broker_version(level))


def controller_record(controller: ControllerImage) -> StoredRecord:
    return StoredRecord(
        RegisterControllerRecord(
            controller_id=controller.controller_id,
            incarnation_id=controller.incarnation_id,
            zk_migration_ready=controller.zk_migration_ready,
            end_points=[
                ControllerEndpoint(
                    name=endpoint.name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=endpoint.security_protocol,
                )
                for endpoint in controller.endpoints.values()
            ],
            features=[
                ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in controller.features.items()
            ],
        )
    )
