"""A node's part in the quorum of the metadata log, as a machine: answers and time in, what is to be done out.

This is the role of an observer, which does not vote (KIP-595). It asks any server of the quorum who leads,
with a Fetch, and goes on fetching from the leader: batches, where to cut what only it has, up to where all is
committed, or a snapshot to load first (KIP-630). One request is under way at a time, because the next one
begins where the answer to the last one ends.

The machine touches nothing. Its caller does what it says, in that order, then asks again (`tick`); it tells
of answers (`answered`), and of what came of them (`refused`, `installed`). Who leads an epoch never changes,
epochs only grow, and nothing is cut below what was committed: a node that is told otherwise ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from kwire.broker.host.host import PeerAddress, PeerUnreachable
from kwire.broker.metadata.names import CLUSTER_METADATA_TOPIC
from kwire.broker.raft.positions import EndOfEpoch, Positions, cut_for
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.raft.view import NO_LEADER
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC_ID
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import fetch_snapshot
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.wire.primitives import Buffer, Uuid
from kwire.wire.schema import Message

FETCH_WAIT_MS: Final = 500
"""How long the leader may hold a Fetch that finds nothing, as Kafka's nodes have it."""
MAX_BACKOFF_MS: Final = 500
JITTER: Final = 0.2


class Stage(Enum):
    """How far the machine has come in an epoch."""

    UNATTACHED = auto()
    """Nobody is known to lead: any server of the quorum is asked."""
    FOLLOWING = auto()
    """The leader is known, and its log is fetched."""
    LOADING = auto()
    """A snapshot of the leader's is fetched."""
    INSTALLING = auto()
    """It is complete, and becomes durable; nothing is asked meanwhile."""
    FAILED = auto()
    """What this node knows contradicts the quorum."""


class Event(Enum):
    """What takes it further."""

    LEADER_FOUND = auto()
    EPOCH_SEEN = auto()
    """There is a new epoch, and nobody has said yet who leads it."""
    SNAPSHOT_OFFERED = auto()
    SNAPSHOT_COMPLETE = auto()
    SNAPSHOT_GONE = auto()
    """It was installed, or cannot be: the log is fetched again."""
    CONTRADICTED = auto()


_ELECTIONS: Final = {Event.LEADER_FOUND: Stage.FOLLOWING, Event.EPOCH_SEEN: Stage.UNATTACHED}

MOVES: Final[dict[Stage, dict[Event, Stage]]] = {
    Stage.UNATTACHED: {**_ELECTIONS, Event.CONTRADICTED: Stage.FAILED},
    Stage.FOLLOWING: {
        **_ELECTIONS,
        Event.SNAPSHOT_OFFERED: Stage.LOADING,
        Event.CONTRADICTED: Stage.FAILED,
    },
    Stage.LOADING: {
        **_ELECTIONS,
        Event.SNAPSHOT_OFFERED: Stage.LOADING,
        Event.SNAPSHOT_COMPLETE: Stage.INSTALLING,
        Event.SNAPSHOT_GONE: Stage.FOLLOWING,
        Event.CONTRADICTED: Stage.FAILED,
    },
    Stage.INSTALLING: {Event.SNAPSHOT_GONE: Stage.FOLLOWING, Event.CONTRADICTED: Stage.FAILED},
    Stage.FAILED: {},
}
"""The moves that there are: anything else is a fault of ours."""


class Send(NamedTuple):
    """Ask a node; its answer goes to `answered`."""

    to: PeerAddress
    request: Message
    deadline_ms: int


class Remember(NamedTuple):
    """Remember that there is this epoch, and who leads it, and tell whoever follows that.

    Who does not vote promises nothing by it, and need not wait until it is durable.
    """

    epoch: int
    leader_id: int


class Append(NamedTuple):
    """Write what the leader of `epoch` has sent; `refused` where it does not fit."""

    records: Buffer
    epoch: int


class Cut(NamedTuple):
    """Forget the log from an offset on."""

    offset: int


class Advance(NamedTuple):
    """All is committed up to there, as far as it is here."""

    high_watermark: int


class BeginSnapshot(NamedTuple):
    """Begin to write a snapshot that is fetched; what was begun before is of no use."""

    snapshot: Snapshot


class AddToSnapshot(NamedTuple):
    """The next bytes of it."""

    data: Buffer


class Install(NamedTuple):
    """All of it is there: check it, make it durable, and begin the log behind it; then `installed`."""


