"""Members of a consumer group, which share the group's partitions, read records and commit offsets.

They send the same requests as unmodified consumers. In the classic protocol, the group's leader assigns
partitions. In the consumer protocol (KIP-848), the coordinator does. Some members leave the group, or fail
and join again with another member id.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from itertools import count
from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.wire.codegen import decoder, encoder
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from kwire.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from kwire.wire.messages.find_coordinator import GROUP
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kwire.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kwire.wire.messages.metadata import MetadataResponse
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kwire.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kwire.wire.primitives import Uuid
from kwire.wire.schema import Message
from simulation.cluster.consumers import Consumer
from simulation.cluster.group_oracle import NOTHING, GroupOracle
from simulation.cluster.simulated_client import Steps

OFFSETS: Final = TopicPartition("__consumer_offsets", 0)
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 7, 5, 4, 5
CONSUMER_HEARTBEAT_VERSION: Final = 1
COMMIT_VERSION: Final = 9
FETCH_VERSION: Final = 9

SESSION_TIMEOUT_MS: Final = 2_000
REBALANCE_TIMEOUT_MS: Final = 1_500
HEARTBEAT_INTERVAL_MS: Final = 300
PROTOCOL_TYPE: Final = "consumer"
PROTOCOL_VERSION: Final = bytes(2)
LEAVE_GROUP_EPOCH: Final = -1

COORDINATOR_ERRORS: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
FENCED_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
    }
)
REJOIN_ERRORS: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED})
RETRY_ERRORS: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH})


class CoordinatorMoved(Exception):
    """Another broker is the coordinator, or the coordinator is not reachable."""


class MemberFenced(Exception):
    """The coordinator has removed the member from the group."""


class RebalanceNeeded(Exception):
    """The group is rebalancing, so the member must join again."""


class Member(Consumer):
    """The base class of members, which use the classic protocol or the consumer protocol."""

    def __init__(self, *arguments: Any, group: GroupOracle, **named: Any) -> None:
        super().__init__(*arguments, partitions=group.partitions, **named)
        self.group = group
        self.generation = NOTHING
        """The generation or member epoch; NOTHING outside the group."""
        self.member_id = ""
        self.owned: dict[TopicPartition, bool] = {}
        """The assigned partitions. The value is whether the partition's committed offset is known."""
        self._committed: dict[TopicPartition, int] = {}
        """The committed offset of each assigned partition, as last fetched or acknowledged."""
        self._process_numbers = count(1)
        self._process_name = self.name
        self._next_heartbeat_ms = 0

    def run(self) -> Steps[None]:
        self._start_process()
        coordinator: PeerAddress | None = None
        while not self.group.is_finished:
            if coordinator is None:
                coordinator = yield from self.coordinator_of(self.group.name, GROUP)
            try:
                yield from self._run_once(coordinator)
            except CoordinatorMoved:
                coordinator = None
            except RebalanceNeeded:
                self._give_up_partitions()
            except MemberFenced as error:
                self.log(f"was removed from its group: {error}")
                self._on_fenced()
                self._give_up_partitions()
            if self.is_stopping and self.group.why_not_complete() is None:
                self.group.is_finished = True
            yield self.random_pause(60)
        self._give_up_partitions()

    def _run_once(self, coordinator: PeerAddress) -> Steps[None]:
        if self.generation == NOTHING:
            yield from self._join(coordinator)
        elif self.now_ms() >= self._next_heartbeat_ms:
            yield from self._heartbeat(coordinator)
        for tp in list(self.owned):
            if not self.owned.get(tp, True):
                yield from self._fetch_offset(coordinator, tp)
            elif tp in self.owned:
                yield from self._poll(tp)
                if self.positions[tp] != self._committed.get(tp) or self.rng.random() < 0.05:
                    yield from self._commit(coordinator, tp)
        if not self.is_stopping and self.rng.random() < 0.02:
            if self.rng.random() < 0.5:
                self.log("leaves its group")
                yield from self._leave(coordinator)
            else:
                self.log("fails, and restarts")
            self._give_up_partitions()
            self._start_process()

    # --- membership

    @abstractmethod
    def _join(self, coordinator: PeerAddress) -> Steps[None]:
        """Join the group, or join it again for the next generation."""

    @abstractmethod
    def _heartbeat(self, coordinator: PeerAddress) -> Steps[None]:
        """Send a heartbeat. `_check_error` handles an error in the response."""

    @abstractmethod
    def _leave(self, coordinator: PeerAddress) -> Steps[None]:
        """Send a request to leave the group, and ignore errors."""

    def _on_fenced(self) -> None:
        """Reset the member id after the coordinator has rejected it, in the classic protocol only."""

    def _start_process(self) -> None:
        """Give the member the name, and in subclasses the member id, of a new process."""
        self._process_name = f"{self.name}.{next(self._process_numbers)}"

    def _give_up_partitions(self) -> None:
        self.generation = NOTHING
        self.owned.clear()
        self._committed.clear()
        self.group.on_member_gone(self._process_name)

    def _set_owned(self, partitions: Collection[TopicPartition]) -> None:
        self.owned = {tp: self.owned.get(tp, False) for tp in partitions}

    def _check_error(self, code: int, what: str) -> Steps[bool]:
        """Return whether `code` is no error. Pauses after a retriable error.

        Raises CoordinatorMoved, MemberFenced or RebalanceNeeded for an error that requires it.
        """
        if not code:
            return True
        error = ErrorCode(code)
        if error in FENCED_ERRORS:
            raise MemberFenced(f"{what} returned {error.name}")
        if error in REJOIN_ERRORS:
            raise RebalanceNeeded
        if error not in RETRY_ERRORS and error not in COORDINATOR_ERRORS:
            self.check_retriable(code, what)
        yield self.backoff()
        if error in COORDINATOR_ERRORS:
            raise CoordinatorMoved
        return False

    def _request_coordinator(self, coordinator: PeerAddress, version: int, request: Any) -> Steps[Any]:
        response = yield from self.request(coordinator, version, request)
        if response is None:
            raise CoordinatorMoved
        return response

    # --- offsets

    def _fetch_offset(self, coordinator: PeerAddress, tp: TopicPartition) -> Steps[None]:
        """Fetch the committed offset of a newly assigned partition."""
        topic = OffsetFetchRequestTopics(name=tp.topic, partition_indexes=[tp.partition])
        wanted = OffsetFetchRequestGroup(group_id=self.group.name, topics=[topic])
        self._add_member_identity(wanted)
        request = OffsetFetchRequest(groups=[wanted], require_stable=True)
        generation = self.generation
        before = self._oracle.led_epoch(OFFSETS, coordinator)
        response = yield from self._request_coordinator(coordinator, FETCH_VERSION, request)
        (group,) = response.groups
        code = group.error_code or next(
            (one.error_code for each in group.topics for one in each.partitions), 0
        )
        if not (yield from self._check_error(code, "OffsetFetch")):
            return
        ((found,),) = (each.partitions for each in group.topics)
        # A disconnected or paused coordinator may not know yet that it was replaced.
        if before is not None and before == self._oracle.led_epoch(OFFSETS, coordinator):
            self.group.on_offset_fetched(self._process_name, tp, generation, found.committed_offset)
        self.positions[tp] = max(0, found.committed_offset)
        self._committed[tp] = found.committed_offset
        self.owned[tp] = True

    def _add_member_identity(self, wanted: OffsetFetchRequestGroup) -> None:
        """Add the member id and the member epoch to an OffsetFetch request, in the consumer protocol only."""

    def _commit(self, coordinator: PeerAddress, tp: TopicPartition) -> Steps[None]:
        offset, generation = self.positions[tp], self.generation
        one = OffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.group.name,
            generation_id_or_member_epoch=generation,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=tp.topic, partitions=[one])],
        )
        self.group.on_commit_sent(tp, generation, offset)
        response = yield from self._request_coordinator(coordinator, COMMIT_VERSION, request)
        ((outcome,),) = (topic.partitions for topic in response.topics)
        if (yield from self._check_error(outcome.error_code, "OffsetCommit")):
            self.group.on_commit_ack(tp, generation, offset)
            self._committed[tp] = offset


