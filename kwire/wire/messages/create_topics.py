"""CreateTopics v2–7.

KIP-464 (default partitions, v4), KIP-525 (configs in the response, v5), KIP-516 (topic ids, v7).
"""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int8, Int16, Int32, Message, Str, field, message


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest(Message):
    topics: list[CreatableTopic] = field()
    timeout_ms: Int32 = field(default=60000)
    validate_only: Bool = field()


class CreatableTopic(Message):
    """A topic to create, with partition count and replication factor, or with each partition's replicas."""

    name: Str = field()
    num_partitions: Int32 = field()
    replication_factor: Int16 = field()
    assignments: list[CreatableReplicaAssignment] = field()
    configs: list[CreatableTopicConfig] = field()


class CreatableReplicaAssignment(Message):
    """The replicas of one partition, the preferred leader first."""

    partition_index: Int32 = field()
    broker_ids: list[Int32] = field()


class CreatableTopicConfig(Message):
    name: Str = field()
    value: Str | None = field(nullable="0+")


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse(Message):
    throttle_time_ms: Int32 = field()
    topics: list[CreatableTopicResult] = field()


class CreatableTopicResult(Message):
    """Result for one topic; from version 5 on with partition count and configuration (KIP-525)."""

    name: Str = field()
    topic_id: Uuid = field("7+", ignorable=True)
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    topic_config_error_code: Int16 = field("5+", tag=0, ignorable=True)
    num_partitions: Int32 = field("5+", ignorable=True, default=-1)
    replication_factor: Int16 = field("5+", ignorable=True, default=-1)
    configs: list[CreatableTopicConfigs] | None = field("5+", nullable="5+", ignorable=True)


class CreatableTopicConfigs(Message):
    """A configuration key of the new topic, its value and the source of the value."""

    name: Str = field("5+")
    value: Str | None = field("5+", nullable="5+")
    read_only: Bool = field("5+")
    config_source: Int8 = field("5+", ignorable=True, default=-1)
    is_sensitive: Bool = field("5+")
