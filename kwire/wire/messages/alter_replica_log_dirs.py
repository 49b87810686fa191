"""AlterReplicaLogDirs v1–2. KIP-113."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest(Message):
    """A request to move replicas between log directories of the broker."""

    dirs: list[AlterReplicaLogDir] = field()


class AlterReplicaLogDir(Message):
    """A log directory and the replicas to move there."""

    path: Str = field()
    topics: list[AlterReplicaLogDirTopic] = field()


class AlterReplicaLogDirTopic(Message):
    name: Str = field()
    partitions: list[Int32] = field()


@message(key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse(Message):
    throttle_time_ms: Int32 = field()
    results: list[AlterReplicaLogDirTopicResult] = field()


class AlterReplicaLogDirTopicResult(Message):
    """Results for one topic's partitions."""

    topic_name: Str = field()
    partitions: list[AlterReplicaLogDirPartitionResult] = field()


class AlterReplicaLogDirPartitionResult(Message):
    """Result for one partition: no error means that the move has started."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