class ClassicMember(Member):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._assigned_count = 0
        """The number of partitions in the last assignment that this member computed as the group's leader."""

    def _on_fenced(self) -> None:
        self.member_id = ""

    def _start_process(self) -> None:
        super()._start_process()
        self.member_id = ""

    def _join(self, coordinator: PeerAddress) -> Steps[None]:
        subscription = ConsumerProtocolSubscription(topics=sorted({tp.topic for tp in self.group.partitions}))
        request = JoinGroupRequest(
            group_id=self.group.name,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=_serialize(subscription))],
        )
        response = yield from self._request_coordinator(coordinator, JOIN_VERSION, request)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        if not (yield from self._check_error(response.error_code, "JoinGroup")):
            return
        self.member_id = response.member_id
        members = [member.member_id for member in response.members]
        yield from self._sync(coordinator, response.generation_id, members)

    def _sync(self, coordinator: PeerAddress, generation: int, members: list[str]) -> Steps[None]:
        """Send SyncGroup. The leader assigns each partition to one of `members`; for others, it is empty."""
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        self._assigned_count = len(self.group.partitions) if members else 0
        for tp in self.group.partitions if members else ():
            shares[self.rng.choice(members)].append(tp)
        request = SyncGroupRequest(
            group_id=self.group.name,
            generation_id=generation,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=_serialize_assignment(partitions))
                for member, partitions in shares.items()
            ],
        )
        response = yield from self._request_coordinator(coordinator, SYNC_VERSION, request)
        if not (yield from self._check_error(response.error_code, "SyncGroup")):
            return
        self.generation = generation
        partitions = _parse_assignment(response.assignment)
        self.group.on_assignment(self._process_name, generation, partitions)
        self._set_owned(partitions)
        self._next_heartbeat_ms = self.now_ms() + HEARTBEAT_INTERVAL_MS

    def _heartbeat(self, coordinator: PeerAddress) -> Steps[None]:
        if 0 < self._assigned_count < len(self.group.partitions):
            raise RebalanceNeeded  # so that the leader assigns the added partitions
        request = HeartbeatRequest(
            group_id=self.group.name, generation_id=self.generation, member_id=self.member_id
        )
        response = yield from self._request_coordinator(coordinator, HEARTBEAT_VERSION, request)
        yield from self._check_error(response.error_code, "Heartbeat")
        self._next_heartbeat_ms = self.now_ms() + HEARTBEAT_INTERVAL_MS

    def _leave(self, coordinator: PeerAddress) -> Steps[None]:
        me = MemberIdentity(member_id=self.member_id)
        yield from self.request(
            coordinator, LEAVE_VERSION, LeaveGroupRequest(group_id=self.group.name, members=[me])
        )


