"""An image as records: what replaying them into an empty image makes again (KIP-630).

The records, their versions and their order are those of Apache Kafka 4.3.1's snapshots. They are made one by
one as they are asked for, so that a large image can be written in small pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kwire.broker.metadata.image import (
    METADATA_VERSION,
    BrokerImage,
    ControllerImage,
    MetadataImage,
    QuotaEntity,
)
from kwire.broker.metadata.records import (
    CONTROLLER_REGISTRATION_LEVEL,
    CORDONED_LEVEL,
    DIRECTORIES_LEVEL,
    MIGRATION_LEVEL,
    StoredRecord,
    partition_record,
    register_broker_version,
)
from kwire.wire.stored.metadata import (
    BrokerEndpoint,
    BrokerFeature,
    ClientQuotaRecord,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    EntityData,
    FeatureLevelRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
)

NO_BROKER = -1


def snapshot_records(image: MetadataImage) -> Iterator[StoredRecord]:
    """Everything that the image says.

    Two things are left out, as Kafka leaves them out: how far a migration from ZooKeeper came, of which
    Kafka 4 knows nothing, and an allocation of producer ids that never happened.
    """
    yield from _features(image)
    for broker in image.brokers.values():
        yield _broker(broker, image.metadata_version)
    if image.metadata_version >= CONTROLLER_REGISTRATION_LEVEL:
        for controller in image.controllers.values():
            yield _controller(controller)
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
    # metadata.version comes first: it decides in which versions the records after it are written.
    names = [METADATA_VERSION, *(name for name in image.features if name != METADATA_VERSION)]
    for name in names:
        if name in image.features:
            yield StoredRecord(FeatureLevelRecord(name=name, feature_level=image.features[name]))


def _broker(broker: BrokerImage, level: int) -> StoredRecord:
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


def _controller(controller: ControllerImage) -> StoredRecord:
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
