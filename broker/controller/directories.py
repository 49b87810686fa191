"""Which log directory of a broker holds a replica. KIP-858.

A broker with several directories chooses one when it makes a log, and tells the controller. One that starts
tells of every log that lies elsewhere than the metadata says. So the controller knows what is lost with a
directory.
"""

from __future__ import annotations

from broker.controller.commands import AssignDirectories, Result, StoredRecord
from broker.controller.image import MetadataImage
from broker.controller.versions import DIRECTORIES_LEVEL, change_record
from kwire.stored.metadata import PartitionChangeRecord


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
