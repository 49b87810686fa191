"""Brokers come and go: registration, and who leads a partition from then on.

A partition keeps its data on the brokers of its replicas. When one of them goes, the others of the in-sync
set carry on; when none is left, the partition has no leader and, with KIP-966, the last of the set stay
eligible (ELR). A broker that ended uncleanly may have lost what it had, so it loses that eligibility when it
comes back, and may lead only as the last known one, with a mark that the partition is recovering.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from kwire.broker.controller.commands import (
    RegisterBroker,
    RegisterController,
    Result,
    ShutDownBroker,
    UnfenceBroker,
    UnregisterBroker,
)
from kwire.broker.controller.configs import MIN_INSYNC_REPLICAS
from kwire.broker.metadata.image import (
    NO_LEADER,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    MetadataImage,
    PartitionImage,
)
from kwire.broker.metadata.records import (
    CONTROLLER_REGISTRATION_LEVEL,
    CORDONED_LEVEL,
    DIRECTORIES_LEVEL,
    StoredRecord,
    change_record,
    register_broker_version,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from kwire.wire.stored.metadata import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)

RECOVERING: Final = 1
FENCED: Final = 1
UNFENCED: Final = -1


def register_controller(command: RegisterController, image: MetadataImage) -> Result[None]:
    """KIP-919; clusters before 3.7 have no such record."""
    if image.metadata_version < CONTROLLER_REGISTRATION_LEVEL:
        return Result([], None)
    record = RegisterControllerRecord(
        controller_id=command.controller_id,
        incarnation_id=command.incarnation_id,
        zk_migration_ready=False,
        end_points=[
            ControllerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in command.endpoints
        ],
        features=[
            ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in command.features.items()
        ],
    )
    return Result([StoredRecord(record)], None)


def register_broker(command: RegisterBroker, image: MetadataImage) -> Result[int]:
    """The broker, fenced, with an epoch of its own; and what an unclean end of its last life costs it."""
    # KIP-631: the offset at which a registration is written is the broker's epoch.
    broker_epoch = image.offset + 1
    known = image.brokers.get(command.broker_id)
    is_unclean = known is not None and known.broker_epoch != command.previous_broker_epoch
    records = []
    if known is not None:
        records = list(departures(image, command.broker_id, is_unclean=is_unclean))
    level = image.metadata_version
    record = RegisterBrokerRecord(
        broker_id=command.broker_id,
        incarnation_id=command.incarnation_id,
        broker_epoch=broker_epoch,
        end_points=[
            BrokerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in command.endpoints
        ],
        features=[
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in command.features.items()
        ],
        rack=command.rack,
        fenced=True,
        in_controlled_shutdown=False,
    )
    if level >= DIRECTORIES_LEVEL:
        record.log_dirs = sorted(command.log_dirs)
    records.append(StoredRecord(record, register_broker_version(level)))
    return Result(records, broker_epoch, atomic=False)


def unfence_broker(command: UnfenceBroker, image: MetadataImage) -> Result[None]:
    """The broker leads what has no leader and is its own to lead."""
    broker = image.brokers[command.broker_id]
    records: list[StoredRecord] = []
    if broker.fenced:
        unfence = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=UNFENCED
        )
        records.append(StoredRecord(unfence))
    for topic_id, index, partition in _partitions_of(image, broker.broker_id):
        directory = partition.directory_of(broker.broker_id)
        if partition.leader == NO_LEADER and (directory is None or broker.has_online_directory(directory)):
            change = _elected(topic_id, index, partition, broker.broker_id)
            if change is not None:
                records.append(change_record(image, change))
    if broker.cordoned_log_dirs is None and image.metadata_version >= CORDONED_LEVEL:
        uncordoned = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, cordoned_log_dirs=[]
        )
        records.append(StoredRecord(uncordoned, 3))
    return Result(records, None, atomic=False)


def shut_down_broker(command: ShutDownBroker, image: MetadataImage) -> Result[None]:
    """A controlled shutdown: leadership goes where it can, and the broker is fenced."""
    broker = image.brokers.get(command.broker_id)
    if broker is None or broker.fenced:
        return Result([], None)
    leaving = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=1
    )
    fenced = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=FENCED
    )
    departing = departures(image, broker.broker_id, is_unclean=False)
    return Result([StoredRecord(leaving, 1), *departing, StoredRecord(fenced)], None, atomic=False)


def unregister_broker(command: UnregisterBroker, image: MetadataImage) -> Result[None]:
    """Nobody counts on the broker any more, and then it is forgotten. ApiError: BROKER_ID_NOT_REGISTERED."""
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        text = f"Broker ID {command.broker_id} is not currently registered"
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
    records = list(departures(image, broker.broker_id, is_unclean=False))
    gone = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return Result([*records, StoredRecord(gone)], None, atomic=False)


def _partitions_of(image: MetadataImage, broker_id: int) -> Iterator[tuple[Uuid, int, PartitionImage]]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if broker_id in partition.replicas:
                yield topic.topic_id, index, partition


def departures(
    image: MetadataImage, broker_id: int, *, is_unclean: bool, only: Container[Uuid | None] | None = None
) -> Iterator[StoredRecord]:
    """What changes for every partition that can no longer count on this broker.

    `only`: where just these directories of it are gone.
    """
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if broker_id not in partition.replicas:
                continue
            if only is not None and partition.directory_of(broker_id) not in only:
                continue
            change = PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id)
            if _depart(change, partition, image, topic.name, broker_id, is_unclean=is_unclean):
                yield change_record(image, change)


def _depart(
    change: PartitionChangeRecord,
    partition: PartitionImage,
    image: MetadataImage,
    topic: str,
    broker_id: int,
    *,
    is_unclean: bool,
) -> bool:
    """Fill in what `broker_id` leaving does to a partition; whether that is anything."""
    isr = [replica for replica in partition.isr if replica != broker_id]
    elr = list(partition.elr)
    if image.elr_enabled:
        if (
            broker_id in partition.isr
            and broker_id not in elr
            and len(isr) < min_isr(image, topic, partition)
        ):
            elr.append(broker_id)
        if is_unclean:
            elr = [replica for replica in elr if replica != broker_id]
    elif not isr:
        # Without ELR the last in-sync replica stays in the set: nobody else may ever lead.
        isr = list(partition.isr)
    changed = False
    if tuple(isr) != partition.isr:
        change.isr = isr
        changed = True
    if partition.leader == broker_id:
        candidates = [
            replica
            for replica in partition.replicas
            if replica in isr and replica != broker_id and image.brokers[replica].is_active
        ]
        change.leader = candidates[0] if candidates else NO_LEADER
        changed = True
        if not isr and partition.last_known_elr != (broker_id,):
            change.last_known_elr = [broker_id]
    if tuple(elr) != partition.elr:
        change.eligible_leader_replicas = elr
        changed = True
    return changed


def min_isr(image: MetadataImage, topic: str, partition: PartitionImage) -> int:
    """min.insync.replicas as it counts for a partition: never more than it has replicas."""
    text = image.config(RESOURCE_TOPIC, topic).get(MIN_INSYNC_REPLICAS)
    if text is None:
        text = image.config(RESOURCE_BROKER, "").get(MIN_INSYNC_REPLICAS, "1")
    try:
        count = int(text)
    except ValueError:
        # Stored by who knew no better: the topic's own rule passes over it, and so does this one.
        count = 1
    return min(count, len(partition.replicas))


def _elected(
    topic_id: Uuid, index: int, partition: PartitionImage, broker_id: int
) -> PartitionChangeRecord | None:
    """The change that makes `broker_id` the leader, None where it may not be."""
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=broker_id)
    if broker_id in partition.isr:
        return change
    if broker_id in partition.elr:
        change.eligible_leader_replicas = [replica for replica in partition.elr if replica != broker_id]
    elif partition.isr or partition.elr or partition.last_known_elr != (broker_id,):
        return None
    else:
        change.leader_recovery_state = RECOVERING
    change.isr = [*partition.isr, broker_id]
    if partition.last_known_elr:
        change.last_known_elr = []
    return change
