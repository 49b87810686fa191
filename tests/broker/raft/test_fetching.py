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
from tests.broker.raft.machine_rig import ADDRESSES, FETCH_TIMEOUT_MS, Rig, fetched, piece, remembers

ME = 7


def observer(**named: object) -> Rig:
    return Rig(ME, may_vote=False, **named)  # type: ignore[arg-type]


def asks(rig: Rig) -> Send:
    [send] = rig.sends()
    return send


def follower(leader_id: int = 2, epoch: int = 3, **named: object) -> Rig:
    rig = observer(**named)
    rig.hears(asks(rig), fetched(leader_id, epoch, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    return rig


def test_any_server_is_asked_until_one_knows_the_leader_who_is_asked_then() -> None:
    rig = observer()
    send = asks(rig)
    asked = {send.to}
    assert rig.hears(send, PeerUnreachable("down")) == []
    send = asks(rig)
    asked.add(send.to)
    found = rig.hears(send, fetched(-1, 2, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert remembers(found) == [(2, -1, -1, False)]
    send = asks(rig)
    asked.add(send.to)
    assert asked == {ADDRESSES[1], ADDRESSES[2], ADDRESSES[3]}
    found = rig.hears(send, fetched(1, 3, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert remembers(found) == [(3, 1, -1, False)]
    send = asks(rig)
    assert send.to == ADDRESSES[1]
    assert isinstance(send.request, FetchRequest)
    assert send.request.topics[0].partitions[0].current_leader_epoch == 3


def test_what_the_leader_sends_is_appended_and_then_committed() -> None:
    rig = follower()
    outputs = rig.hears(asks(rig), fetched(2, 3, records=b"batches", high_watermark=5))
    assert outputs == [Append(b"batches", 3), Advance(5)]
    rig.appends(6, epoch=3)
    rig.log.advance(5)
    request = asks(rig).request
    assert isinstance(request, FetchRequest)
    partition = request.topics[0].partitions[0]
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.high_watermark) == (6, 3, 5)


def test_a_leader_that_answers_the_first_fetch_is_followed_with_what_it_sends() -> None:
    rig = observer(remembered=QuorumState(leader_epoch=3))
    outputs = rig.hears(asks(rig), fetched(2, 3, records=b"batches", high_watermark=5))
    assert remembers(outputs) == [(3, 2, -1, False)]
    assert outputs[1:] == [Append(b"batches", 3), Advance(5)]


def test_who_may_vote_fetches_on_once_what_it_has_is_durable() -> None:
    rig = Rig(1).follows(leader_id=2, epoch=3)
    rig.is_slow = True
    rig.hears(asks(rig), fetched(2, 3, records=b"batches", high_watermark=0))
    rig.appends(2, epoch=3)
    assert rig.machine.due_ms is None, "neither does it stand, however long its own disk takes"
    rig.now_ms += 2 * FETCH_TIMEOUT_MS
    rig.do(rig.machine.synced(1, rig.now_ms))
    assert rig.machine.due_ms is None
    rig.do(rig.machine.synced(2, rig.now_ms))
    assert asks(rig).to == ADDRESSES[2]
    assert rig.machine.role is QuorumRole.FOLLOWER, "it was not the leader that took so long"


def test_who_remembers_the_leader_asks_it_first_and_after_a_failure_another() -> None:
    rig = observer(remembered=QuorumState(leader_epoch=3, leader_id=2))
    send = asks(rig)
    assert send.to == ADDRESSES[2]
    rig.hears(send, PeerUnreachable("down"))
    send = asks(rig)
    others = [send.to]
    rig.hears(send, fetched(2, 3, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    send = asks(rig)
    assert send.to == ADDRESSES[2], "it still leads, as others see it"
    rig.hears(send, PeerUnreachable("down"))
    send = asks(rig)
    others.append(send.to)
    rig.hears(send, fetched(3, 4, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert asks(rig).to == ADDRESSES[3]
    assert len(set(others)) == 2


def test_a_leader_without_an_answer_for_too_long_is_not_waited_for() -> None:
    rig = follower()
    rig.hears(asks(rig), fetched(2, 3))
    rig.now_ms += FETCH_TIMEOUT_MS
    asked = set()
    for _ in range(2):
        send = asks(rig)
        asked.add(send.to)
        rig.hears(send, fetched(-1, 2))
    assert asked - {ADDRESSES[2]}


def test_an_epoch_that_the_log_knows_better_is_taken_from_it() -> None:
    rig = observer(remembered=QuorumState(leader_epoch=3, leader_id=2), log={5: 9})
    assert (rig.machine.epoch, rig.machine.leader_id) == (5, -1)


def test_back_off_grows_and_ends_with_success() -> None:
    rig = follower()
    waits = []
    for _ in range(9):
        rig.hears(asks(rig), PeerUnreachable("down"))
        assert rig.machine.due_ms is not None
        waits.append(rig.machine.due_ms - rig.now_ms)
    assert 16 <= waits[0] <= 24
    assert 160 <= waits[-1] <= 240
    rig.hears(asks(rig), fetched(2, 3))
    assert rig.machine.due_ms is not None
    assert rig.machine.due_ms <= rig.now_ms


def test_an_older_epoch_is_not_listened_to() -> None:
    rig = follower(epoch=3)
    assert rig.hears(asks(rig), fetched(1, 2, records=b"old", high_watermark=9)) == []
    assert rig.machine.leader_id == 2


def test_an_answer_that_nobody_waits_for_is_not_listened_to() -> None:
    rig = Rig(1).follows(leader_id=2, epoch=3)
    send = asks(rig)
    rig.follows(leader_id=3, epoch=4)
    assert rig.hears(send, fetched(3, 4, records=b"twice", high_watermark=9)) == []


def test_the_log_is_cut_where_it_parts_from_the_leaders() -> None:
    rig = follower(log={1: 10, 2: 10})
    rig.log.advance(8)
    answer = fetched(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=15))
    assert rig.hears(asks(rig), answer) == [Cut(10)]
    answer = fetched(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=7))
    [failed] = rig.hears(asks(rig), answer)
    assert isinstance(failed, Fail)
    assert "committed" in failed.reason
    assert rig.machine.due_ms is None


@pytest.mark.parametrize("may_vote", [True, False])
def test_nothing_is_asked_before_a_cut_is_durable(may_vote: bool) -> None:
    rig = Rig(1, may_vote=may_vote, log={1: 10, 2: 10}).follows(leader_id=2, epoch=3)
    rig.do(rig.syncs())
    rig.is_slow = True
    answer = fetched(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=15))
    assert rig.hears(asks(rig), answer) == [Cut(10)]
    rig.do(rig.machine.synced(10, rig.now_ms))  # what began before the cut
    assert rig.machine.due_ms is None, "neither does it fetch nor stand"
    rig.now_ms += 2 * FETCH_TIMEOUT_MS
    rig.do(rig.syncs())
    assert asks(rig).to == ADDRESSES[2]
    assert rig.machine.role is QuorumRole.FOLLOWER, "it was not the leader that took so long"


def test_nothing_is_asked_before_it_is_durable_that_the_log_begins_behind_a_snapshot() -> None:
    rig = Rig(1).follows(leader_id=2, epoch=3)
    rig.hears(asks(rig), fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    rig.hears(asks(rig), piece(Snapshot(100, 2), 0, b"abc", 3))
    rig.log.install(SavedSnapshot(Snapshot(100, 2), None, 0, 1))
    rig.machine.installed(rig.now_ms)
    assert rig.machine.due_ms is None, "neither does it fetch nor stand"
    rig.do(rig.syncs())
    assert isinstance(asks(rig).request, FetchRequest)


def test_a_snapshot_is_fetched_in_pieces_and_goes_on_after_a_break() -> None:
    rig = follower()
    snapshot = Snapshot(100, 2)
    offered = fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2))
    assert rig.hears(asks(rig), offered) == [BeginSnapshot(snapshot)]
    send = asks(rig)
    assert isinstance(send.request, FetchSnapshotRequest)
    assert send.request.max_bytes == 500
    assert rig.hears(send, piece(snapshot, 0, b"abc", 5)) == [AddToSnapshot(b"abc")]
    rig.hears(asks(rig), PeerUnreachable("broken"))
    send = asks(rig)
    assert isinstance(send.request, FetchRequest), "somebody else may lead by now"
    assert rig.hears(send, offered) == []
    send = asks(rig)
    assert isinstance(send.request, FetchSnapshotRequest)
    assert send.request.topics[0].partitions[0].position == 3
    assert rig.hears(send, piece(snapshot, 3, b"de", 5)) == [AddToSnapshot(b"de"), Install()]
    assert rig.machine.due_ms is None
    rig.machine.installed(rig.now_ms)
    assert isinstance(asks(rig).request, FetchRequest)


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
    rig = follower()
    rig.hears(asks(rig), fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    [dropped] = rig.hears(asks(rig), answer)
    assert isinstance(dropped, DropSnapshot)
    assert isinstance(asks(rig).request, FetchRequest)


def test_another_leader_has_another_snapshot() -> None:
    rig = follower()
    rig.hears(asks(rig), fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    answer = piece(Snapshot(100, 2), 0, b"", 0, code=ErrorCode.FENCED_LEADER_EPOCH, leader=(3, 4))
    found = rig.hears(asks(rig), answer)
    assert isinstance(found[0], DropSnapshot)
    assert remembers(found) == [(4, 3, -1, False)]
    assert asks(rig).to == ADDRESSES[3]


def test_a_snapshot_is_installed_whatever_the_quorum_does_meanwhile() -> None:
    rig = Rig(1).follows(leader_id=2, epoch=3)
    rig.hears(asks(rig), fetched(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    found = rig.hears(asks(rig), piece(Snapshot(100, 2), 0, b"abc", 3))
    assert [type(one) for one in found] == [AddToSnapshot, Install]
    rig.follows(leader_id=3, epoch=4)
    assert not any(isinstance(one, DropSnapshot) for one in rig.done)
    assert rig.machine.due_ms is None, "it neither fetches nor stands, without knowing where its log ends"
    rig.machine.installed(rig.now_ms)
    assert asks(rig).to == ADDRESSES[3]


def test_another_cluster_ends_the_node() -> None:
    rig = observer()
    answer = FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[])
    [failed] = rig.hears(asks(rig), answer)
    assert isinstance(failed, Fail)
    assert "another cluster" in failed.reason


def test_two_leaders_of_one_epoch_end_the_node() -> None:
    rig = follower(leader_id=2)
    answer = fetched(3, 3, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    [failed] = rig.hears(asks(rig), answer)
    assert isinstance(failed, Fail)


def test_what_nobody_expects_is_told() -> None:
    rig = follower()
    [told] = rig.hears(asks(rig), fetched(2, 3, error_code=ErrorCode.INVALID_REQUEST))
    assert isinstance(told, Complain)
    assert rig.machine.due_ms is not None
    assert rig.machine.due_ms > rig.now_ms


def test_the_voters_are_asked_where_no_server_is_named_but_itself() -> None:
    rig = Rig(1, servers=(1,))
    assert asks(rig).to in (ADDRESSES[2], ADDRESSES[3])
