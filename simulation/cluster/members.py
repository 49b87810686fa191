"""Members of groups: they share the partitions of some topics, read them, and commit how far they have come.

They do as stock consumers do, of the classic protocol (whose leader assigns) or of the consumer protocol,
KIP-848 (whose coordinator does). Now and then one leaves, or dies and comes again as another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from itertools import count
from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.simulated_client import Steps
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
from simulation.cluster.groups import NOTHING, Group

OFFSETS: Final = TopicPartition("__consumer_offsets", 0)
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 7, 5, 4, 5
CONSUMER_HEARTBEAT_VERSION: Final = 1
COMMIT_VERSION: Final = 9
FETCH_VERSION: Final = 9

SESSION_TIMEOUT_MS: Final = 2_000
REBALANCE_TIMEOUT_MS: Final = 1_500
HEARTBEAT_INTERVAL_MS: Final = 300
PROTOCOL_TYPE: Final = "consumer"
EMBEDDED_VERSION: Final = bytes(2)
LEAVES: Final = -1

ELSEWHERE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
OUT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
    }
)
REJOINS: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED})
LATER: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH})


class Elsewhere(Exception):
    """The coordinator is somebody else, or cannot be reached."""


class Out(Exception):
    """The group goes on without this member, until it joins again."""


class Rejoin(Exception):
    """There is another generation to join."""


class Member(Consumer):
    """What members of both protocols do."""

    def __init__(self, *arguments: Any, group: Group, **named: Any) -> None:
        super().__init__(*arguments, places=group.places, **named)
        self.group = group
        self.generation = NOTHING
        """The generation, or the member's epoch; NOTHING while it is not of the group."""
        self.member_id = ""
        self.owned: dict[TopicPartition, bool] = {}
        """Its partitions, and whether it knows where to go on."""
        self._committed: dict[TopicPartition, int] = {}
        """What it was told is committed of what it has."""
        self._lives = count(1)
        self._life = self.name
        self._beats_ms = 0

    def run(self) -> Steps[None]:
        self._begin_life()
        coordinator: PeerAddress | None = None
        while not self.group.is_over:
            if coordinator is None:
                coordinator = yield from self.coordinator_of(self.group.name, GROUP)
            try:
                yield from self._go_on_with(coordinator)
            except Elsewhere:
                coordinator = None
            except Rejoin:
                self._gives_up()
            except Out as error:
                self.log(f"is out of its group: {error}")
                self._is_out()
                self._gives_up()
            if self.is_stopping and self.group.what_is_missing() is None:
                self.group.is_over = True
            yield self.random_pause(60)
        self._gives_up()

    def _go_on_with(self, coordinator: PeerAddress) -> Steps[None]:
        if self.generation == NOTHING:
            yield from self._join(coordinator)
        elif self.now_ms() >= self._beats_ms:
            yield from self._beat(coordinator)
        for place in list(self.owned):
            if not self.owned.get(place, True):
                yield from self._look(coordinator, place)
            elif place in self.owned:
                yield from self._poll(place)
                if self.positions[place] != self._committed.get(place) or self.rng.random() < 0.05:
                    yield from self._commit(coordinator, place)
        if not self.is_stopping and self.rng.random() < 0.02:
            if self.rng.random() < 0.5:
                self.log("leaves its group")
                yield from self._leave(coordinator)
            else:
                self.log("dies, and comes again")
            self._gives_up()
            self._begin_life()

    # --- its membership

    @abstractmethod
    def _join(self, coordinator: PeerAddress) -> Steps[None]:
        """Become a member, or one of the next generation."""

    @abstractmethod
    def _beat(self, coordinator: PeerAddress) -> Steps[None]:
        """Tell that it lives."""

    @abstractmethod
    def _leave(self, coordinator: PeerAddress) -> Steps[None]:
        """Go, with a word."""

    def _is_out(self) -> None:
        """The coordinator does not know it, or not as it is."""

    def _begin_life(self) -> None:
        """As a new process."""
        self._life = f"{self.name}.{next(self._lives)}"

    def _gives_up(self) -> None:
        self.generation = NOTHING
        self.owned.clear()
        self._committed.clear()
        self.group.gives_up(self._life)

    def _owns(self, places: Collection[TopicPartition]) -> None:
        self.owned = {place: self.owned.get(place, False) for place in places}

    def _must_be_fine(self, code: int, what: str) -> Steps[bool]:
        """Whether there is no error, after a pause where there is. Elsewhere, Out, Rejoin."""
        if not code:
            return True
        error = ErrorCode(code)
        if error in OUT:
            raise Out(f"{what} is answered {error.name}")
        if error in REJOINS:
            raise Rejoin
        if error not in LATER and error not in ELSEWHERE:
            self.check_retriable(code, what)
        yield self.backoff()
        if error in ELSEWHERE:
            raise Elsewhere
        return False

    def _ask_it(self, coordinator: PeerAddress, version: int, request: Any) -> Steps[Any]:
        answer = yield from self.request(coordinator, version, request)
        if answer is None:
            raise Elsewhere
        return answer

    # --- how far it has come

    def _look(self, coordinator: PeerAddress, place: TopicPartition) -> Steps[None]:
        """Ask where to go on."""
        topic = OffsetFetchRequestTopics(name=place.topic, partition_indexes=[place.partition])
        wanted = OffsetFetchRequestGroup(group_id=self.group.name, topics=[topic])
        self._names_itself(wanted)
        request = OffsetFetchRequest(groups=[wanted], require_stable=True)
        generation = self.generation
        before = self._ledger.led_epoch(OFFSETS, coordinator)
        answer = yield from self._ask_it(coordinator, FETCH_VERSION, request)
        (group,) = answer.groups
        code = group.error_code or next(
            (one.error_code for each in group.topics for one in each.partitions), 0
        )
        if not (yield from self._must_be_fine(code, "OffsetFetch")):
            return
        ((found,),) = (each.partitions for each in group.topics)
        # Who was cut off, or has paused, may tell what was so before.
        if before is not None and before == self._ledger.led_epoch(OFFSETS, coordinator):
            self.group.found(self._life, place, generation, found.committed_offset)
        self.positions[place] = max(0, found.committed_offset)
        self._committed[place] = found.committed_offset
        self.owned[place] = True

    def _names_itself(self, wanted: OffsetFetchRequestGroup) -> None:
        """KIP-848: who asks for offsets says who he is."""

    def _commit(self, coordinator: PeerAddress, place: TopicPartition) -> Steps[None]:
        offset, generation = self.positions[place], self.generation
        one = OffsetCommitRequestPartition(
            partition_index=place.partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.group.name,
            generation_id_or_member_epoch=generation,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=place.topic, partitions=[one])],
        )
        self.group.sends(place, generation, offset)
        answer = yield from self._ask_it(coordinator, COMMIT_VERSION, request)
        ((outcome,),) = (topic.partitions for topic in answer.topics)
        if (yield from self._must_be_fine(outcome.error_code, "OffsetCommit")):
            self.group.committed(place, generation, offset)
            self._committed[place] = offset


