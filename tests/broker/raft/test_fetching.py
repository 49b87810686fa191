"""Fetching of the metadata log: the choice of the server, and the reactions to responses."""

from __future__ import annotations

import pytest

from kwire.broker.raft.calls import MAX_BACKOFF_MS
from kwire.broker.raft.outputs import (
    AddToSnapshot,
    Advance,
    Append,
    BeginSnapshot,
    Complain,
    DropSnapshot,
    Fail,
    Install,
    Send,
    Truncate,
)
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.snapshots import Snapshot
from kwire.host.host import PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import EpochEndOffset, FetchRequest, FetchResponse, SnapshotId
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from simulation.quorum.log import SavedSnapshot
from tests.broker.raft.raft_harness import (
    ADDRESSES,
    FETCH_TIMEOUT_MS,
    RaftHarness,
    fetch_response,
    remembered_states,
    snapshot_response,
)

ME = 7


def observer(**named: object) -> RaftHarness:
    return RaftHarness(ME, may_vote=False, **named)  # type: ignore[arg-type]


def next_send(harness: RaftHarness) -> Send:
    [send] = harness.next_sends()
    return send


def follower(leader_id: int = 2, epoch: int = 3, **named: object) -> RaftHarness:
    harness = observer(**named)
    harness.respond(
        next_send(harness), fetch_response(leader_id, epoch, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    )
    return harness


def test_bootstrap_servers_are_tried_until_one_knows_the_leader() -> None:
    harness = observer()
    send = next_send(harness)
    asked = {send.to}
    assert harness.respond(send, PeerUnreachable("down")) == []
    send = next_send(harness)
    asked.add(send.to)
    found = harness.respond(send, fetch_response(-1, 2, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert remembered_states(found) == [(2, -1, -1, False)]
    send = next_send(harness)
    asked.add(send.to)
    assert asked == {ADDRESSES[1], ADDRESSES[2], ADDRESSES[3]}
    found = harness.respond(send, fetch_response(1, 3, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert remembered_states(found) == [(3, 1, -1, False)]
    send = next_send(harness)
    assert send.to == ADDRESSES[1]
    assert isinstance(send.request, FetchRequest)
    assert send.request.topics[0].partitions[0].current_leader_epoch == 3


def test_fetched_records_are_appended_and_the_high_watermark_advances() -> None:
    harness = follower()
    outputs = harness.respond(next_send(harness), fetch_response(2, 3, records=b"batches", high_watermark=5))
    assert outputs == [Append(b"batches", 3), Advance(5)]
    harness.append_records(6, epoch=3)
    harness.log.advance(5)
    request = next_send(harness).request
    assert isinstance(request, FetchRequest)
    partition = request.topics[0].partitions[0]
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.high_watermark) == (6, 3, 5)


def test_first_fetch_response_of_a_leader_makes_it_followed_and_appends_its_records() -> None:
    harness = observer(remembered=QuorumState(leader_epoch=3))
    outputs = harness.respond(next_send(harness), fetch_response(2, 3, records=b"batches", high_watermark=5))
    assert remembered_states(outputs) == [(3, 2, -1, False)]
    assert outputs[1:] == [Append(b"batches", 3), Advance(5)]


def test_voter_fetches_again_once_its_records_are_durable() -> None:
    harness = RaftHarness(1).become_follower(leader_id=2, epoch=3)
    harness.is_slow = True
    harness.respond(next_send(harness), fetch_response(2, 3, records=b"batches", high_watermark=0))
    harness.append_records(2, epoch=3)
    assert harness.machine.due_ms is None, "no election starts either, however long its own disk takes"
    harness.now_ms += 2 * FETCH_TIMEOUT_MS
    harness.execute(harness.machine.synced(1, harness.now_ms))
    assert harness.machine.due_ms is None
    harness.execute(harness.machine.synced(2, harness.now_ms))
    assert next_send(harness).to == ADDRESSES[2]
    assert harness.machine.role is QuorumRole.FOLLOWER, "the delay was not the leader's"


def test_remembered_leader_is_fetched_from_first_and_another_server_after_a_failure() -> None:
    harness = observer(remembered=QuorumState(leader_epoch=3, leader_id=2))
    send = next_send(harness)
    assert send.to == ADDRESSES[2]
    harness.respond(send, PeerUnreachable("down"))
    send = next_send(harness)
    others = [send.to]
    harness.respond(send, fetch_response(2, 3, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    send = next_send(harness)
    assert send.to == ADDRESSES[2], "others still name it as the leader"
    harness.respond(send, PeerUnreachable("down"))
    send = next_send(harness)
    others.append(send.to)
    harness.respond(send, fetch_response(3, 4, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert next_send(harness).to == ADDRESSES[3]
    assert len(set(others)) == 2


def test_another_server_is_tried_after_the_fetch_timeout() -> None:
    harness = follower()
    harness.respond(next_send(harness), fetch_response(2, 3))
    harness.now_ms += FETCH_TIMEOUT_MS
    asked = set()
    for _ in range(2):
        send = next_send(harness)
        asked.add(send.to)
        harness.respond(send, fetch_response(-1, 2))
    assert asked - {ADDRESSES[2]}


def test_later_epoch_in_the_log_replaces_that_of_the_quorum_state() -> None:
    harness = observer(remembered=QuorumState(leader_epoch=3, leader_id=2), log={5: 9})
    assert (harness.machine.epoch, harness.machine.leader_id) == (5, -1)


def test_backoff_is_a_tenth_of_the_time_of_failures_and_is_reset_by_a_response() -> None:
    harness = follower()
    harness.respond(next_send(harness), PeerUnreachable("down"))
    began_ms = harness.now_ms
    while harness.now_ms < began_ms + 4_000:
        assert harness.machine.due_ms is not None
        expected_ms = min(max(20, (harness.now_ms - began_ms) // 10), MAX_BACKOFF_MS)
        backoff_ms = harness.machine.due_ms - harness.now_ms
        assert 0.8 * expected_ms - 1 <= backoff_ms <= 1.2 * expected_ms + 1
        harness.respond(next_send(harness), PeerUnreachable("down"))
    harness.respond(next_send(harness), fetch_response(2, 3))
    assert harness.machine.due_ms is not None
    assert harness.machine.due_ms <= harness.now_ms


def test_response_of_an_older_epoch_is_ignored() -> None:
    harness = follower(epoch=3)
    assert harness.respond(next_send(harness), fetch_response(1, 2, records=b"old", high_watermark=9)) == []
    assert harness.machine.leader_id == 2


def test_response_to_a_canceled_fetch_is_ignored() -> None:
    harness = RaftHarness(1).become_follower(leader_id=2, epoch=3)
    send = next_send(harness)
    harness.become_follower(leader_id=3, epoch=4)
    assert harness.respond(send, fetch_response(3, 4, records=b"twice", high_watermark=9)) == []


def test_log_is_truncated_to_the_diverging_epoch_but_not_below_the_high_watermark() -> None:
    harness = follower(log={1: 10, 2: 10})
    harness.log.advance(8)
    answer = fetch_response(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=15))
    assert harness.respond(next_send(harness), answer) == [Truncate(10)]
    answer = fetch_response(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=7))
    [failed] = harness.respond(next_send(harness), answer)
    assert isinstance(failed, Fail)
    assert "committed" in failed.reason
    assert harness.machine.due_ms is None


@pytest.mark.parametrize("may_vote", [True, False])
def test_no_fetch_before_a_truncation_is_durable(may_vote: bool) -> None:
    harness = RaftHarness(1, may_vote=may_vote, log={1: 10, 2: 10}).become_follower(leader_id=2, epoch=3)
    harness.execute(harness.sync())
    harness.is_slow = True
    answer = fetch_response(2, 3, diverging_epoch=EpochEndOffset(epoch=1, end_offset=15))
    assert harness.respond(next_send(harness), answer) == [Truncate(10)]
    harness.execute(harness.machine.synced(10, harness.now_ms))  # a sync that began before the truncation
    assert harness.machine.due_ms is None, "it neither fetches nor starts an election"
    harness.now_ms += 2 * FETCH_TIMEOUT_MS
    harness.execute(harness.sync())
    assert next_send(harness).to == ADDRESSES[2]
    assert harness.machine.role is QuorumRole.FOLLOWER, "the delay was not the leader's"


def test_no_fetch_before_the_new_log_start_after_a_snapshot_is_durable() -> None:
    harness = RaftHarness(1).become_follower(leader_id=2, epoch=3)
    harness.respond(next_send(harness), fetch_response(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    harness.respond(next_send(harness), snapshot_response(Snapshot(100, 2), 0, b"abc", 3))
    harness.log.install(SavedSnapshot(Snapshot(100, 2), None, 0, 1))
    harness.machine.installed(harness.now_ms)
    assert harness.machine.due_ms is None, "it neither fetches nor starts an election"
    harness.execute(harness.sync())
    assert isinstance(next_send(harness).request, FetchRequest)


def test_snapshot_is_fetched_in_parts_and_resumed_after_a_disconnect() -> None:
    harness = follower()
    snapshot = Snapshot(100, 2)
    offered = fetch_response(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2))
    assert harness.respond(next_send(harness), offered) == [BeginSnapshot(snapshot)]
    send = next_send(harness)
    assert isinstance(send.request, FetchSnapshotRequest)
    assert send.request.max_bytes == 500
    assert harness.respond(send, snapshot_response(snapshot, 0, b"abc", 5)) == [AddToSnapshot(b"abc")]
    harness.respond(next_send(harness), PeerUnreachable("broken"))
    send = next_send(harness)
    assert isinstance(send.request, FetchRequest), "another leader may have been elected"
    assert harness.respond(send, offered) == []
    send = next_send(harness)
    assert isinstance(send.request, FetchSnapshotRequest)
    assert send.request.topics[0].partitions[0].position == 3
    assert harness.respond(send, snapshot_response(snapshot, 3, b"de", 5)) == [
        AddToSnapshot(b"de"),
        Install(),
    ]
    assert harness.machine.due_ms is None
    harness.machine.installed(harness.now_ms)
    assert isinstance(next_send(harness).request, FetchRequest)


@pytest.mark.parametrize(
    "answer",
    [
        snapshot_response(Snapshot(100, 2), 0, b"", 0, code=ErrorCode.SNAPSHOT_NOT_FOUND),
        snapshot_response(Snapshot(100, 2), 0, b"", 5, code=ErrorCode.POSITION_OUT_OF_RANGE),
        snapshot_response(Snapshot(100, 2), 1, b"abc", 5),
        snapshot_response(Snapshot(101, 2), 0, b"abc", 5),
        snapshot_response(Snapshot(100, 2), 0, b"", 5),
        snapshot_response(Snapshot(100, 2), 0, b"abcdef", 5),
    ],
)
def test_snapshot_with_an_error_or_wrong_position_is_dropped(answer: FetchSnapshotResponse) -> None:
    harness = follower()
    harness.respond(next_send(harness), fetch_response(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    [dropped] = harness.respond(next_send(harness), answer)
    assert isinstance(dropped, DropSnapshot)
    assert isinstance(next_send(harness).request, FetchRequest)


def test_snapshot_is_dropped_when_the_leader_changes() -> None:
    harness = follower()
    harness.respond(next_send(harness), fetch_response(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    answer = snapshot_response(Snapshot(100, 2), 0, b"", 0, code=ErrorCode.FENCED_LEADER_EPOCH, leader=(3, 4))
    found = harness.respond(next_send(harness), answer)
    assert isinstance(found[0], DropSnapshot)
    assert remembered_states(found) == [(4, 3, -1, False)]
    assert next_send(harness).to == ADDRESSES[3]


def test_snapshot_is_installed_although_the_leader_changes_meanwhile() -> None:
    harness = RaftHarness(1).become_follower(leader_id=2, epoch=3)
    harness.respond(next_send(harness), fetch_response(2, 3, snapshot_id=SnapshotId(end_offset=100, epoch=2)))
    found = harness.respond(next_send(harness), snapshot_response(Snapshot(100, 2), 0, b"abc", 3))
    assert [type(one) for one in found] == [AddToSnapshot, Install]
    harness.become_follower(leader_id=3, epoch=4)
    assert not any(isinstance(one, DropSnapshot) for one in harness.executed)
    assert harness.machine.due_ms is None, "no fetch or election while the end of its log is unknown"
    harness.machine.installed(harness.now_ms)
    assert next_send(harness).to == ADDRESSES[3]


def test_leader_of_another_cluster_is_fatal() -> None:
    harness = observer()
    answer = FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[])
    [failed] = harness.respond(next_send(harness), answer)
    assert isinstance(failed, Fail)
    assert "another cluster" in failed.reason


def test_two_leaders_of_one_epoch_are_fatal() -> None:
    harness = follower(leader_id=2)
    answer = fetch_response(3, 3, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    [failed] = harness.respond(next_send(harness), answer)
    assert isinstance(failed, Fail)


def test_unexpected_error_code_is_logged_and_retried_later() -> None:
    harness = follower()
    [description] = harness.respond(
        next_send(harness), fetch_response(2, 3, error_code=ErrorCode.INVALID_REQUEST)
    )
    assert isinstance(description, Complain)
    assert harness.machine.due_ms is not None
    assert harness.machine.due_ms > harness.now_ms


def test_voters_are_fetched_from_if_the_only_bootstrap_server_is_this_node() -> None:
    harness = RaftHarness(1, servers=(1,))
    assert next_send(harness).to in (ADDRESSES[2], ADDRESSES[3])


def test_denied_requests_are_logged_once_a_minute() -> None:
    harness = observer()
    outputs = []
    start_ms = harness.now_ms
    while harness.now_ms < start_ms + 90_000:
        denied = FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        outputs += harness.respond(next_send(harness), denied)
    texts = [output.text for output in outputs if isinstance(output, Complain)]
    assert len(texts) == 2
    assert "User:ANONYMOUS must be in super.users" in texts[0]