class DropSnapshot(NamedTuple):
    """It will not be completed."""


class Complain(NamedTuple):
    """Tell the operator."""

    text: str


class Fail(NamedTuple):
    """The node has to end."""

    reason: str


Output = (
    Send | Remember | Append | Cut | Advance | BeginSnapshot | AddToSnapshot | Install | DropSnapshot
    | Complain | Fail
)  # fmt: skip


class FollowedLog(Positions, Protocol):
    """What the machine has to know of the log."""

    @property
    def high_watermark(self) -> int: ...


class Terms(NamedTuple):
    """Who observes, and in what time; the times are Kafka's controller.quorum.*."""

    node_id: int
    directory_id: Uuid
    cluster_id: str
    servers: Sequence[PeerAddress]
    """Whom to ask who leads."""
    fetch_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    fetch_max_bytes: int
    snapshot_max_bytes: int


class _Loading(NamedTuple):
    """A snapshot that is being fetched, and how much of it is there."""

    snapshot: Snapshot
    position: int = 0


class Machine:
    """The machine of one observer."""

    def __init__(
        self,
        terms: Terms,
        log: FollowedLog,
        rng: random.Random,
        *,
        epoch: int,
        leader_id: int,
        address_of: Callable[[int], PeerAddress | None],
    ) -> None:
        """`epoch` and `leader_id` are what the node remembers; `address_of` tells where a voter is."""
        self._terms = terms
        self._log = log
        self._rng = rng
        self._address_of = address_of
        self.stage = Stage.UNATTACHED
        self.epoch = epoch
        self.leader_id = NO_LEADER
        self.leader_address: PeerAddress | None = None
        self._asked: PeerAddress | None = None
        """Who is to answer."""
        self._next_server = rng.randrange(len(terms.servers)) if terms.servers else 0
        self._loading: _Loading | None = None
        self._failures = 0
        self._retry_at_ms = 0
        self._fetched_by_ms: int | None = None
        """Until when the leader has to answer before others are asked; None before it was asked."""
        self._doubts_leader = False
        """Whether the leader did not answer last time: somebody else is asked first."""
        if epoch < log.last_epoch:  # quorum-state is lost, or older than the log
            self.epoch = log.last_epoch
        elif leader_id not in (NO_LEADER, terms.node_id) and address_of(leader_id) is not None:
            self._follow(leader_id, address_of(leader_id))

    @property
    def due_ms(self) -> int | None:
        """When `tick` has something to do; None while an answer, or an installed snapshot, is awaited."""
        busy = self._asked is not None or self.stage in (Stage.INSTALLING, Stage.FAILED)
        return None if busy or not self._terms.servers else self._retry_at_ms

    # --- asking

    def tick(self, now_ms: int) -> list[Output]:
        """Time has passed, or what came out before is done: perhaps there is somebody to ask."""
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return []
        if self._fetched_by_ms is None:
            self._fetched_by_ms = now_ms + self._terms.fetch_timeout_ms
        to = self.leader_address
        is_leader = to is not None and not self._doubts_leader and now_ms < self._fetched_by_ms
        if to is None or not is_leader:
            servers = self._terms.servers
            to = servers[self._next_server % len(servers)]
            self._next_server += 1
        loading = self._loading if is_leader else None
        request = self._fetch() if loading is None else self._fetch_snapshot(loading)
        self._asked = to
        return [Send(to, request, now_ms + self._terms.request_timeout_ms)]

    def _fetch(self) -> FetchRequest:
        terms, log = self._terms, self._log
        partition = FetchPartition(
            partition=0,
            current_leader_epoch=self.epoch,
            fetch_offset=log.end_offset,
            last_fetched_epoch=log.last_epoch,
            partition_max_bytes=0,  # in KRaft the whole request is limited
            replica_directory_id=terms.directory_id,
            high_watermark=log.high_watermark,
        )
        return FetchRequest(
            cluster_id=terms.cluster_id,
            replica_state=ReplicaState(replica_id=terms.node_id),
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=0,
            max_bytes=terms.fetch_max_bytes,
            topics=[
                FetchTopic(topic=CLUSTER_METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
            ],
            forgotten_topics_data=[],
            rack_id="",
        )

    def _fetch_snapshot(self, loading: _Loading) -> FetchSnapshotRequest:
        terms, snapshot = self._terms, loading.snapshot
        partition = fetch_snapshot.RequestPartitionSnapshot(
            partition=0,
            current_leader_epoch=self.epoch,
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            position=loading.position,
            replica_directory_id=terms.directory_id,
        )
        return FetchSnapshotRequest(
            cluster_id=terms.cluster_id,
            replica_id=terms.node_id,
            max_bytes=terms.snapshot_max_bytes,
            topics=[fetch_snapshot.RequestTopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=[partition])],
        )

    # --- what comes of it

    def answered(self, answer: Message | PeerUnreachable, now_ms: int) -> list[Output]:
        """Whoever was asked has answered, or could not be reached."""
        asked, self._asked = self._asked, None
        assert asked is not None, "nobody was asked"
        was_leader = asked == self.leader_address
        if isinstance(answer, FetchResponse):
            outputs = self._fetched(answer, now_ms)
        elif isinstance(answer, FetchSnapshotResponse):
            outputs = self._snapshot_fetched(answer, now_ms)
        else:
            outputs = None
        # One answer of anybody else, and the leader gets another chance.
        self._doubts_leader = outputs is None and was_leader
        if outputs is None:
            self._back_off(now_ms)
            return []
        return outputs

    def refused(self, now_ms: int) -> None:
        """What the leader has sent could not be appended: it is asked for again in a while."""
        self._back_off(now_ms)

    def installed(self, now_ms: int) -> None:
        """The snapshot is installed, or could not be: the log tells which."""
        self._loading = None
        self._move(Event.SNAPSHOT_GONE)
        self._succeeded(now_ms)

    def _fetched(self, answer: FetchResponse, now_ms: int) -> list[Output] | None:
        if answer.error_code != ErrorCode.NONE:
            return self._refused_wholly(answer.error_code)
        if len(answer.responses) != 1 or len(answer.responses[0].partitions) != 1:
            return None
        [partition] = answer.responses[0].partitions
        addresses = {one.node_id: PeerAddress(one.host, one.port) for one in answer.node_endpoints}
        leader = partition.current_leader
        outputs, goes_on = self._heard(
            partition.error_code, leader.leader_id, leader.leader_epoch, addresses, now_ms
        )
        if not goes_on:
            return outputs
        log, diverging, snapshot = self._log, partition.diverging_epoch, partition.snapshot_id
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            offset = cut_for(log, EndOfEpoch(diverging.epoch, diverging.end_offset))
            if offset < log.high_watermark:
                return self._contradicted(
                    f"the leader {self.leader_id} of epoch {self.epoch} has another log than this node from "
                    f"offset {offset} on, before {log.high_watermark}, up to where all was committed"
                )
            outputs.append(Cut(offset))
        elif snapshot.end_offset >= 0 and snapshot.epoch >= 0:
            offered = Snapshot(snapshot.end_offset, snapshot.epoch)
            if offered.end_offset < log.high_watermark:
                return self._contradicted(
                    f"the leader {self.leader_id} of epoch {self.epoch} has this node begin anew at "
                    f"{offered.end_offset}, before {log.high_watermark}, up to where all was committed"
                )
            if self._loading is None or self._loading.snapshot != offered:
                self._move(Event.SNAPSHOT_OFFERED)
                self._loading = _Loading(offered)
                outputs.append(BeginSnapshot(offered))
        else:
            if self._loading is not None:  # the leader has changed its mind
                outputs += self._drop_snapshot()
            if partition.records:
                outputs.append(Append(_buffer(partition.records), self.epoch))
            if partition.high_watermark >= 0:
                outputs.append(Advance(partition.high_watermark))
        self._succeeded(now_ms)
        return outputs

    def _snapshot_fetched(self, answer: FetchSnapshotResponse, now_ms: int) -> list[Output] | None:
        if answer.error_code != ErrorCode.NONE:
            return self._refused_wholly(answer.error_code)
        if len(answer.topics) != 1 or len(answer.topics[0].partitions) != 1:
            return None
        [partition] = answer.topics[0].partitions
        addresses = {one.node_id: PeerAddress(one.host, one.port) for one in answer.node_endpoints}
        leader, loading = partition.current_leader, self._loading
        code = partition.error_code
        gone = code in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)
        outputs, goes_on = self._heard(
            ErrorCode.NONE if gone else code, leader.leader_id, leader.leader_epoch, addresses, now_ms
        )
        if not goes_on or loading is None:
            return outputs
        told = Snapshot(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        data = _buffer(partition.unaligned_records)
        position = loading.position + len(data)
        if (
            gone
            or told != loading.snapshot
            or partition.position != loading.position
            or not data
            or position > partition.size
        ):
            # It was removed before all of it was here: the next Fetch tells what there is now.
            self._back_off(now_ms)
            return outputs + self._drop_snapshot()
        outputs.append(AddToSnapshot(data))
        self._loading = loading._replace(position=position)
        self._succeeded(now_ms)
        if position == partition.size:
            self._move(Event.SNAPSHOT_COMPLETE)
            outputs.append(Install())
        return outputs

    def _refused_wholly(self, code: int) -> list[Output] | None:
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            return self._contradicted(
                f"the quorum is that of another cluster than {self._terms.cluster_id}, to which the "
                f"directories of this node belong: correct controller.quorum.voters or "
                f"controller.quorum.bootstrap.servers"
            )
        return None

    def _heard(
        self,
        code: int,
        leader_id: int,
        epoch: int,
        addresses: dict[int, PeerAddress],
        now_ms: int,
    ) -> tuple[list[Output], bool]:
        """What an answer says of leader and epoch; and whether the rest of it is the leader's, for us."""
        if epoch < self.epoch or code == ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._back_off(now_ms)  # who answers is behind
            return [], False
        if leader_id == self._terms.node_id:
            leader_id = NO_LEADER  # it has not heard yet that this node does not vote any more
        address = None
        if leader_id != NO_LEADER:
            address = addresses.get(leader_id) or self._address_of(leader_id)
        if (
            epoch == self.epoch
            and NO_LEADER not in (leader_id, self.leader_id)
            and leader_id != self.leader_id
        ):
            reason = f"epoch {epoch} of the quorum has two leaders, {self.leader_id} and {leader_id}"
            return self._contradicted(reason), False
        is_news = epoch > self.epoch or (leader_id != NO_LEADER and self.leader_id == NO_LEADER)
        outputs: list[Output] = []
        if is_news:
            outputs = self._drop_snapshot() if self._loading is not None else []
            self.epoch = epoch
            self._follow(leader_id, address)
            self._fetched_by_ms = now_ms + self._terms.fetch_timeout_ms
            outputs.append(Remember(epoch, leader_id))
        elif leader_id != NO_LEADER and address is not None and address != self.leader_address:
            self.leader_address = address
            outputs.append(Remember(epoch, leader_id))
        if code == ErrorCode.NONE and self.stage in (Stage.FOLLOWING, Stage.LOADING):
            return outputs, True
        if is_news and self.leader_address is not None:
            self._failures = 0  # and the leader is asked at once
        else:
            self._back_off(now_ms)
        if code not in _EXPECTED:
            outputs.append(Complain(f"the quorum refused a fetch: {ErrorCode(code).name}"))
        return outputs, False

    def _follow(self, leader_id: int, address: PeerAddress | None) -> None:
        self.leader_id, self.leader_address = leader_id, address
        self._move(Event.EPOCH_SEEN if leader_id == NO_LEADER else Event.LEADER_FOUND)

    def _drop_snapshot(self) -> list[Output]:
        self._loading = None
        self._move(Event.SNAPSHOT_GONE)
        return [DropSnapshot()]

    def _contradicted(self, reason: str) -> list[Output]:
        self._move(Event.CONTRADICTED)
        return [Fail(reason)]

    def _move(self, event: Event) -> None:
        following = MOVES[self.stage].get(event)
        assert following is not None, f"{event.name} comes in the stage {self.stage.name}"
        self.stage = following

    # --- time

    def _succeeded(self, now_ms: int) -> None:
        self._failures = 0
        self._fetched_by_ms = now_ms + self._terms.fetch_timeout_ms

    def _back_off(self, now_ms: int) -> None:
        """Ask nobody for a while, which doubles with each failure."""
        backoff_ms = min(self._terms.retry_backoff_ms << min(self._failures, 16), MAX_BACKOFF_MS)
        self._failures += 1
        self._retry_at_ms = now_ms + round(backoff_ms * self._rng.uniform(1 - JITTER, 1 + JITTER))


_EXPECTED: Final = {
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.BROKER_NOT_AVAILABLE,
}
"""What a quorum answers that elects, or ends."""


def _buffer(records: object) -> Buffer:
    """Records as they came over the wire."""
    assert isinstance(records, (bytes, bytearray, memoryview))
    return records
