"""DescribeCluster v0–2. KIP-700, KIP-919 (endpoint type, v1), KIP-1073 (fenced brokers, v2)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int8, Int16, Int32, Message, Str, field, message


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: Bool = field()
    endpoint_type: Int8 = field("1+", default=1)
    include_fenced_brokers: Bool = field("2+")


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+", default=None)
    endpoint_type: Int8 = field("1+", default=1)
    cluster_id: Str = field()
    controller_id: Int32 = field(default=-1)
    brokers: list[DescribeClusterBroker] = field()
    cluster_authorized_operations: Int32 = field(default=-2147483648)


class DescribeClusterBroker(Message):
    """The address of a broker (endpoint type 2: a controller) on the listener that received the request."""

    broker_id: Int32 = field()
    host: Str = field()
    port: Int32 = field()
    rack: Str | None = field(nullable="0+", default=None)
    is_fenced: Bool = field("2+")
