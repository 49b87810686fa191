"""What the controller knows of a broker's log directories: which replica lies where, which work. KIP-858.

A broker with several directories chooses one when it makes a log, and tells the controller. One that starts
tells of every log that lies elsewhere than the metadata says. So the controller knows what is lost with a
directory: when one fails, its replicas lose this broker as if it had gone, and the others stay.
"""

from __future__ import annotations

from kwire.broker.controller.commands import AssignDirectories, Result, UpdateDirectories
from kwire.broker.controller.partition_changes import departures
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import CORDONED_LEVEL, DIRECTORIES_LEVEL, StoredRecord, change_record
from kwire.wire.stored.metadata import BrokerRegistrationChangeRecord, PartitionChangeRecord


def assign_directories(command: AssignDirectories, image: MetadataImage) -> Result[None]:
    """A change for each partition whose directory was not known so; what is deleted by now is passed over."""
    records: list[StoredRecord] = []
    if image.metadata_version < DIRECTORIES_LEVEL:
        return Result(records, None)
    for (topic_id, index), chosen in command.directories.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            continue
        partition = topic.partitions[index]
        directories = [
            chosen if replica == command.broker_id else known
            for replica, known in zip(partition.replicas, partition.directories, strict=True)
        ]
        if directories != list(partition.directories):
            change = PartitionChangeRecord(partition_id=index, topic_id=topic_id, directories=directories)
            records.append(change_record(image, change))
    return Result(records, None, atomic=False)


def update_directories(command: UpdateDirectories, image: MetadataImage) -> Result[None]:
    """What changes for replicas in directories that have failed since; KIP-1066: which are cordoned."""
    records: list[StoredRecord] = []
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        return Result(records, None)
    failed = [directory for directory in broker.log_dirs if directory in command.failed]
    if failed and image.metadata_version >= DIRECTORIES_LEVEL:
        records += departures(image, broker.broker_id, is_unclean=False, only=failed)
        change = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            log_dirs=[directory for directory in broker.log_dirs if directory not in failed],
        )
        records.append(StoredRecord(change, 2))
    cordoned = sorted(command.cordoned)
    if image.metadata_version >= CORDONED_LEVEL and cordoned != sorted(broker.cordoned_log_dirs or ()):
        change = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, cordoned_log_dirs=cordoned
        )
        records.append(StoredRecord(change, 3))
    return Result(records, None, atomic=False)
