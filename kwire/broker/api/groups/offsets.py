"""OffsetCommit v2–10, OffsetFetch v1–10, OffsetDelete v0.

OffsetCommit: KIP-211 (no retention from v5 on), KIP-320 (leader epochs, v6), KIP-345 (instance id, v7),
KIP-848 (v9), topic ids (v10). The handler checks the topics; the coordinator checks the group and the member.

OffsetFetch: KIP-447 (stable offsets, v7), KIP-709 (many groups, v8), KIP-848 (member epoch, v9), topic ids
(v10). The response has only committed offsets. With `require_stable`, partitions with pending transactional
offsets get UNSTABLE_OFFSET_COMMIT.

OffsetDelete deletes the offsets of topics that the group does not consume at the moment (KIP-496).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.slices import (
    LARGE_REQUEST_BYTES,
    SLICE_PARTITIONS,
    InSlices,
    Steps,
    complete_delayed,
    complete_in_slices,
    handle_in_slices,
)
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
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID, TopicPartition, Uuid, utf16_length
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole


FIRST_VERSION_WITH_TOPIC_IDS = 10
LAST_VERSION_WITH_RETENTION = 4
DEFAULT_RETENTION = -1
FIRST_VERSION_WITH_ERROR = 2
FIRST_VERSION_WITH_GROUPS = 8
TopicT = TypeVar("TopicT", OffsetFetchResponseTopic, OffsetFetchResponseTopics)
Stored = Mapping[str, Mapping[int, CommittedOffset]]
NONE_STORED: Stored = {}
NOTHING_COMMITTED = CommittedOffset(NO_OFFSET, NO_LEADER_EPOCH, "", NO_TIMESTAMP)


def offset_commit(
    node: BrokerRole, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Delayed:
    """Return one result per partition, after the offsets are committed."""
    return handle_in_slices(context, _offset_commit(node, context, request))


def _offset_commit(
    node: BrokerRole, context: RequestContext, request: OffsetCommitRequest
) -> Generator[None, None, OffsetCommitResponse | Delayed]:
    version = context.api_version
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    response = OffsetCommitResponse()
    existing: list[OffsetCommitResponsePartition] = []
    """The results of existing partitions. If there are any, the coordinator checks group and member."""
    commits: list[PartitionCommit] = []
    count = 0
    for topic in request.topics:
        name = node.image.name_of(topic.topic_id) if by_id else topic.name
        topic_response = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(topic_response)
        for partition in topic.partitions:
            index = partition.partition_index
            partition_response = OffsetCommitResponsePartition(partition_index=index)
            topic_response.partitions.append(partition_response)
            count += 1
            if not count % SLICE_PARTITIONS:
                yield
            if name is None:
                partition_response.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            if not node.partition_exists(name, index):
                partition_response.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            existing.append(partition_response)
            metadata = partition.committed_metadata or ""
            if utf16_length(metadata) > node.config.offset_metadata_max_bytes:
                partition_response.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
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
    if not existing:
        return response
    retention_ms = None
    if version <= LAST_VERSION_WITH_RETENTION and request.retention_time_ms != DEFAULT_RETENTION:
        retention_ms = request.retention_time_ms

    def done(code: ErrorCode) -> None:
        if code:
            for partition_response in existing:
                partition_response.error_code = code
        complete_delayed(node.host, context, response)

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
    """A topic in an OffsetFetch request. Its name is None if no topic has the requested id."""

    name: str | None
    topic_id: Uuid
    partitions: Sequence[int]


class _Snapshot(NamedTuple):
    """A copy of the offsets of a group that an OffsetFetch requests. Later commits do not change it."""

    stored: Stored
    requested: Sequence[_RequestedTopic]
    unstable: Collection[TopicPartition]


def offset_fetch(
    node: BrokerRole, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Delayed:
    """Return the committed offsets of one group, or from v8 on of several groups."""
    if context.size_bytes > LARGE_REQUEST_BYTES:
        return InSlices(_LargeOffsetFetch(node, context, request).steps())
    if context.api_version < FIRST_VERSION_WITH_GROUPS:
        _one_group(node, context, request)
        return DELAYED
    response = OffsetFetchResponse(topics=[], groups=[])
    if not request.groups:
        return response
    left = len(request.groups)

    def group_done() -> None:
        nonlocal left
        left -= 1
        if not left:
            context.complete(response)

    for group in request.groups:
        _GroupOffsets(node, context, group, response, group_done, require_stable=request.require_stable)
    return DELAYED


class _GroupOffsets:
    """One group in an OffsetFetch request. The group's offsets are fetched and added to `response`."""

    def __init__(
        self,
        node: BrokerRole,
        context: RequestContext,
        group: OffsetFetchRequestGroup,
        response: OffsetFetchResponse,
        group_done: Callable[[], None],
        *,
        require_stable: bool,
    ) -> None:
        self._node = node
        self._by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        self._group = group
        self._require_stable = require_stable
        self._response = OffsetFetchResponseGroup(group_id=group.group_id, topics=[])
        self._group_done = group_done
        response.groups.append(self._response)
        node.groups.fetch_offsets(
            group.group_id,
            self._read,
            self._done,
            require_stable=require_stable,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
        )

    def _read(self, stored: Stored) -> list[OffsetFetchResponseTopics]:
        topics_response: list[OffsetFetchResponseTopics] = []
        unstable = _unstable(self._node, self._group.group_id, self._require_stable)
        for requested in _requested_topics(self._node, self._group, stored, by_id=self._by_id):
            partitions = []
            for index, committed, code in _offsets(stored, requested, unstable):
                partitions.append(
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                        error_code=ErrorCode.UNKNOWN_TOPIC_ID if requested.name is None else code,
                    )
                )
            topics_response.append(
                OffsetFetchResponseTopics(
                    name=requested.name or "", topic_id=requested.topic_id, partitions=partitions
                )
            )
        return topics_response

    def _done(self, code: ErrorCode, topics: list[OffsetFetchResponseTopics] | None) -> None:
        self._response.error_code = code
        self._response.topics = topics or []
        self._group_done()


