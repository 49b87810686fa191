"""CreatePartitions v0–3. KIP-195."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int16, Int32, Message, Str, field, message


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest(Message):
    topics: list[CreatePartitionsTopic] = field()
    timeout_ms: Int32 = field()
    validate_only: Bool = field()


class CreatePartitionsTopic(Message):
    """A topic, its new partition count, and the replicas of its new partitions."""

    name: Str = field()
    count: Int32 = field()
    assignments: list[CreatePartitionsAssignment] | None = field(nullable="0+")


class CreatePartitionsAssignment(Message):
    """The replicas of one new partition, the preferred leader first."""

    broker_ids: list[Int32] = field()


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse(Message):
    throttle_time_ms: Int32 = field()
    results: list[CreatePartitionsTopicResult] = field()


class CreatePartitionsTopicResult(Message):
    name: Str = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+", default=None)
