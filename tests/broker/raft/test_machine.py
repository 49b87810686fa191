"""The machine of an observer, alone: who is asked what, and what comes of each answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.host.host import PeerAddress, PeerUnreachable
from kwire.broker.raft.machine import (
    MOVES,
    AddToSnapshot,
    Advance,
    Append,
    BeginSnapshot,
    Complain,
    Cut,
    DropSnapshot,
    Event,
    Fail,
    Install,
    Machine,
    Output,
    Remember,
    Send,
    Stage,
    Terms,
)
from kwire.broker.raft.positions import EndOfEpoch
from kwire.broker.raft.snapshots import Snapshot
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import fetch_snapshot
from kwire.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.wire.primitives import Uuid

ME = 7
ONE, TWO, THREE = (PeerAddress(host, 9093) for host in ("one", "two", "three"))
VOTERS = {1: ONE, 2: TWO, 3: THREE}
FETCH_TIMEOUT_MS = 2_000


class FakeLog:
    """A log that is only its positions: epochs with their starts, and its ends."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.epochs: list[tuple[int, int]] = []
        self.earliest_snapshot: Snapshot | None = None
        self.latest_snapshot: Snapshot | None = None

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0

    def end_of_epoch(self, epoch: int) -> EndOfEpoch:
        found = EndOfEpoch(0, 0)
        for place, (one, _) in enumerate(self.epochs):
            if one <= epoch:
                ends = self.epochs[place + 1][1] if place + 1 < len(self.epochs) else self.end_offset
                found = EndOfEpoch(one, ends)
        return found


class Rig:
    """A machine, its clock, and whom it has asked last."""

    def __init__(self, *, epoch: int = 0, leader_id: int = -1, log: FakeLog | None = None) -> None:
        self.log = log or FakeLog()
        self.now_ms = 1_000
        self.machine = Machine(
            Terms(
                ME,
                Uuid(bytes(15) + b"\7"),
                "us",
                list(VOTERS.values()),
                FETCH_TIMEOUT_MS,
                2_000,
                20,
                1_000,
                500,
            ),
            self.log,
            random.Random(1),
            epoch=epoch,
            leader_id=leader_id,
            address_of=VOTERS.get,
        )

    def asks(self) -> Send:
        """What is asked as soon as it may be."""
        due_ms = self.machine.due_ms
        assert due_ms is not None
        self.now_ms = max(self.now_ms, due_ms)
        [send] = self.machine.tick(self.now_ms)
        assert isinstance(send, Send)
        return send

    def hears(self, answer: Any) -> list[Output]:
        return self.machine.answered(answer, self.now_ms)

    def follows(self, leader_id: int = 1, epoch: int = 3) -> Rig:
        """Have it find the leader of an epoch."""
        self.asks()
        self.hears(fetched(leader_id, epoch, error_code=ErrorCode.FENCED_LEADER_EPOCH))
        return self


def fetched(leader_id: int, epoch: int, *, endpoints: bool = True, **fields: Any) -> FetchResponse:
    fields = {"error_code": 0, "high_watermark": -1, "records": b"", **fields}
    partition = PartitionData(
        partition_index=0, current_leader=LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch), **fields
    )
    known = endpoints and leader_id in VOTERS
    return FetchResponse(
        responses=[FetchableTopicResponse(partitions=[partition])],
        node_endpoints=[NodeEndpoint(node_id=leader_id, host=VOTERS[leader_id].host, port=9093)]
        if known
        else [],
    )


def piece(
    snapshot: Snapshot, position: int, data: bytes, size: int, *, code: int = 0
) -> FetchSnapshotResponse:
    partition = fetch_snapshot.ResponsePartitionSnapshot(
        index=0,
        error_code=code,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=1, leader_epoch=3),
        size=size,
        position=position,
        unaligned_records=data,
    )
    topic = fetch_snapshot.ResponseTopicSnapshot(name="__cluster_metadata", partitions=[partition])
    return FetchSnapshotResponse(topics=[topic])


