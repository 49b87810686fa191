"""OffsetCommit v2–10, OffsetFetch v1–10, OffsetDelete v0.

OffsetCommit: KIP-211 (no retention from v5), KIP-320 (leader epochs, v6), KIP-345 (instance id, v7), KIP-848
(v9), topic ids (v10). Topics are checked here; the coordinator checks the group and the member.

OffsetFetch: KIP-447 (stable offsets, v7), KIP-709 (many groups, v8), KIP-848 (member epoch, v9), topic ids
(v10). The response has only committed offsets. With `require_stable`, partitions with pending transactional
offsets get UNSTABLE_OFFSET_COMMIT.

OffsetDelete: offsets of topics that the group does not consume at the time (KIP-496).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.coordinator.groups.offsets import CommittedOffset, OffsetCommit, PartitionCommit
from kwire.wire.batch import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kwire.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kwire.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID, TopicPartition, Uuid, utf16_length

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole


FIRST_VERSION_WITH_TOPIC_IDS = 10
LAST_VERSION_WITH_RETENTION = 4
DEFAULT_RETENTION = -1
FIRST_VERSION_WITH_ERROR = 2
FIRST_VERSION_WITH_GROUPS = 8
Stored = Mapping[str, Mapping[int, CommittedOffset]]
NONE_STORED: Stored = {}
NOTHING_COMMITTED = CommittedOffset(NO_OFFSET, NO_LEADER_EPOCH, "", NO_TIMESTAMP)


def offset_commit(
    node: BrokerRole, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Delayed:
    """Respond for each partition once the offsets are committed."""
    version = context.api_version
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    response = OffsetCommitResponse()
    asked: list[OffsetCommitResponsePartition] = []
    """The partitions that exist. With any, the coordinator checks the member, even if `commits` is empty."""
    commits: list[PartitionCommit] = []
    for topic in request.topics:
        name = node.image.name_of(topic.topic_id) if by_id else topic.name
        told = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(told)
        for partition in topic.partitions:
            index = partition.partition_index
            answer = OffsetCommitResponsePartition(partition_index=index)
            told.partitions.append(answer)
            if name is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            if not node.partition_exists(name, index):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            asked.append(answer)
            metadata = partition.committed_metadata or ""
            if utf16_length(metadata) > node.config.offset_metadata_max_bytes:
                answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            commits.append(
                PartitionCommit(
                    name,
                    index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    node.image.topics[name].topic_id,
                )
            )
    if not asked:
        return response
    retention_ms = None
    if version <= LAST_VERSION_WITH_RETENTION and request.retention_time_ms != DEFAULT_RETENTION:
        retention_ms = request.retention_time_ms

    def done(code: ErrorCode) -> None:
        if code:
            for partition_answer in asked:
                partition_answer.error_code = code
        context.complete(response)

    commit = OffsetCommit(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        commits,
        retention_ms,
        version,
    )
    node.groups.commit_offsets(commit, done)
    return DELAYED


class _RequestedTopic(NamedTuple):
    """A requested topic; its name is None if no topic has the id."""

    name: str | None
    topic_id: Uuid
    partitions: Sequence[int]


def offset_fetch(
    node: BrokerRole, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Delayed:
    """Respond for one group, or from v8 on for several."""
    if context.api_version < FIRST_VERSION_WITH_GROUPS:
        _one_group(node, context, request)
        return DELAYED
    response = OffsetFetchResponse(topics=[], groups=[])
    if not request.groups:
        return response
    left = len(request.groups)

    def answered() -> None:
        nonlocal left
        left -= 1
        if not left:
            context.complete(response)

    for group in request.groups:
        _GroupOffsets(node, context, group, response, answered, require_stable=request.require_stable)
    return DELAYED


class _GroupOffsets:
    """One group of an OffsetFetch request: it fills the group's part of the response."""

    def __init__(
        self,
        node: BrokerRole,
        context: RequestContext,
        group: OffsetFetchRequestGroup,
        response: OffsetFetchResponse,
        answered: Callable[[], None],
        *,
        require_stable: bool,
    ) -> None:
        self._node = node
        self._by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        self._group = group
        self._require_stable = require_stable
        self._answer = OffsetFetchResponseGroup(group_id=group.group_id, topics=[])
        self._answered = answered
        response.groups.append(self._answer)
        node.groups.fetch_offsets(
            group.group_id,
            self._read,
            self._done,
            require_stable=require_stable,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
        )

    def _read(self, stored: Stored) -> list[OffsetFetchResponseTopics]:
        answers: list[OffsetFetchResponseTopics] = []
        unstable = _unstable(self._node, self._group.group_id, self._require_stable)
        for wanted in self._wanted(stored):
            partitions = []
            for index, committed, code in _offsets(stored, wanted, unstable):
                partitions.append(
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                        error_code=ErrorCode.UNKNOWN_TOPIC_ID if wanted.name is None else code,
                    )
                )
            answers.append(
                OffsetFetchResponseTopics(
                    name=wanted.name or "", topic_id=wanted.topic_id, partitions=partitions
                )
            )
        return answers

    def _wanted(self, stored: Stored) -> Iterable[_RequestedTopic]:
        topics = self._node.image.topics
        if self._group.topics is None:
            for name, partitions in stored.items():
                topic = topics.get(name)
                # From v10 on a deleted topic cannot be in the response, because it has no id.
                if topic is not None or not self._by_id:
                    yield _RequestedTopic(
                        name, ZERO_UUID if topic is None else topic.topic_id, list(partitions)
                    )
            return
        name_of = self._node.image.name_of
        for asked in self._group.topics:
            asked_name = name_of(asked.topic_id) if self._by_id else asked.name
            yield _RequestedTopic(asked_name, asked.topic_id, asked.partition_indexes)

    def _done(self, code: ErrorCode, topics: list[OffsetFetchResponseTopics] | None) -> None:
        self._answer.error_code = code
        self._answer.topics = topics or []
        self._answered()


