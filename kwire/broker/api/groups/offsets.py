"""OffsetCommit v2–10, OffsetFetch v1–10, OffsetDelete v0.

OffsetCommit: KIP-211 (no retention from v5 on), KIP-320 (leader epochs, v6), KIP-345 (instance id, v7),
KIP-848 (v9), topic ids (v10). The handler checks the topics; the coordinator checks the group and the member.

OffsetFetch: KIP-447 (stable offsets, v7), KIP-709 (many groups, v8), KIP-848 (member epoch, v9), topic ids
(v10). The response has only committed offsets. With `require_stable`, partitions with pending transactional
offsets get UNSTABLE_OFFSET_COMMIT.

OffsetDelete deletes the offsets of topics that the group does not consume at the moment (KIP-496).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.error_responses import with_results
from kwire.broker.api.request.gate import SLICE_ITEMS
from kwire.broker.api.request.slices import (
    LARGE_REQUEST_BYTES,
    SLICE_PARTITIONS,
    InSlices,
    complete_delayed,
    complete_in_slices,
    handle_in_slices,
)
from kwire.broker.api.request.topic_rights import TopicRights
from kwire.broker.controller.commands import Fault
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.coordinator.groups.offsets import CommittedOffset, OffsetCommit, PartitionCommit
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kwire.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
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
    error: ErrorCode = ErrorCode.NONE


class _Snapshot(NamedTuple):
    """A copy of the offsets of a group that an OffsetFetch requests. Later commits do not change it."""

    stored: Stored
    requested: Sequence[_RequestedTopic] | None
    """The topics of the response; None for all topics in `stored` that the client may describe."""
    unstable: Collection[TopicPartition]


def offset_fetch(
    node: BrokerRole, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Delayed:
    """Return the committed offsets of one group, or from v8 on of several groups."""
    return handle_in_slices(context, _OffsetFetch(node, context, request).steps())


class _OffsetFetch:
    """An OffsetFetch of any version. The response is built in slices, from a copy of the offsets."""

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
        self._stored_topics = 0
        """The number of topics of those groups for which the request fetches all topics."""
        self._entries = 0
        """The number of groups, topics and partitions in the response so far."""

    def steps(self) -> Generator[None, None, OffsetFetchResponse | Delayed]:
        """Authorize the topics that the request names, and copy the offsets. Then build the response."""
        node, context = self._node, self._context
        for number, group in enumerate(self._groups):
            if node.gate.allows(context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
                requested = None if group.topics is None else (yield from self._requested(group.topics))
                node.groups.fetch_offsets(
                    group.group_id,
                    partial(self._copy, group, requested),
                    partial(self._done, number),
                    require_stable=self._require_stable,
                    member_id=group.member_id,
                    member_epoch=group.member_epoch,
                )
            else:
                self._done(number, ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
            if not (number + 1) % SLICE_PARTITIONS:
                yield None
        if len(self._results) == len(self._groups):
            if self._has_many_topics and self._context.size_bytes <= LARGE_REQUEST_BYTES:
                return InSlices(self._response())  # the steps of a small request are run in one turn
            return (yield from self._response())
        self._is_delayed = True
        return DELAYED

    @property
    def _has_many_topics(self) -> bool:
        """Whether the response takes several slices, even if the request is small."""
        return self._stored_topics > SLICE_PARTITIONS

    def _requested(
        self, topics: Sequence[OffsetFetchRequestTopics], *, authorizes: bool = True
    ) -> Generator[None, None, list[_RequestedTopic]]:
        """Return the topics that a request names, with the errors of unknown and of denied topics."""
        by_id = self._version >= FIRST_VERSION_WITH_TOPIC_IDS
        name_of = self._node.image.name_of
        names = []
        for number, topic in enumerate(topics, 1):
            names.append(name_of(topic.topic_id) if by_id else topic.name)
            if not number % SLICE_PARTITIONS:
                yield
        may_describe = TopicRights(self._node.gate, self._context, Operation.DESCRIBE, names)
        found = []
        for number, (topic, name) in enumerate(zip(topics, names, strict=True), 1):
            error = ErrorCode.NONE
            if name is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID
            elif authorizes and not may_describe[name]:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            found.append(_RequestedTopic(name, topic.topic_id, topic.partition_indexes, error))
            if not number % SLICE_ITEMS:
                yield
        return found

    def _all_topics(self, stored: Stored) -> Generator[None, None, list[_RequestedTopic]]:
        """Return all topics with offsets that the client may describe."""
        topics = self._node.image.topics
        by_id = self._version >= FIRST_VERSION_WITH_TOPIC_IDS
        may_describe = TopicRights(self._node.gate, self._context, Operation.DESCRIBE, stored)
        found = []
        for number, (name, partitions) in enumerate(stored.items(), 1):
            topic = topics.get(name)
            # From v10 on, a deleted topic has no id and so cannot be in the response.
            if may_describe[name] and (topic is not None or not by_id):
                topic_id = ZERO_UUID if topic is None else topic.topic_id
                found.append(_RequestedTopic(name, topic_id, list(partitions)))
            if not number % SLICE_ITEMS:
                yield
        return found

    def _copy(
        self, group: OffsetFetchRequestGroup, requested: Sequence[_RequestedTopic] | None, stored: Stored
    ) -> _Snapshot:
        names: Iterable[str | None] = stored
        if requested is None:
            self._stored_topics += len(stored)
        else:
            names = {topic.name for topic in requested}  # a request may name a topic many times
        copied = {name: dict(stored[name]) for name in names if name is not None and name in stored}
        # KIP-447: with require_stable, partitions with pending transactional offsets get an error.
        unstable = self._node.groups.unstable_offsets(group.group_id) if self._require_stable else ()
        return _Snapshot(copied, requested, unstable)

    def _done(self, number: int, code: ErrorCode, snapshot: _Snapshot | None) -> None:
        self._results[number] = code if snapshot is None else snapshot
        if self._is_delayed and len(self._results) == len(self._groups):
            reply = handle_in_slices(self._context, self._response(), is_large=self._has_many_topics)
            if isinstance(reply, InSlices):
                complete_in_slices(self._node.host, self._context, reply.steps)
            else:
                assert isinstance(reply, OffsetFetchResponse)
                self._context.complete(reply)

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
                    in_group.topics = yield from self._topics(result)
                continue
            response.error_code = code
            if code and self._version < FIRST_VERSION_WITH_ERROR:
                # v1 has no error code for the group, so each partition gets the error.
                requested = yield from self._requested(group.topics or (), authorizes=False)
                result = _Snapshot(NONE_STORED, requested, ())
            if isinstance(result, _Snapshot):
                response.topics = yield from self._topics(result, code)
        return response

    def _topics(
        self, snapshot: _Snapshot, error: ErrorCode = ErrorCode.NONE
    ) -> Generator[None, None, list[Any]]:
        """Return the topics of a group. `error` is the error of each partition. Yield between slices."""
        topic_class: type[Message] = OffsetFetchResponseTopic
        partition_class: type[Message] = OffsetFetchResponsePartition
        if self._version >= FIRST_VERSION_WITH_GROUPS:
            topic_class, partition_class = OffsetFetchResponseTopics, OffsetFetchResponsePartitions
        topics: list[Any] = []
        found = snapshot.requested
        if found is None:
            found = yield from self._all_topics(snapshot.stored)
        for requested in found:
            if self._ends_slice():
                yield
            topic: Any = topic_class(name=requested.name or "", partitions=[])
            if topic_class is OffsetFetchResponseTopics:
                topic.topic_id = requested.topic_id
            topics.append(topic)
            for index, committed, code in _offsets(snapshot.stored, requested, snapshot.unstable):
                topic.partitions.append(
                    partition_class(
                        partition_index=index,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                        error_code=error or code,
                    )
                )
                if self._ends_slice():
                    yield
        return topics

    def _ends_slice(self) -> bool:
        """Count an entry of the response, and return whether a slice ends."""
        self._entries += 1
        return not self._entries % SLICE_PARTITIONS


def _offsets(
    stored: Stored, requested: _RequestedTopic, unstable: Collection[TopicPartition]
) -> Iterable[tuple[int, CommittedOffset, ErrorCode]]:
    of_topic = stored.get(requested.name, {}) if requested.name is not None else {}
    for index in requested.partitions:
        if requested.error:
            yield index, NOTHING_COMMITTED, requested.error
        elif requested.name is not None and (requested.name, index) in unstable:
            yield index, NOTHING_COMMITTED, ErrorCode.UNSTABLE_OFFSET_COMMIT
        else:
            yield index, of_topic.get(index, NOTHING_COMMITTED), ErrorCode.NONE


def offset_delete(node: BrokerRole, context: RequestContext, request: OffsetDeleteRequest) -> Delayed:
    """Return one result per partition, after the offsets are deleted."""
    named = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]

    def done(code: ErrorCode, outcome: Mapping[TopicPartition, ErrorCode]) -> None:
        if code:
            context.refuse(ApiError(code))
            return
        faults = (Fault(outcome.get(one, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) for one in named)
        context.complete(with_results(ApiKey.OFFSET_DELETE, OffsetDeleteResponse(), request, faults))

    # The coordinator gets only partitions that exist.
    node.groups.delete_offsets(
        request.group_id, [partition for partition in named if node.partition_exists(*partition)], done
    )
    return DELAYED
