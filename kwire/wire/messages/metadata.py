"""Metadata v0–13.

KIP-430 (authorized operations, v8), KIP-516 (topic ids, v10 and v12), KIP-1102 (top-level error, v13).
"""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Message, Str, field, message


@message(key=3, versions="0-13", flexible="9+")
class MetadataRequest(Message):
    """A request for topics and brokers. Null topics means all; an empty list means all in v0, none later."""

    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: Bool = field("4+", default=True)
    include_cluster_authorized_operations: Bool = field("8-10")
    include_topic_authorized_operations: Bool = field("8+")


class MetadataRequestTopic(Message):
    """A topic, by name, or by id if the name is null."""

    topic_id: Uuid = field("10+", ignorable=True)
    name: Str | None = field(nullable="10+")


@message(key=3, versions="0-13", flexible="9+")
class MetadataResponse(Message):
    throttle_time_ms: Int32 = field("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = field()
    cluster_id: Str | None = field("2+", nullable="2+", ignorable=True, default=None)
    controller_id: Int32 = field("1+", ignorable=True, default=-1)
    topics: list[MetadataResponseTopic] = field()
    cluster_authorized_operations: Int32 = field("8-10", default=-2147483648)
    error_code: Int16 = field("13+", ignorable=True)


class MetadataResponseBroker(Message):
    """A broker's address on the listener that received the request."""

    node_id: Int32 = field()
    host: Str = field()
    port: Int32 = field()
    rack: Str | None = field("1+", nullable="1+", ignorable=True, default=None)


class MetadataResponseTopic(Message):
    """A topic and its partitions, or the error for it."""

    error_code: Int16 = field()
    name: Str | None = field(nullable="12+")
    topic_id: Uuid = field("10+", ignorable=True)
    is_internal: Bool = field("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = field()
    topic_authorized_operations: Int32 = field("8+", default=-2147483648)


class MetadataResponsePartition(Message):
    """A partition's leader, replicas and in-sync replicas."""

    error_code: Int16 = field()
    partition_index: Int32 = field()
    leader_id: Int32 = field()
    leader_epoch: Int32 = field("7+", ignorable=True, default=-1)
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    offline_replicas: list[Int32] = field("5+", ignorable=True)