def test_any_server_is_asked_until_one_knows_the_leader_who_is_asked_then() -> None:
    rig = Rig()
    asked = {rig.asks().to}
    assert rig.hears(PeerUnreachable("down")) == []
    asked.add(rig.asks().to)
    assert rig.hears(fetched(-1, 2, error_code=ErrorCode.FENCED_LEADER_EPOCH)) == [Remember(2, -1)]
    asked.add(rig.asks().to)
    assert asked == {ONE, TWO, THREE}
    assert rig.hears(fetched(1, 3, error_code=ErrorCode.FENCED_LEADER_EPOCH)) == [Remember(3, 1)]
    send = rig.asks()
    assert send.to == ONE
    assert isinstance(send.request, FetchRequest)
    [topic] = send.request.topics
    assert topic.partitions[0].current_leader_epoch == 3


def test_what_the_leader_sends_is_appended_and_then_committed() -> None:
    rig = Rig().follows()
    rig.asks()
    assert rig.hears(fetched(1, 3, records=b"batches", high_watermark=5)) == [
        Append(b"batches", 3),
        Advance(5),
    ]
    rig.log.epochs, rig.log.end_offset, rig.log.high_watermark = [(3, 0)], 6, 5
    request = rig.asks().request
    assert isinstance(request, FetchRequest)
    partition = request.topics[0].partitions[0]
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.high_watermark) == (6, 3, 5)


def test_a_leader_that_answers_the_first_fetch_is_followed_with_what_it_sends() -> None:
    rig = Rig(epoch=3)
    rig.asks()
    outputs = rig.hears(fetched(2, 3, records=b"batches", high_watermark=5))
    assert outputs == [Remember(3, 2), Append(b"batches", 3), Advance(5)]


