"""ListPartitionReassignments v0. KIP-455."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest(Message):
    """A request for ongoing reassignments. Null topics means all topics."""

    timeout_ms: Int32 = field(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(nullable="0+", default=None)


class ListPartitionReassignmentsTopics(Message):
    name: Str = field()
    partition_indexes: list[Int32] = field()


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    topics: list[OngoingTopicReassignment] = field()


class OngoingTopicReassignment(Message):
    """Ongoing reassignments of one topic."""

    name: Str = field()
    partitions: list[OngoingPartitionReassignment] = field()


class OngoingPartitionReassignment(Message):
    """The ongoing reassignment of one partition."""

    partition_index: Int32 = field()
    replicas: list[Int32] = field()
    adding_replicas: list[Int32] = field()
    removing_replicas: list[Int32] = field()