def _one_group(node: BrokerRole, context: RequestContext, request: OffsetFetchRequest) -> None:
    def read(stored: Stored) -> list[OffsetFetchResponseTopic]:
        if request.topics is None:
            requested = [
                _RequestedTopic(name, ZERO_UUID, list(partitions)) for name, partitions in stored.items()
            ]
        else:
            requested = [
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
            for one in requested
        ]

    def done(code: ErrorCode, topics: list[OffsetFetchResponseTopic] | None) -> None:
        if code and context.api_version < FIRST_VERSION_WITH_ERROR:
            # v1 has no error code for the group, so each partition gets the error.
            topics = read(NONE_STORED)
            for topic in topics:
                for partition in topic.partitions:
                    partition.error_code = code
        context.complete(OffsetFetchResponse(error_code=code, topics=topics or [], groups=[]))

    node.groups.fetch_offsets(request.group_id, read, done, require_stable=request.require_stable)


class _LargeOffsetFetch:
    """A large OffsetFetch of any version. Its response is built in slices, from a copy of the offsets."""

    def __init__(self, node: BrokerRole, context: RequestContext, request: OffsetFetchRequest) -> None:
        self._node = node
        self._context = context
        self._version = version = context.api_version
        self._require_stable = request.require_stable
        self._groups = request.groups
        if version < FIRST_VERSION_WITH_GROUPS:
            topics = None
            if request.topics is not None:
                topics = [
                    OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                    for topic in request.topics
                ]
            self._groups = [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]
        self._results: dict[int, ErrorCode | _Snapshot] = {}
        """The error or the offsets of each group, by the group's position in the request."""
        self._is_delayed = False
        self._entries = 0
        """The number of groups, topics and partitions in the response so far."""

    def steps(self) -> Steps:
        for number, group in enumerate(self._groups):
            self._node.groups.fetch_offsets(
                group.group_id,
                partial(self._copy, group),
                partial(self._done, number),
                require_stable=self._require_stable,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
            )
            if not (number + 1) % SLICE_PARTITIONS:
                yield
        if len(self._results) == len(self._groups):
            return (yield from self._response())
        self._is_delayed = True
        return DELAYED

    def _copy(self, group: OffsetFetchRequestGroup, stored: Stored) -> _Snapshot:
        by_id = self._version >= FIRST_VERSION_WITH_TOPIC_IDS
        requested = list(_requested_topics(self._node, group, stored, by_id=by_id))
        copied = {name: dict(stored[name]) for name, *_ in requested if name is not None and name in stored}
        return _Snapshot(copied, requested, _unstable(self._node, group.group_id, self._require_stable))

    def _done(self, number: int, code: ErrorCode, snapshot: _Snapshot | None) -> None:
        self._results[number] = code if snapshot is None else snapshot
        if self._is_delayed and len(self._results) == len(self._groups):
            complete_in_slices(self._node.host, self._context, self._response())

    def _response(self) -> Generator[None, None, OffsetFetchResponse]:
        response = OffsetFetchResponse(topics=[], groups=[])
        for number, group in enumerate(self._groups):
            if self._ends_slice():
                yield
            result = self._results[number]
            code = ErrorCode.NONE if isinstance(result, _Snapshot) else result
            if self._version >= FIRST_VERSION_WITH_GROUPS:
                in_group = OffsetFetchResponseGroup(group_id=group.group_id, error_code=code, topics=[])
                response.groups.append(in_group)
                if isinstance(result, _Snapshot):
                    in_group.topics = yield from self._topics(
                        result, OffsetFetchResponseTopics, OffsetFetchResponsePartitions
                    )
                continue
            response.error_code = code
            if code and self._version < FIRST_VERSION_WITH_ERROR:
                # v1 has no error code for the group, so each partition gets the error.
                result = self._copy(group, NONE_STORED)
            if isinstance(result, _Snapshot):
                response.topics = yield from self._topics(
                    result, OffsetFetchResponseTopic, OffsetFetchResponsePartition, code
                )
        return response

    def _topics(
        self,
        snapshot: _Snapshot,
        topic_class: type[TopicT],
        partition_class: type[Message],
        error: ErrorCode = ErrorCode.NONE,
    ) -> Generator[None, None, list[TopicT]]:
        """Return the topics of a group. `error` is the error of each partition. Yield between slices."""
        topics: list[TopicT] = []
        for requested in snapshot.requested:
            if self._ends_slice():
                yield
            topic: Any = topic_class(name=requested.name or "", partitions=[])
            if topic_class is OffsetFetchResponseTopics:
                topic.topic_id = requested.topic_id
            topics.append(topic)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if requested.name is None else error
            for index, committed, code in _offsets(snapshot.stored, requested, snapshot.unstable):
                topic.partitions.append(
                    partition_class(
                        partition_index=index,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                        error_code=unknown or code,
                    )
                )
                if self._ends_slice():
                    yield
        return topics

    def _ends_slice(self) -> bool:
        """Count an entry of the response, and return whether a slice ends."""
        self._entries += 1
        return not self._entries % SLICE_PARTITIONS