class ClassicMember(Member):
    """Joins, is told the generation, and gets its assignment from whichever member leads."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._has_assigned = 0
        """How many partitions, where it leads its group."""

    def _is_out(self) -> None:
        self.member_id = ""

    def _begin_life(self) -> None:
        super()._begin_life()
        self.member_id = ""

    def _join(self, coordinator: PeerAddress) -> Steps[None]:
        subscription = ConsumerProtocolSubscription(
            topics=sorted({place.topic for place in self.group.places})
        )
        request = JoinGroupRequest(
            group_id=self.group.name,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=_embedded(subscription))],
        )
        answer = yield from self._ask_it(coordinator, JOIN_VERSION, request)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        if not (yield from self._must_be_fine(answer.error_code, "JoinGroup")):
            return
        self.member_id = answer.member_id
        members = [member.member_id for member in answer.members]
        yield from self._sync(coordinator, answer.generation_id, members)

    def _sync(self, coordinator: PeerAddress, generation: int, members: list[str]) -> Steps[None]:
        """`members` are there for the leader alone, who assigns each partition to one of them."""
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        self._has_assigned = len(self.group.places) if members else 0
        for place in self.group.places if members else ():
            shares[self.rng.choice(members)].append(place)
        request = SyncGroupRequest(
            group_id=self.group.name,
            generation_id=generation,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=_assignment(places))
                for member, places in shares.items()
            ],
        )
        answer = yield from self._ask_it(coordinator, SYNC_VERSION, request)
        if not (yield from self._must_be_fine(answer.error_code, "SyncGroup")):
            return
        self.generation = generation
        places = _assigned(answer.assignment)
        self.group.given(self._life, generation, places)
        self._owns(places)
        self._beats_ms = self.now_ms() + HEARTBEAT_INTERVAL_MS

    def _beat(self, coordinator: PeerAddress) -> Steps[None]:
        if 0 < self._has_assigned < len(self.group.places):
            raise Rejoin  # topics have grown, which the leader looks after
        request = HeartbeatRequest(
            group_id=self.group.name, generation_id=self.generation, member_id=self.member_id
        )
        answer = yield from self._ask_it(coordinator, HEARTBEAT_VERSION, request)
        yield from self._must_be_fine(answer.error_code, "Heartbeat")
        self._beats_ms = self.now_ms() + HEARTBEAT_INTERVAL_MS

    def _leave(self, coordinator: PeerAddress) -> Steps[None]:
        me = MemberIdentity(member_id=self.member_id)
        yield from self.request(
            coordinator, LEAVE_VERSION, LeaveGroupRequest(group_id=self.group.name, members=[me])
        )


class ConsumerMember(Member):
    """Tells in its heartbeats what it has, and is told what it is to have."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._topic_ids: dict[Uuid, str] = {}

    def _begin_life(self) -> None:
        super()._begin_life()
        self.member_id = f"{self._life}-{self.rng.getrandbits(32)}"

    def _learn(self, answer: MetadataResponse) -> None:
        super()._learn(answer)
        self._topic_ids |= {
            topic.topic_id: topic.name for topic in answer.topics if topic.name and not topic.error_code
        }

    def _names_itself(self, wanted: OffsetFetchRequestGroup) -> None:
        wanted.member_id, wanted.member_epoch = self.member_id, self.generation

    def _join(self, coordinator: PeerAddress) -> Steps[None]:
        while not self._topic_ids:
            yield from self.refresh()
        yield from self._tell(coordinator, 0)

    def _beat(self, coordinator: PeerAddress) -> Steps[None]:
        yield from self._tell(coordinator, self.generation)

    def _leave(self, coordinator: PeerAddress) -> Steps[None]:
        if self.generation == NOTHING:
            return
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name, member_id=self.member_id, member_epoch=LEAVES
        )
        yield from self.request(coordinator, CONSUMER_HEARTBEAT_VERSION, request)

    def _tell(self, coordinator: PeerAddress, epoch: int) -> Steps[None]:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=sorted({place.topic for place in self.group.places}),
            topic_partitions=[
                RequestTopicPartitions(
                    topic_id=topic_id,
                    partitions=sorted(place.partition for place in self.owned if place.topic == name),
                )
                for topic_id, name in self._topic_ids.items()
                if any(place.topic == name for place in self.owned)
            ],
        )
        before, asked_at = self._ledger.led_epoch(OFFSETS, coordinator), self.group.moment
        answer = yield from self._ask_it(coordinator, CONSUMER_HEARTBEAT_VERSION, request)
        if not (yield from self._must_be_fine(answer.error_code, "ConsumerGroupHeartbeat")):
            return
        self.generation = answer.member_epoch
        places: Collection[TopicPartition] = self.owned
        if answer.assignment is not None:
            places = [
                TopicPartition(self._topic_ids[each.topic_id], partition)
                for each in answer.assignment.topic_partitions
                for partition in each.partitions
            ]
        # Who was cut off, or has paused, may tell what was so before.
        is_so = before is not None and before == self._ledger.led_epoch(OFFSETS, coordinator)
        if is_so:
            self.group.confirmed(self._life, asked_at, self.owned)
        self.group.holds(self._life, self.generation, places)
        self._owns(places)
        if is_so:
            self.group.confirmed(self._life, asked_at, places)
        self._beats_ms = self.now_ms() + HEARTBEAT_INTERVAL_MS


def _embedded(message: Message) -> bytes:
    """What consumers of the classic protocol put into its opaque fields."""
    data = bytearray(EMBEDDED_VERSION)
    encoder(type(message), 0)(message, data, [])
    return bytes(data)


def _assignment(places: list[TopicPartition]) -> bytes:
    topics = sorted({place.topic for place in places})
    return _embedded(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignmentTopicPartition(
                    topic=topic, partitions=[place.partition for place in places if place.topic == topic]
                )
                for topic in topics
            ]
        )
    )


def _assigned(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    decode = decoder(ConsumerProtocolAssignment, 0)
    found = decode(memoryview(data), len(EMBEDDED_VERSION), len(data))[0]
    return [
        TopicPartition(each.topic, number) for each in found.assigned_partitions for number in each.partitions
    ]
