"""Topics that the broker creates itself: internal topics, and topics on first use."""

from __future__ import annotations

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.topic_names import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig


def creatable_topic(name: str, config: BrokerConfig) -> CreatableTopic:
    """Return the topic for a CreateTopics command. Internal topics get the configs that coordinators need."""
    if name == GROUP_METADATA_TOPIC:
        return _topic(
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                "compression.type": "producer",
                "cleanup.policy": "compact",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
    if name == TRANSACTION_STATE_TOPIC:
        return _topic(
            name,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            {
                "unclean.leader.election.enable": "false",
                "compression.type": "uncompressed",
                "cleanup.policy": "compact",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
            },
        )
    if name == SHARE_GROUP_STATE_TOPIC:
        return _topic(
            name,
            config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_replication_factor,
            {
                "compression.type": "producer",
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
                "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
            },
        )
    return _topic(name, config.num_partitions, config.default_replication_factor, {})


def _topic(
    name: str, num_partitions: int, replication_factor: int, configs: dict[str, str]
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