def _requested_topics(
    node: BrokerRole, group: OffsetFetchRequestGroup, stored: Stored, *, by_id: bool
) -> Iterable[_RequestedTopic]:
    topics = node.image.topics
    if group.topics is None:
        for name, partitions in stored.items():
            topic = topics.get(name)
            # From v10 on, a deleted topic has no id and so cannot be in the response.
            if topic is not None or not by_id:
                yield _RequestedTopic(name, ZERO_UUID if topic is None else topic.topic_id, list(partitions))
        return
    name_of = node.image.name_of
    for requested in group.topics:
        requested_name = name_of(requested.topic_id) if by_id else requested.name
        yield _RequestedTopic(requested_name, requested.topic_id, requested.partition_indexes)


def _offsets(
    stored: Stored, requested: _RequestedTopic, unstable: Collection[TopicPartition]
) -> Iterable[tuple[int, CommittedOffset, ErrorCode]]:
    of_topic = stored.get(requested.name, {}) if requested.name is not None else {}
    for index in requested.partitions:
        if requested.name is not None and (requested.name, index) in unstable:
            yield index, NOTHING_COMMITTED, ErrorCode.UNSTABLE_OFFSET_COMMIT
        else:
            yield index, of_topic.get(index, NOTHING_COMMITTED), ErrorCode.NONE


def _unstable(node: BrokerRole, group_id: str, require_stable: bool) -> Collection[TopicPartition]:
    """Return the partitions with pending transactional offsets; none without `require_stable`. KIP-447."""
    return node.groups.unstable_offsets(group_id) if require_stable else ()


def offset_delete(node: BrokerRole, context: RequestContext, request: OffsetDeleteRequest) -> Delayed:
    """Return one result per partition, after the offsets are deleted."""
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

    # The coordinator gets only partitions that exist.
    node.groups.delete_offsets(
        request.group_id, [partition for partition in named if node.partition_exists(*partition)], done
    )
    return DELAYED
