"""AssignReplicasToDirs v0. KIP-858."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Int64, Message, field, message


@message(key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest(Message):
    """A broker's report of the log directories of its replicas."""

    broker_id: Int32 = field()
    broker_epoch: Int64 = field(default=-1)
    directories: list[RequestDirectoryData] = field()


class RequestDirectoryData(Message):
    """Replicas in one log directory."""

    id: Uuid = field()
    topics: list[RequestTopicData] = field()


class RequestTopicData(Message):
    topic_id: Uuid = field()
    partitions: list[RequestPartitionData] = field()


class RequestPartitionData(Message):
    partition_index: Int32 = field()


@message(key=73, versions="0", flexible="0+")
class AssignReplicasToDirsResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    directories: list[ResponseDirectoryData] = field()


class ResponseDirectoryData(Message):
    """Results for one log directory's replicas."""

    id: Uuid = field()
    topics: list[ResponseTopicData] = field()


class ResponseTopicData(Message):
    """Results for one topic's partitions."""

    topic_id: Uuid = field()
    partitions: list[ResponsePartitionData] = field()


class ResponsePartitionData(Message):
    """Result for one partition."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
