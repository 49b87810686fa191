"""An observer of a quorum with elections, in which leaders send uncommitted records and lose them.

The quorum is a fake: three logs with one topic record per epoch and offset. As in Apache Kafka, its leader
sends uncommitted records, which the next leader may lack.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kwire.broker.metadata.batches import MetadataBatch
from kwire.broker.raft import fetching
from kwire.broker.raft.metadata_log import MetadataLog
from kwire.broker.raft.positions import EndOfEpoch, check_fetch_position
from kwire.broker.raft.quorum_state import ElectionFile
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC_ID
from kwire.host.host import OnResponse, PeerAddress, PeerUnreachable
from kwire.testing.network import Network
from kwire.testing.virtual_host import EventQueue, VirtualHost
from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import TopicRecord
from kwire.wire.registry import encode_record
from kwire.wire.schema import Message
from tests.broker.raft.observer_node import ObserverNode

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
ADDRESSES = {voter: PeerAddress(f"voter{voter}", 9093) for voter in (1, 2, 3)}


def topic_of(epoch: int, offset: int) -> TopicRecord:
    return TopicRecord(name=f"t{epoch}-{offset}", topic_id=Uuid(b"%8d%8d" % (epoch, offset)))


@dataclass
class Voter:
    """A voter's log: the epoch of each record, and the voter's view of the leader."""

    epochs: list[int] = field(default_factory=list)
    epoch: int = 0
    leader_id: int = -1
    high_watermark: int | None = None
    """The high watermark, which a leader knows once it has committed a record itself."""
    start_offset: int = 0
    earliest_snapshot: Snapshot | None = None
    latest_snapshot: Snapshot | None = None

    @property
    def end_offset(self) -> int:
        return len(self.epochs)

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else 0

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        up_to = [one for one in self.epochs if one <= epoch]
        return EndOfEpoch(up_to[-1], len(up_to)) if up_to else EndOfEpoch(0, 0)


class FakeQuorum:
    """Three voters and the committed records."""

    def __init__(self, rng: random.Random) -> None:
        self.voters = {voter: Voter() for voter in ADDRESSES}
        self.committed: list[int] = []
        """The epoch of each committed record."""
        self.unreachable = 0.0
        self.rng = rng
        self._leader = 1
        self.elect()

    @property
    def leader(self) -> Voter:
        return self.voters[self._leader]

    def elect(self) -> None:
        """Elect a voter that has all committed records; only some voters learn of it."""
        able = [
            voter
            for voter, copy in self.voters.items()
            if copy.epochs[: len(self.committed)] == self.committed
        ]
        epoch = max(copy.epoch for copy in self.voters.values()) + self.rng.choice([1, 1, 2])
        self._leader = self.rng.choice(able)
        self.leader.high_watermark = None
        for voter, copy in self.voters.items():
            if voter == self._leader or self.rng.random() < 0.6:
                copy.epoch, copy.leader_id = epoch, self._leader
        self.append(1)

    def resign_deposed_leaders(self) -> None:
        """Let deposed leaders learn of the new leader."""
        for voter, copy in self.voters.items():
            if copy.leader_id == voter != self._leader:
                copy.epoch, copy.leader_id = self.leader.epoch, self._leader

    def append(self, count: int) -> None:
        """Append records on every voter that considers itself the leader."""
        for voter, copy in self.voters.items():
            if copy.leader_id == voter:
                copy.epochs += [copy.epoch] * count

    def commit(self) -> None:
        """Replicate a part of the leader's log to a majority."""
        leader = self.leader
        end = self.rng.randint(len(self.committed), leader.end_offset)
        if end and leader.epochs[end - 1] != leader.epoch:
            return  # a record of an older epoch is only committed with one of this epoch
        other = self.voters[self.rng.choice([voter for voter in self.voters if voter != self._leader])]
        other.epochs, other.epoch, other.leader_id = leader.epochs[:end], leader.epoch, self._leader
        self.committed, leader.high_watermark = leader.epochs[:end], end

    def respond(self, to: PeerAddress, request: FetchRequest) -> FetchResponse:
        [voter] = [number for number, address in ADDRESSES.items() if address == to]
        copy = self.voters[voter]
        [asked] = request.topics[0].partitions
        fields: dict[str, Any] = {"error_code": 0, "high_watermark": -1, "records": b""}
        if asked.current_leader_epoch < copy.epoch:
            fields["error_code"] = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.current_leader_epoch > copy.epoch:
            fields["error_code"] = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif copy.leader_id != voter:  # a deposed leader that does not know it continues
            fields["error_code"] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            other = check_fetch_position(copy, asked.fetch_offset, asked.last_fetched_epoch)
            fields["high_watermark"] = -1 if copy.high_watermark is None else copy.high_watermark
            if isinstance(other, EndOfEpoch):
                fields["diverging_epoch"] = EpochEndOffset(epoch=other.epoch, end_offset=other.end_offset)
            else:
                end = asked.fetch_offset + self.rng.randrange(1, 6)
                fields["records"] = b"".join(
                    bytes(record(epoch, offset))
                    for offset, epoch in enumerate(copy.epochs[:end])
                    if offset >= asked.fetch_offset
                )
        partition = PartitionData(
            partition_index=0,
            current_leader=LeaderIdAndEpoch(leader_id=copy.leader_id, leader_epoch=copy.epoch),
            **fields,
        )
        known = ADDRESSES.get(copy.leader_id)
        return FetchResponse(
            responses=[FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
            node_endpoints=[NodeEndpoint(node_id=copy.leader_id, host=known.host, port=known.port)]
            if known and self.rng.random() < 0.8
            else [],
        )


class FakePeers:
    """The `Peers` of an observer of the fake quorum."""

    def __init__(self, quorum: FakeQuorum, host: VirtualHost, rng: random.Random) -> None:
        self._quorum = quorum
        self._host = host
        self._rng = rng

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: int,
        on_response: OnResponse,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        assert isinstance(request, FetchRequest)
        rng, quorum = self._rng, self._quorum

        def arrive() -> None:
            lost = rng.random() < quorum.unreachable
            answer = PeerUnreachable("lost") if lost else quorum.respond(to, request)
            self._host.schedule(rng.randrange(1, 30), lambda: on_response(answer))

        self._host.schedule(rng.randrange(1, 30), arrive)

    def end_backoff(self, to: PeerAddress) -> None:
        pass


def record(epoch: int, offset: int) -> bytearray:
    value = encode_record(topic_of(epoch, offset), 0)
    return build([(0, None, value, [])], base_offset=offset, leader_epoch=epoch)


class CheckedObserver(ObserverNode):
    """An observer of the fake quorum that checks that it applies only committed records."""

    def __init__(self, network: Network, quorum: FakeQuorum) -> None:
        voters = ",".join(f"{voter}@{address}" for voter, address in ADDRESSES.items())
        super().__init__(network, CLUSTER, **{"controller.quorum.voters": voters})  # type: ignore[arg-type]
        self.quorum = quorum
        self.make_peers = lambda host: FakePeers(quorum, host, quorum.rng)
        self.work_delays = quorum.rng

    def _check_committed(self, batches: Iterable[MetadataBatch]) -> Iterable[MetadataBatch]:
        for batch in batches:
            assert self.quorum.committed[batch.base_offset] == batch.epoch, "the record was not committed"
            yield batch


SEEDS = range(40)


def check_epochs(node: CheckedObserver) -> None:
    epochs = [epoch for _, epoch in node.leaders]
    assert epochs == sorted(epochs), "epochs never decrease"


def observe(seed: int) -> None:
    """Run an observer through elections, lost responses and power loss, and check that it converges."""
    rng = random.Random(seed)
    events = EventQueue()
    quorum = FakeQuorum(rng)
    node = CheckedObserver(Network(events), quorum)
    node.start()
    for _ in range(60):
        events.advance(rng.choice([1, 20, 100, 400]))
        match rng.randrange(8):
            case 0:
                quorum.elect()
            case 1 | 2:
                quorum.commit()
            case 3:
                quorum.unreachable = rng.choice([0.0, 0.3, 0.9])
            case 4 if rng.random() < 0.5:
                if node.observer._election_file._is_under_way:
                    # An observer does not wait until quorum-state is durable, so an epoch may be lost.
                    check_epochs(node)
                    node.leaders.clear()
                node.lose_power(rng)
                node.start()
            case _:
                quorum.append(rng.randrange(1, 4))
        assert not node.fatal
    quorum.unreachable = 0.0
    quorum.append(1)
    while quorum.leader.high_watermark != quorum.leader.end_offset:
        quorum.commit()
    quorum.resign_deposed_leaders()
    events.advance(20_000)
    assert not node.fatal
    check_epochs(node)
    assert (node.observer.leader_id, node.observer.epoch) == (quorum.leader.leader_id, quorum.leader.epoch)
    wanted = {topic_of(epoch, offset).name for offset, epoch in enumerate(quorum.committed)}
    assert set(node.image.topics) == wanted
    assert node.log.log.read(0, max_bytes=1 << 20, up_to_offset=node.log.end_offset).read() == b"".join(
        record(epoch, offset) for offset, epoch in enumerate(quorum.committed)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_observer_applies_only_committed_records(seed: int) -> None:
    observe(seed)


def _advance_to_log_end(log: MetadataLog, high_watermark: int) -> None:
    log.log.high_watermark = log.end_offset


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "written records count as committed": (MetadataLog, "advance_to", _advance_to_log_end),
    "the log is never truncated": (MetadataLog, "truncate_to", lambda log, offset: None),
    "truncated records may come back": (MetadataLog, "awaits_sync", False),
    "the log is truncated to the end of the leader's epoch, not its own": (
        fetching,
        "truncation_offset",
        lambda log, leaders: min(leaders.end_offset, log.end_offset),
    ),
    "the epoch is not persisted": (ElectionFile, "remember", lambda file, state: None),
    "the last fetched epoch is not sent": (MetadataLog, "last_epoch", property(lambda log: 0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_bug_is_detected(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    for seed in SEEDS:
        try:
            observe(seed)
        except Exception:
            return
    pytest.fail(f"no seed detects: {fault}")
