"""The records of a metadata snapshot. Replaying them on an empty image gives the same image again. KIP-630.

The records, their versions and their order are as in Apache Kafka 4.3.1. The records are generated lazily, so
that a large image is written in small pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kwire.broker.metadata.image import (
    METADATA_VERSION,
    MetadataImage,
    QuotaEntity,
)
from kwire.broker.metadata.records import (
    CONTROLLER_REGISTRATION_LEVEL,
    StoredRecord,
    broker_record,
    controller_record,
    partition_record,
)
from kwire.wire.records.metadata import (
    ClientQuotaRecord,
    ConfigRecord,
    EntityData,
    FeatureLevelRecord,
    ProducerIdsRecord,
    TopicRecord,
)

NO_BROKER = -1


def snapshot_records(image: MetadataImage) -> Iterator[StoredRecord]:
    """Yield the records of the image.

    As in Kafka, the state of a ZooKeeper migration is omitted. The record of the next producer id is also
    omitted if no producer id was ever allocated.
    """
    yield from _features(image)
    for broker in image.brokers.values():
        yield broker_record(broker, image.metadata_version)
    if image.metadata_version >= CONTROLLER_REGISTRATION_LEVEL:
        for controller in image.controllers.values():
            yield controller_record(controller)
    for topic in image.topics.values():
        yield StoredRecord(TopicRecord(name=topic.name, topic_id=topic.topic_id))
        for index, partition in enumerate(topic.partitions):
            yield partition_record(image, topic.topic_id, index, partition)
    for (resource_type, resource_name), values in image.configs.items():
        for name, value in values.items():
            yield StoredRecord(
                ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
            )
    for entity, quotas in image.quotas.items():
        yield from _quotas(entity, quotas)
    if image.next_producer_id > 0:
        yield StoredRecord(
            ProducerIdsRecord(broker_id=NO_BROKER, broker_epoch=-1, next_producer_id=image.next_producer_id)
        )
    for kept in (image.acls, image.scram_credentials, image.delegation_tokens):
        for record in kept.values():
            yield StoredRecord(record)


def _features(image: MetadataImage) -> Iterator[StoredRecord]:
    # metadata.version comes first, because it decides the versions of the records after it.
    names = [METADATA_VERSION, *(name for name in image.features if name != METADATA_VERSION)]
    for name in names:
        if name in image.features:
            yield StoredRecord(FeatureLevelRecord(name=name, feature_level=image.features[name]))


def _quotas(entity: QuotaEntity, quotas: Mapping[str, float]) -> Iterator[StoredRecord]:
    for key, value in quotas.items():
        yield StoredRecord(
            ClientQuotaRecord(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                key=key,
                value=value,
                remove=False,
            )
        )
