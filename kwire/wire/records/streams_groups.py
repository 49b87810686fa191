"""Records of __consumer_offsets for streams groups. KIP-1071."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Int64, Message, Str, UInt16, field, message


@message(key=17, versions="0")
class StreamsGroupMetadataKey(Message):
    group_id: Str = field()


@message(key=17, versions="0", flexible="0+")
class StreamsGroupMetadataValue(Message):
    """A group's epoch, and the metadata hash, topology epoch and configuration that the epoch is based on."""

    epoch: Int32 = field()
    metadata_hash: Int64 = field()
    validated_topology_epoch: Int32 = field(tag=0, default=-1)
    last_assignment_configs: list[KeyValue] | None = field(nullable="0+", tag=1)


@message(key=19, versions="0")
class StreamsGroupMemberMetadataKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=19, versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue(Message):
    """A member's client, process and endpoint."""

    instance_id: Str | None = field(nullable="0+")
    rack_id: Str | None = field(nullable="0+")
    client_id: Str = field()
    client_host: Str = field()
    rebalance_timeout_ms: Int32 = field(default=-1)
    topology_epoch: Int32 = field()
    process_id: Str = field()
    user_endpoint: Endpoint | None = field(nullable="0+", default=None)
    client_tags: list[KeyValue] = field()


class Endpoint(Message):
    """A member's endpoint for interactive queries."""

    host: Str = field()
    port: UInt16 = field()


class KeyValue(Message):
    """A client tag for rack-aware assignments, or a configuration value."""

    key: Str = field()
    value: Str = field()


@message(key=20, versions="0")
class StreamsGroupTargetAssignmentMetadataKey(Message):
    group_id: Str = field()


@message(key=20, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue(Message):
    """The epoch of the target assignment."""

    assignment_epoch: Int32 = field()
    assignment_timestamp: Int64 = field(tag=0, ignorable=True)


@message(key=21, versions="0")
class StreamsGroupTargetAssignmentMemberKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=21, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue(Message):
    """The target assignment of a member."""

    active_tasks: list[TargetTaskIds] = field()
    standby_tasks: list[TargetTaskIds] = field()
    warmup_tasks: list[TargetTaskIds] = field()


class TargetTaskIds(Message):
    """Tasks of one subtopology in a target assignment."""

    subtopology_id: Str = field()
    partitions: list[Int32] = field()


@message(key=22, versions="0")
class StreamsGroupCurrentMemberAssignmentKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=22, versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue(Message):
    """A member's current tasks, and its progress towards the target assignment."""

    member_epoch: Int32 = field()
    previous_member_epoch: Int32 = field()
    state: Int8 = field()
    active_tasks: list[TaskIds] = field()
    standby_tasks: list[TaskIds] = field()
    warmup_tasks: list[TaskIds] = field()
    active_tasks_pending_revocation: list[TaskIds] = field()
    standby_tasks_pending_revocation: list[TaskIds] = field()
    warmup_tasks_pending_revocation: list[TaskIds] = field()


class TaskIds(Message):
    """Tasks of one subtopology, and the epochs in which they were assigned."""

    subtopology_id: Str = field()
    partitions: list[Int32] = field()
    assignment_epochs: list[Int32] | None = field(nullable="0+", tag=0)


@message(key=23, versions="0")
class StreamsGroupTopologyKey(Message):
    group_id: Str = field()


@message(key=23, versions="0", flexible="0+")
class StreamsGroupTopologyValue(Message):
    """The topology of a group."""

    epoch: Int32 = field()
    subtopologies: list[Subtopology] = field()


class Subtopology(Message):
    """A subtopology, which is connected to the others only by topics."""

    subtopology_id: Str = field()
    source_topics: list[Str] = field()
    source_topic_regex: list[Str] = field()
    state_changelog_topics: list[TopicInfo] = field()
    repartition_sink_topics: list[Str] = field()
    repartition_source_topics: list[TopicInfo] = field()
    copartition_groups: list[CopartitionGroup] = field()


class CopartitionGroup(Message):
    """Topics that need the same number of partitions, as indexes into the subtopology's lists."""

    source_topics: list[Int16] = field()
    source_topic_regex: list[Int16] = field()
    repartition_source_topics: list[Int16] = field()


class TopicInfo(Message):
    """An internal topic to create. The broker chooses partitions and replication factor if they are 0."""

    name: Str = field()
    partitions: Int32 = field()
    replication_factor: Int16 = field()
    topic_configs: list[KeyValue] = field()