def test_who_remembers_the_leader_asks_it_first_and_after_a_failure_another() -> None:
    rig = Rig(epoch=3, leader_id=2)
    assert rig.asks().to == TWO
    rig.hears(PeerUnreachable("down"))
    others = [rig.asks().to]
    rig.hears(fetched(2, 3, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert rig.asks().to == TWO, "it still leads, as others see it"
    rig.hears(PeerUnreachable("down"))
    others.append(rig.asks().to)
    rig.hears(fetched(3, 4, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert rig.asks().to == THREE
    assert len(set(others)) == 2


def test_a_leader_without_an_answer_for_too_long_is_not_waited_for() -> None:
    rig = Rig(epoch=3, leader_id=2)
    rig.asks()
    rig.hears(fetched(2, 3))
    rig.now_ms += FETCH_TIMEOUT_MS
    asked = {rig.asks().to}
    rig.hears(fetched(-1, 2))
    asked.add(rig.asks().to)
    assert asked - {TWO}


def test_an_epoch_that_the_log_knows_better_is_taken_from_it() -> None:
    log = FakeLog()
    log.epochs, log.end_offset = [(5, 0)], 9
    rig = Rig(epoch=3, leader_id=2, log=log)
    assert (rig.machine.epoch, rig.machine.leader_id) == (5, -1)


def test_back_off_grows_and_ends_with_success() -> None:
    rig = Rig().follows()
    waits = []
    for _ in range(9):
        rig.asks()
        rig.hears(PeerUnreachable("down"))
        assert rig.machine.due_ms is not None
        waits.append(rig.machine.due_ms - rig.now_ms)
    assert 16 <= waits[0] <= 24
    assert 400 <= waits[-1] <= 600
    rig.asks()
    rig.hears(fetched(1, 3))
    assert rig.machine.due_ms is not None
    assert rig.machine.due_ms <= rig.now_ms


def test_an_older_epoch_is_not_listened_to() -> None:
    rig = Rig().follows(epoch=3)
    rig.asks()
    assert rig.hears(fetched(2, 2, records=b"old", high_watermark=9)) == []
    assert rig.machine.leader_id == 1


def test_the_log_is_cut_where_it_parts_from_the_leaders() -> None:
    log = FakeLog()
    log.epochs, log.end_offset, log.high_watermark = [(1, 0), (2, 10)], 20, 8
    rig = Rig(log=log).follows()
    rig.asks()
    assert rig.hears(fetched(1, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=15))) == [Cut(10)]
    rig.asks()
    [failed] = rig.hears(fetched(1, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=7)))
    assert isinstance(failed, Fail)
    assert "committed" in failed.reason
    assert rig.machine.due_ms is None


def test_a_snapshot_is_fetched_in_pieces_and_goes_on_after_a_break() -> None:
    rig = Rig().follows()
    snapshot = Snapshot(100, 2)
    rig.asks()
    offered = fetched(1, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2))
    assert rig.hears(offered) == [BeginSnapshot(snapshot)]
    request = rig.asks().request
    assert isinstance(request, FetchSnapshotRequest)
    assert request.max_bytes == 500
    assert rig.hears(piece(snapshot, 0, b"abc", 5)) == [AddToSnapshot(b"abc")]
    rig.asks()
    rig.hears(PeerUnreachable("broken"))
    assert isinstance(rig.asks().request, FetchRequest), "somebody else may lead by now"
    assert rig.hears(offered) == []
    request = rig.asks().request
    assert isinstance(request, FetchSnapshotRequest)
    assert request.topics[0].partitions[0].position == 3
    assert rig.hears(piece(snapshot, 3, b"de", 5)) == [AddToSnapshot(b"de"), Install()]
    assert rig.machine.due_ms is None
    rig.machine.installed(rig.now_ms)
    assert isinstance(rig.asks().request, FetchRequest)


@pytest.mark.parametrize(
    "answer",
    [
        piece(Snapshot(100, 2), 0, b"", 0, code=ErrorCode.SNAPSHOT_NOT_FOUND),
        piece(Snapshot(100, 2), 0, b"", 5, code=ErrorCode.POSITION_OUT_OF_RANGE),
        piece(Snapshot(100, 2), 1, b"abc", 5),
        piece(Snapshot(101, 2), 0, b"abc", 5),
        piece(Snapshot(100, 2), 0, b"", 5),
        piece(Snapshot(100, 2), 0, b"abcdef", 5),
    ],
)
def test_a_snapshot_that_cannot_be_had_is_dropped(answer: FetchSnapshotResponse) -> None:
    rig = Rig().follows()
    rig.asks()
    rig.hears(fetched(1, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    rig.asks()
    assert rig.hears(answer) == [DropSnapshot()]
    assert isinstance(rig.asks().request, FetchRequest)


def test_another_leader_has_another_snapshot() -> None:
    rig = Rig().follows()
    rig.asks()
    rig.hears(fetched(1, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    rig.asks()
    answer = piece(Snapshot(100, 2), 0, b"", 0, code=ErrorCode.FENCED_LEADER_EPOCH)
    answer.topics[0].partitions[0].current_leader = fetch_snapshot.LeaderIdAndEpoch(
        leader_id=2, leader_epoch=4
    )
    assert rig.hears(answer) == [DropSnapshot(), Remember(4, 2)]
    assert rig.asks().to == TWO


def test_another_cluster_ends_the_node() -> None:
    rig = Rig()
    rig.asks()
    [failed] = rig.hears(FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[]))
    assert isinstance(failed, Fail)
    assert "another cluster" in failed.reason


def test_two_leaders_of_one_epoch_end_the_node() -> None:
    rig = Rig().follows(leader_id=1)
    rig.asks()
    [failed] = rig.hears(fetched(2, 3, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert isinstance(failed, Fail)


def test_what_nobody_expects_is_told() -> None:
    rig = Rig().follows()
    rig.asks()
    [told] = rig.hears(fetched(1, 3, error_code=ErrorCode.INVALID_REQUEST))
    assert isinstance(told, Complain)
    assert rig.machine.due_ms is not None
    assert rig.machine.due_ms > rig.now_ms


def test_every_stage_but_the_last_can_be_left() -> None:
    assert {stage for stage, moves in MOVES.items() if not moves} == {Stage.FAILED}
    assert {event for moves in MOVES.values() for event in moves} == set(Event)
