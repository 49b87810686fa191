"""Topics that come into being when their metadata is asked for."""

from __future__ import annotations

import pytest

from kwire.broker.config import load
from kwire.broker.controller.new_topics import creatable_topic
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.api.test_failures import Rig


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a", ErrorCode.NONE),
        ("__consumer_offsets", ErrorCode.NONE),
        # Its directory is that of the metadata's own log.
        ("__cluster_metadata", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_which_names_may_be_made_on_first_use(name: str, code: ErrorCode) -> None:
    rig = Rig()
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    rig.call(12, request)
    rig.host.advance(1000)
    (topic,) = rig.call(12, request).topics
    assert topic.error_code == code
    assert bool(topic.partitions) == (code == ErrorCode.NONE)


def test_the_share_coordinators_topic_has_its_own_settings() -> None:
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