def _one_group(node: BrokerRole, context: RequestContext, request: OffsetFetchRequest) -> None:
    def read(stored: Stored) -> list[OffsetFetchResponseTopic]:
        if request.topics is None:
            wanted = [
                _RequestedTopic(name, ZERO_UUID, list(partitions)) for name, partitions in stored.items()
            ]
        else:
            wanted = [
                _RequestedTopic(topic.name, ZERO_UUID, topic.partition_indexes) for topic in request.topics
            ]
        unstable = _unstable(node, request.group_id, request.require_stable)
        return [
            OffsetFetchResponseTopic(
                name=one.name or "",
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                        error_code=code,
                    )
                    for index, committed, code in _offsets(stored, one, unstable)
                ],
            )
            for one in wanted
        ]

    def done(code: ErrorCode, topics: list[OffsetFetchResponseTopic] | None) -> None:
        if code and context.api_version < FIRST_VERSION_WITH_ERROR:
            # v1 has error codes only for partitions.
            topics = read(NONE_STORED)
            for topic in topics:
                for partition in topic.partitions:
                    partition.error_code = code
        context.complete(OffsetFetchResponse(error_code=code, topics=topics or [], groups=[]))

    node.groups.fetch_offsets(request.group_id, read, done, require_stable=request.require_stable)


def _offsets(
    stored: Stored, wanted: _RequestedTopic, unstable: Collection[TopicPartition]
) -> Iterable[tuple[int, CommittedOffset, ErrorCode]]:
    of_topic = stored.get(wanted.name, {}) if wanted.name is not None else {}
    for index in wanted.partitions:
        if wanted.name is not None and (wanted.name, index) in unstable:
            yield index, NOTHING_COMMITTED, ErrorCode.UNSTABLE_OFFSET_COMMIT
        else:
            yield index, of_topic.get(index, NOTHING_COMMITTED), ErrorCode.NONE


def _unstable(node: BrokerRole, group_id: str, require_stable: bool) -> Collection[TopicPartition]:
    """Return the partitions with pending transactional offsets, if stable offsets are required. KIP-447."""
    return node.groups.unstable_offsets(group_id) if require_stable else ()


def offset_delete(node: BrokerRole, context: RequestContext, request: OffsetDeleteRequest) -> Delayed:
    """Respond for each partition once the offsets are deleted."""
    named = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]

    def done(code: ErrorCode, outcome: Mapping[TopicPartition, ErrorCode]) -> None:
        response = OffsetDeleteResponse(error_code=code, topics=[])
        if not code:
            response.topics = [
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=one.partition_index,
                            error_code=outcome.get(
                                (topic.name, one.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                            ),
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        context.complete(response)

    # Partitions that do not exist are not sent to the coordinator.
    node.groups.delete_offsets(
        request.group_id, [partition for partition in named if node.partition_exists(*partition)], done
    )
    return DELAYED
