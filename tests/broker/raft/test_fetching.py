"""How a node gets the log: who is asked what, and what comes of each answer."""

from __future__ import annotations

import pytest

from kwire.broker.raft.outputs import (
    AddToSnapshot,
    Advance,
    Append,
    BeginSnapshot,
    Complain,
    Cut,
    DropSnapshot,
    Fail,
    Install,
    Send,
)
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.snapshots import Snapshot
from kwire.host.host import PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import EpochEndOffset, FetchRequest, FetchResponse, SnapshotId
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from simulation.quorum.log import SavedSnapshot
from tests.broker.raft.raft_harness import ADDRESSES, FETCH_TIMEOUT_MS, RaftHarness, fetched, piece, remembers

ME = 7


def observer(**named: object) -> RaftHarness:
    return RaftHarness(ME, may_vote=False, **named)  # type: ignore[arg-type]


def asks(harness: RaftHarness) -> Send:
    [send] = harness.sends()
    return send


def follower(leader_id: int = 2, epoch: int = 3, **named: object) -> RaftHarness:
    harness = observer(**named)
    harness.hears(asks(harness), fetched(leader_id, epoch, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    return harness


def test_any_server_is_asked_until_one_knows_the_leader_who_is_asked_then() -> None:
    harness = observer()
    send = asks(harness)
    asked = {send.to}
    assert harness.hears(send, PeerUnreachable("down")) == []
    send = asks(harness)
    asked.add(send.to)
    found = harness.hears(send, fetched(-1, 2, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert remembers(found) == [(2, -1, -1, False)]
    send = asks(harness)
    asked.add(send.to)
    assert asked == {ADDRESSES[1], ADDRESSES[2], ADDRESSES[3]}
    found = harness.hears(send, fetched(1, 3, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert remembers(found) == [(3, 1, -1, False)]
    send = asks(harness)
    assert send.to == ADDRESSES[1]
    assert isinstance(send.request, FetchRequest)
    assert send.request.topics[0].partitions[0].current_leader_epoch == 3


def test_what_the_leader_sends_is_appended_and_then_committed() -> None:
    harness = follower()
    outputs = harness.hears(asks(harness), fetched(2, 3, records=b"batches", high_watermark=5))
    assert outputs == [Append(b"batches", 3), Advance(5)]
    harness.appends(6, epoch=3)
    harness.log.advance(5)
    request = asks(harness).request
    assert isinstance(request, FetchRequest)
    partition = request.topics[0].partitions[0]
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.high_watermark) == (6, 3, 5)


def test_a_leader_that_answers_the_first_fetch_is_followed_with_what_it_sends() -> None:
    harness = observer(remembered=QuorumState(leader_epoch=3))
    outputs = harness.hears(asks(harness), fetched(2, 3, records=b"batches", high_watermark=5))
    assert remembers(outputs) == [(3, 2, -1, False)]
    assert outputs[1:] == [Append(b"batches", 3), Advance(5)]


def test_who_may_vote_fetches_on_once_what_it_has_is_durable() -> None:
    harness = RaftHarness(1).follows(leader_id=2, epoch=3)
    harness.is_slow = True
    harness.hears(asks(harness), fetched(2, 3, records=b"batches", high_watermark=0))
    harness.appends(2, epoch=3)
    assert harness.machine.due_ms is None, "neither does it stand, however long its own disk takes"
    harness.now_ms += 2 * FETCH_TIMEOUT_MS
    harness.do(harness.machine.synced(1, harness.now_ms))
    assert harness.machine.due_ms is None
    harness.do(harness.machine.synced(2, harness.now_ms))
    assert asks(harness).to == ADDRESSES[2]
    assert harness.machine.role is QuorumRole.FOLLOWER, "it was not the leader that took so long"


def test_who_remembers_the_leader_asks_it_first_and_after_a_failure_another() -> None:
    harness = observer(remembered=QuorumState(leader_epoch=3, leader_id=2))
    send = asks(harness)
    assert send.to == ADDRESSES[2]
    harness.hears(send, PeerUnreachable("down"))
    send = asks(harness)
    others = [send.to]
    harness.hears(send, fetched(2, 3, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    send = asks(harness)
    assert send.to == ADDRESSES[2], "it still leads, as others see it"
    harness.hears(send, PeerUnreachable("down"))
    send = asks(harness)
    others.append(send.to)
    harness.hears(send, fetched(3, 4, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert asks(harness).to == ADDRESSES[3]
    assert len(set(others)) == 2


def test_a_leader_without_an_answer_for_too_long_is_not_waited_for() -> None:
    harness = follower()
    harness.hears(asks(harness), fetched(2, 3))
    harness.now_ms += FETCH_TIMEOUT_MS
    asked = set()
    for _ in range(2):
        send = asks(harness)
        asked.add(send.to)
        harness.hears(send, fetched(-1, 2))
    assert asked - {ADDRESSES[2]}


def test_an_epoch_that_the_log_knows_better_is_taken_from_it() -> None:
    harness = observer(remembered=QuorumState(leader_epoch=3, leader_id=2), log={5: 9})
    assert (harness.machine.epoch, harness.machine.leader_id) == (5, -1)


def test_back_off_grows_and_ends_with_success() -> None:
    harness = follower()
    waits = []
    for _ in range(9):
        harness.hears(asks(harness), PeerUnreachable("down"))
        assert harness.machine.due_ms is not None
        waits.append(harness.machine.due_ms - harness.now_ms)
    assert 16 <= waits[0] <= 24
    assert 160 <= waits[-1] <= 240
    harness.hears(asks(harness), fetched(2, 3))
    assert harness.machine.due_ms is not None
    assert harness.machine.due_ms <= harness.now_ms


def test_an_older_epoch_is_not_listened_to() -> None:
    harness = follower(epoch=3)
    assert harness.hears(asks(harness), fetched(1, 2, records=b"old", high_watermark=9)) == []
    assert harness.machine.leader_id == 2


def test_an_answer_that_nobody_waits_for_is_not_listened_to() -> None:
    harness = RaftHarness(1).follows(leader_id=2, epoch=3)
    send = asks(harness)
    harness.follows(leader_id=3, epoch=4)
    assert harness.hears(send, fetched(3, 4, records=b"twice", high_watermark=9)) == []


def test_the_log_is_cut_where_it_parts_from_the_leaders() -> None:
    harness = follower(log={1: 10, 2: 10})
    harness.log.advance(8)
    answer = fetched(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=15))
    assert harness.hears(asks(harness), answer) == [Cut(10)]
    answer = fetched(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=7))
    [failed] = harness.hears(asks(harness), answer)
    assert isinstance(failed, Fail)
    assert "committed" in failed.reason
    assert harness.machine.due_ms is None


@pytest.mark.parametrize("may_vote", [True, False])
def test_nothing_is_asked_before_a_cut_is_durable(may_vote: bool) -> None:
    harness = RaftHarness(1, may_vote=may_vote, log={1: 10, 2: 10}).follows(leader_id=2, epoch=3)
    harness.do(harness.syncs())
    harness.is_slow = True
    answer = fetched(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=15))
    assert harness.hears(asks(harness), answer) == [Cut(10)]
    harness.do(harness.machine.synced(10, harness.now_ms))  # what began before the cut
    assert harness.machine.due_ms is None, "neither does it fetch nor stand"
    harness.now_ms += 2 * FETCH_TIMEOUT_MS
    harness.do(harness.syncs())
    assert asks(harness).to == ADDRESSES[2]
    assert harness.machine.role is QuorumRole.FOLLOWER, "it was not the leader that took so long"


def test_nothing_is_asked_before_it_is_durable_that_the_log_begins_behind_a_snapshot() -> None:
    harness = RaftHarness(1).follows(leader_id=2, epoch=3)
    harness.hears(asks(harness), fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    harness.hears(asks(harness), piece(Snapshot(100, 2), 0, b"abc", 3))
    harness.log.install(SavedSnapshot(Snapshot(100, 2), None, 0, 1))
    harness.machine.installed(harness.now_ms)
    assert harness.machine.due_ms is None, "neither does it fetch nor stand"
    harness.do(harness.syncs())
    assert isinstance(asks(harness).request, FetchRequest)


def test_a_snapshot_is_fetched_in_pieces_and_goes_on_after_a_break() -> None:
    harness = follower()
    snapshot = Snapshot(100, 2)
    offered = fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2))
    assert harness.hears(asks(harness), offered) == [BeginSnapshot(snapshot)]
    send = asks(harness)
    assert isinstance(send.request, FetchSnapshotRequest)
    assert send.request.max_bytes == 500
    assert harness.hears(send, piece(snapshot, 0, b"abc", 5)) == [AddToSnapshot(b"abc")]
    harness.hears(asks(harness), PeerUnreachable("broken"))
    send = asks(harness)
    assert isinstance(send.request, FetchRequest), "somebody else may lead by now"
    assert harness.hears(send, offered) == []
    send = asks(harness)
    assert isinstance(send.request, FetchSnapshotRequest)
    assert send.request.topics[0].partitions[0].position == 3
    assert harness.hears(send, piece(snapshot, 3, b"de", 5)) == [AddToSnapshot(b"de"), Install()]
    assert harness.machine.due_ms is None
    harness.machine.installed(harness.now_ms)
    assert isinstance(asks(harness).request, FetchRequest)


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
    harness = follower()
    harness.hears(asks(harness), fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    [dropped] = harness.hears(asks(harness), answer)
    assert isinstance(dropped, DropSnapshot)
    assert isinstance(asks(harness).request, FetchRequest)


def test_another_leader_has_another_snapshot() -> None:
    harness = follower()
    harness.hears(asks(harness), fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    answer = piece(Snapshot(100, 2), 0, b"", 0, code=ErrorCode.FENCED_LEADER_EPOCH, leader=(3, 4))
    found = harness.hears(asks(harness), answer)
    assert isinstance(found[0], DropSnapshot)
    assert remembers(found) == [(4, 3, -1, False)]
    assert asks(harness).to == ADDRESSES[3]


def test_a_snapshot_is_installed_whatever_the_quorum_does_meanwhile() -> None:
    harness = RaftHarness(1).follows(leader_id=2, epoch=3)
    harness.hears(asks(harness), fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    found = harness.hears(asks(harness), piece(Snapshot(100, 2), 0, b"abc", 3))
    assert [type(one) for one in found] == [AddToSnapshot, Install]
    harness.follows(leader_id=3, epoch=4)
    assert not any(isinstance(one, DropSnapshot) for one in harness.done)
    assert harness.machine.due_ms is None, "it neither fetches nor stands, without knowing where its log ends"
    harness.machine.installed(harness.now_ms)
    assert asks(harness).to == ADDRESSES[3]


def test_another_cluster_ends_the_node() -> None:
    harness = observer()
    answer = FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[])
    [failed] = harness.hears(asks(harness), answer)
    assert isinstance(failed, Fail)
    assert "another cluster" in failed.reason


def test_two_leaders_of_one_epoch_end_the_node() -> None:
    harness = follower(leader_id=2)
    answer = fetched(3, 3, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    [failed] = harness.hears(asks(harness), answer)
    assert isinstance(failed, Fail)


def test_what_nobody_expects_is_told() -> None:
    harness = follower()
    [told] = harness.hears(asks(harness), fetched(2, 3, error_code=ErrorCode.INVALID_REQUEST))
    assert isinstance(told, Complain)
    assert harness.machine.due_ms is not None
    assert harness.machine.due_ms > harness.now_ms


def test_the_voters_are_asked_where_no_server_is_named_but_itself() -> None:
    harness = RaftHarness(1, servers=(1,))
    assert asks(harness).to in (ADDRESSES[2], ADDRESSES[3])
