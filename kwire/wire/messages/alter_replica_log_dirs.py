"""AlterReplicaLogDirs v1–2. KIP-113."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest(Message):
    """Move replicas between the log directories of the broker that is asked."""

    dirs: list[AlterReplicaLogDir] = field()


class AlterReplicaLogDir(Message):
    """A directory, and what is to lie in it."""

    path: Str = field()
    topics: list[AlterReplicaLogDirTopic] = field()


class AlterReplicaLogDirTopic(Message):
    """Partitions of one topic to move."""

    name: Str = field()
    partitions: list[Int32] = field()


@message(key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse(Message):
    """Which moves have begun, by topic."""

    throttle_time_ms: Int32 = field()
    results: list[AlterReplicaLogDirTopicResult] = field()


class AlterReplicaLogDirTopicResult(Message):
    """Results of one topic's partitions."""

    topic_name: Str = field()
    partitions: list[AlterReplicaLogDirPartitionResult] = field()


class AlterReplicaLogDirPartitionResult(Message):
    """Whether the partition is on its way, or why not."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
