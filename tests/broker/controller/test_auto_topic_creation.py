"""Settings of internal topics that a broker creates."""

from __future__ import annotations

from kwire.broker.config import load
from kwire.broker.controller.auto_topic_creation import creatable_topic


def test_share_group_state_topic_has_its_own_settings() -> None:
    config = load(
        None,
        {},
        {
            "log.dirs": "/d1",
            "num.partitions": "2",
            "share.coordinator.state.topic.num.partitions": "7",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.segment.bytes": "1048576",
        },
    )
    topic = creatable_topic("__share_group_state", config)
    assert (topic.num_partitions, topic.replication_factor) == (7, 1)
    assert {entry.name: entry.value for entry in topic.configs} == {
        "compression.type": "producer",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "min.insync.replicas": "1",
        "segment.bytes": "1048576",
    }