class ConsumerMember(Member):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._topic_ids: dict[Uuid, str] = {}

    def _start_process(self) -> None:
        super()._start_process()
        self.member_id = f"{self._process_name}-{self.rng.getrandbits(32)}"

    def _learn(self, response: MetadataResponse) -> None:
        super()._learn(response)
        self._topic_ids |= {
            topic.topic_id: topic.name for topic in response.topics if topic.name and not topic.error_code
        }

    def _add_member_identity(self, wanted: OffsetFetchRequestGroup) -> None:
        wanted.member_id, wanted.member_epoch = self.member_id, self.generation

    def _join(self, coordinator: PeerAddress) -> Steps[None]:
        while not self._topic_ids:
            yield from self.refresh()
        yield from self._send_heartbeat(coordinator, 0)

    def _heartbeat(self, coordinator: PeerAddress) -> Steps[None]:
        yield from self._send_heartbeat(coordinator, self.generation)

    def _leave(self, coordinator: PeerAddress) -> Steps[None]:
        if self.generation == NOTHING:
            return
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name, member_id=self.member_id, member_epoch=LEAVE_GROUP_EPOCH
        )
        yield from self.request(coordinator, CONSUMER_HEARTBEAT_VERSION, request)

    def _send_heartbeat(self, coordinator: PeerAddress, epoch: int) -> Steps[None]:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=sorted({tp.topic for tp in self.group.partitions}),
            topic_partitions=[
                RequestTopicPartitions(
                    topic_id=topic_id,
                    partitions=sorted(tp.partition for tp in self.owned if tp.topic == name),
                )
                for topic_id, name in self._topic_ids.items()
                if any(tp.topic == name for tp in self.owned)
            ],
        )
        before, requested_at = self._oracle.led_epoch(OFFSETS, coordinator), self.group.response_count
        response = yield from self._request_coordinator(coordinator, CONSUMER_HEARTBEAT_VERSION, request)
        if not (yield from self._check_error(response.error_code, "ConsumerGroupHeartbeat")):
            return
        self.generation = response.member_epoch
        partitions: Collection[TopicPartition] = self.owned
        if response.assignment is not None:
            partitions = [
                TopicPartition(self._topic_ids[each.topic_id], partition)
                for each in response.assignment.topic_partitions
                for partition in each.partitions
            ]
        # A disconnected or paused coordinator may not know yet that it was replaced.
        is_current = before is not None and before == self._oracle.led_epoch(OFFSETS, coordinator)
        if is_current:
            self.group.on_heartbeat_response(self._process_name, requested_at, self.owned)
        self.group.on_ownership(self._process_name, self.generation, partitions)
        self._set_owned(partitions)
        if is_current:
            self.group.on_heartbeat_response(self._process_name, requested_at, partitions)
        self._next_heartbeat_ms = self.now_ms() + HEARTBEAT_INTERVAL_MS


def _serialize(message: Message) -> bytes:
    """Return the version and the serialized message, as in the bytes fields of the classic protocol."""
    data = bytearray(PROTOCOL_VERSION)
    encoder(type(message), 0)(message, data, [])
    return bytes(data)


def _serialize_assignment(partitions: list[TopicPartition]) -> bytes:
    topics = sorted({tp.topic for tp in partitions})
    return _serialize(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignmentTopicPartition(
                    topic=topic, partitions=[tp.partition for tp in partitions if tp.topic == topic]
                )
                for topic in topics
            ]
        )
    )


def _parse_assignment(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    decode = decoder(ConsumerProtocolAssignment, 0)
    found = decode(memoryview(data), len(PROTOCOL_VERSION), len(data))[0]
    return [
        TopicPartition(each.topic, number) for each in found.assigned_partitions for number in each.partitions
    ]
