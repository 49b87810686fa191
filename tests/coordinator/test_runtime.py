"""Coordinator shards: the partition of a group, loading, batching and replication of their log."""

from __future__ import annotations

from functools import partial

import pytest

from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC
from kwire.broker.node.state_topic import StateTopic
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.coordinator.groups.registry import CLASSIC
from kwire.coordinator.partitioner import partition_of
from kwire.coordinator.transactions.state_machine import TransactionMarker
from kwire.wire.batch import read_header
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.records.groups import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from tests.coordinator.coordinator_harness import PARTITIONS, CoordinatorHarness, Reply, decoded
from tests.node_harness import NodeHarness


@pytest.mark.parametrize(
    ("group", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("hello", 99162322),
        ("Hello World", -862545276),
        ("ä€", 15432),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_partition_of_uses_javas_string_hash(group: str, java_hash: int) -> None:
    expected = 0 if java_hash == -(2**31) else abs(java_hash) % 50
    assert partition_of(group, 50) == expected


def test_restart_restores_the_group(harness: CoordinatorHarness) -> None:
    leader, follower = harness.stable(count=2)
    harness.commit(42, generation=1, member=leader.member_id)
    before = harness.service.describe(CLASSIC, "g")
    harness.restart()
    assert harness.service.describe(CLASSIC, "g") == before
    assert harness.offsets() == {("t", 0): 42}
    assert harness.heartbeat(leader) == ErrorCode.NONE
    assert harness.sync(follower).value.assignment == b"b"
    # Sessions restart when the log is loaded, and time out as usual.
    harness.advance(9_999)
    assert harness.heartbeat(leader) == ErrorCode.NONE
    harness.advance(1)
    assert harness.heartbeat(follower) == ErrorCode.UNKNOWN_MEMBER_ID


def test_restart_restores_static_members(harness: CoordinatorHarness) -> None:
    joining = harness.join(instance="i")
    harness.advance(3_000)
    old = joining.value
    harness.sync(old, {old.member_id: b"kept"}, instance="i")
    harness.restart()
    back = harness.join(instance="i").value
    assert back.generation_id == 1
    assert harness.sync(back, instance="i").value.assignment == b"kept"
    harness.restart()
    assert harness.heartbeat(back, instance="i") == ErrorCode.NONE


def test_generation_continues_after_a_group_was_empty(harness: CoordinatorHarness) -> None:
    (member,) = harness.stable()
    harness.leave((member.member_id, None))
    harness.restart()
    assert harness.state() == "Empty"
    joining = harness.new_member()[1]
    harness.advance(3_000)
    assert joining.value.generation_id == 3


def test_stored_group_records(harness: CoordinatorHarness) -> None:
    (member,) = harness.stable()
    (key, first), (_, value) = harness.records()
    assert key == GroupMetadataKey(group="g")
    assert isinstance(first, GroupMetadataValue)
    assert isinstance(value, GroupMetadataValue)
    assert (first.generation, first.protocol, first.members) == (0, None, [])
    assert (value.generation, value.protocol, value.protocol_type) == (1, "range", "consumer")
    assert value.leader == member.member_id
    assert [(one.member_id, bytes(one.assignment)) for one in value.members] == [(member.member_id, b"a")]


def test_resigned_shard_returns_not_coordinator(harness: CoordinatorHarness) -> None:
    joining = harness.new_member()[1]
    harness.service.resigned(partition_of("g", PARTITIONS), 0)
    assert joining.error == ErrorCode.NOT_COORDINATOR
    assert harness.join().error == ErrorCode.NOT_COORDINATOR
    assert harness.commit(1).value == ErrorCode.NOT_COORDINATOR
    harness.advance(60_000)


def test_resignation_of_an_earlier_epoch_is_ignored(harness: CoordinatorHarness) -> None:
    index = partition_of("g", PARTITIONS)
    harness.service.elected(index, 2)
    harness.service.resigned(index, 1)
    assert harness.commit(1).value == ErrorCode.NONE
    harness.service.resigned(index, 2)
    assert harness.commit(1).value == ErrorCode.NOT_COORDINATOR


def test_failed_append_ends_the_shard_until_the_next_election(harness: CoordinatorHarness) -> None:
    harness.commit(1)
    index = partition_of("g", PARTITIONS)
    stored = list(harness.ports.logs[index])
    harness.ports.held = []
    writing = harness.commit(2)
    describing = Reply()
    harness.service.delete_offsets("g", [("t", 0)], describing)
    harness.ports.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert writing.value == ErrorCode.NOT_COORDINATOR
    assert describing.value == (ErrorCode.NOT_COORDINATOR, {})
    harness.ports.logs[index] = stored
    harness.service.elected(index, 1)
    assert harness.offsets() == {("t", 0): 1}


def test_disk_failure_in_an_append_calls_back_once(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(index: int, *_more: object) -> None:
        harness.service.resigned(index, 0)  # as the replica goes offline
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)

    monkeypatch.setattr(harness.ports, "append", append)
    reply = Reply()
    commit = OffsetCommit("g", -1, "", None, [PartitionCommit("t", 0, 5, -1, "")], None, 9)
    harness.service.commit_offsets(commit, reply, (7, 0))
    assert reply.value == ErrorCode.NOT_COORDINATOR


def test_loading_shard_returns_load_in_progress(harness: CoordinatorHarness) -> None:
    index = partition_of("g", PARTITIONS)
    harness.commit(1)
    harness.service.resigned(index, 0)
    # Repeat the same commit until the log is longer than one replay step.
    batch = harness.ports.logs[index][-1]
    harness.ports.logs[index] += [batch] * ((2 << 20) // len(batch))
    harness.service.elected(index, 1)
    reply = Reply()
    harness.service.fetch_offsets("g", lambda _stored: None, reply)
    assert reply.value == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
    assert harness.service.heartbeat("g", 1, "m", None) == ErrorCode.NONE
    with pytest.raises(ApiError):
        harness.service.list_groups([], [])
    harness.host.run_pending()
    assert harness.offsets() == {("t", 0): 1}


def test_find_coordinator_creates_the_offsets_topic(harness: CoordinatorHarness) -> None:
    assert harness.service.find_coordinator("g") == 1
    harness.ports.partitions = None
    with pytest.raises(ApiError) as raised:
        harness.service.find_coordinator("g")
    assert raised.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.ports.creations == 1


def test_generation_that_cannot_be_stored_starts_a_rebalance(harness: CoordinatorHarness) -> None:
    joining = harness.new_member()[1]
    harness.advance(3_000)
    harness.ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    refused = harness.sync(joining.value, {})
    assert refused.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert harness.state() == "PreparingRebalance"


def test_shutdown_completes_pending_requests(harness: CoordinatorHarness) -> None:
    joining = harness.new_member()[1]
    harness.service.shutdown()
    assert joining.error == ErrorCode.NOT_COORDINATOR
    assert harness.join().error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.host.timers == 0


def send_commits(harness: CoordinatorHarness, *commits: tuple[int, int]) -> list[Reply]:
    """Send commits (partition, offset) of group g in one turn of the loop."""
    replies = []
    for partition, offset in commits:
        replies.append(Reply())
        partition_commits = [PartitionCommit("t", partition, offset, -1, "")]
        harness.service.commit_offsets(
            OffsetCommit("g", -1, "", None, partition_commits, None, 9), replies[-1]
        )
    return replies


def stored_offsets(data: bytes) -> list[tuple[int, int]]:
    """Return the commits (partition, offset) in a batch."""
    return [
        (key.partition, value.offset)
        for key, value, _ in decoded(data)
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue)
    ]


def log_of_g(harness: CoordinatorHarness) -> list[bytes]:
    return harness.ports.logs[partition_of("g", PARTITIONS)]


def test_requests_of_one_turn_share_a_batch_and_complete_in_order(harness: CoordinatorHarness) -> None:
    harness.ports.held = []
    called: list[int] = []

    def on_response(number: int, _code: ErrorCode) -> None:
        called.append(number)

    for number in range(3):
        commits = [PartitionCommit("t", number, 10 + number, -1, "")]
        harness.service.commit_offsets(
            OffsetCommit("g", -1, "", None, commits, None, 9),
            partial(on_response, number),
        )
    # Later requests see the records at once, but complete only after the commit.
    deleting = Reply()
    harness.service.delete_offsets("g", [("t", 2), ("t", 3)], deleting)
    assert not log_of_g(harness)
    harness.host.run_pending()
    (data,) = log_of_g(harness)
    assert stored_offsets(data) == [(0, 10), (1, 11), (2, 12)]
    assert not called
    assert deleting.pending
    harness.ports.release()
    assert called == [0, 1, 2]
    assert deleting.value == (ErrorCode.NONE, {("t", 2): ErrorCode.NONE, ("t", 3): ErrorCode.NONE})
    send_commits(harness, (0, 20))
    harness.restart()
    assert harness.offsets() == {("t", 0): 20, ("t", 1): 11}


def test_batch_stays_within_max_message_bytes(harness: CoordinatorHarness) -> None:
    send_commits(harness, (0, 1), (1, 2))
    harness.host.run_pending()
    (data,) = log_of_g(harness)
    harness.ports.max_bytes = len(data) + 60
    replies = send_commits(harness, *((number, number) for number in range(7)))
    harness.host.run_pending()
    assert [reply.value for reply in replies] == [ErrorCode.NONE] * 7
    batches = log_of_g(harness)[1:]
    assert len(batches) > 1
    assert max(len(one) for one in batches) <= harness.ports.max_bytes
    assert [number for one in batches for number, _ in stored_offsets(one)] == list(range(7))


def test_request_too_large_for_any_batch_is_refused_alone(harness: CoordinatorHarness) -> None:
    harness.ports.max_bytes = 400
    (before,) = send_commits(harness, (0, 1))
    too_much = Reply()
    commits = [PartitionCommit("t", number, 9, -1, "") for number in range(20)]
    harness.service.commit_offsets(OffsetCommit("g", -1, "", None, commits, None, 9), too_much)
    (after,) = send_commits(harness, (1, 2))
    harness.host.run_pending()
    assert (before.value, after.value) == (ErrorCode.NONE, ErrorCode.NONE)
    assert too_much.value == ErrorCode.UNKNOWN_SERVER_ERROR
    assert harness.offsets() == {("t", 0): 1, ("t", 1): 2}


def test_transactional_offsets_are_written_after_the_pending_batch(harness: CoordinatorHarness) -> None:
    send_commits(harness, (0, 1))
    reply = Reply()
    commits = [PartitionCommit("t", 0, 2, -1, "")]
    harness.service.commit_offsets(OffsetCommit("g", -1, "", None, commits, None, 0), reply, (7, 0))
    send_commits(harness, (1, 3))
    # The pending batch is flushed before a marker is written.
    harness.service.flush_batch(partition_of("g", PARTITIONS))
    batches = log_of_g(harness)
    assert [stored_offsets(one) for one in batches] == [[(0, 1)], [(0, 2)], [(1, 3)]]
    assert [read_header(one).producer_id for one in batches] == [-1, 7, -1]
    harness.service.on_transaction_completed(partition_of("g", PARTITIONS), 7, commit=True)
    assert harness.offsets() == {("t", 0): 2, ("t", 1): 3}
    assert len(batches) == 3


def test_requests_of_a_lost_batch_fail(harness: CoordinatorHarness) -> None:
    send_commits(harness, (0, 1))
    harness.host.run_pending()
    harness.ports.held = []
    replies = send_commits(harness, (0, 2), (1, 2))
    harness.host.run_pending()
    harness.ports.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [reply.value for reply in replies] == [ErrorCode.NOT_COORDINATOR] * 2
    assert harness.commit(3).value == ErrorCode.NOT_COORDINATOR


def test_refused_batch_unloads_the_shard(harness: CoordinatorHarness) -> None:
    harness.ports.held = []
    written = send_commits(harness, (0, 1))
    harness.host.run_pending()
    refused = send_commits(harness, (0, 2), (1, 2))
    harness.ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    harness.host.run_pending()
    assert [reply.value for reply in refused] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    # The first append may or may not succeed, so its client must retry, and the log is not loaded yet.
    assert written[0].value == ErrorCode.NOT_COORDINATOR
    harness.ports.refuse = None
    assert harness.commit(3).value == ErrorCode.NOT_COORDINATOR
    harness.ports.release()
    harness.host.run_pending()
    assert harness.offsets() == {("t", 0): 1}
    assert harness.commit(3).value == ErrorCode.NONE


@pytest.mark.parametrize("ending", ["shutdown", "resigned"])
def test_pending_batch_is_dropped_when_the_shard_ends(harness: CoordinatorHarness, ending: str) -> None:
    (reply,) = send_commits(harness, (0, 1))
    if ending == "shutdown":
        harness.service.shutdown()
    else:
        harness.service.resigned(partition_of("g", PARTITIONS), 0)
    assert reply.value == ErrorCode.NOT_COORDINATOR
    harness.host.run_pending()
    assert not log_of_g(harness)


def test_transaction_marker_is_written_after_the_pending_batch() -> None:
    node_harness = NodeHarness(**{"offsets.topic.num.partitions": "1"})  # type: ignore[arg-type]
    node, host = node_harness.node, node_harness.host
    with pytest.raises(ApiError):
        node.groups.find_coordinator("g")
    host.run_pending()
    written, plain, ended = Reply(), Reply(), Reply()
    commit = OffsetCommit("g", -1, "", None, [PartitionCommit("t", 0, 7, -1, "")], None, 0)
    node.groups.commit_offsets(commit, written, (7, 0))
    node.groups.commit_offsets(commit._replace(commits=[PartitionCommit("t", 0, 5, -1, "")]), plain)
    node.write_marker((GROUP_METADATA_TOPIC, 0), TransactionMarker("", 7, 0, True, frozenset(), 1), 0, ended)
    node.end_turn()
    host.run_pending()
    assert (written.value, plain.value, ended.value) == (ErrorCode.NONE, ErrorCode.NONE, None)
    headers = [read_header(data) for data in StateTopic(node, GROUP_METADATA_TOPIC).stored_batches(0)]
    assert [(one.producer_id, one.is_control) for one in headers] == [(7, False), (-1, False), (7, True)]
    # The state in memory equals the state loaded from the log.
    for _ in range(2):
        found = Reply()
        node.groups.fetch_offsets("g", lambda stored: stored["t"][0].offset, found)
        host.run_pending()
        assert found.value == (ErrorCode.NONE, 5), "the last written offset wins"
        node.groups.resigned(0, 1)
        node.groups.elected(0, 1)


def test_loaded_offsets_are_returned_once_they_are_committed(harness: CoordinatorHarness) -> None:
    """A new leader does not know yet which of its log is committed."""
    harness.commit(1)
    index = partition_of("g", PARTITIONS)
    harness.service.resigned(index, 0)
    harness.ports.held = []
    harness.service.elected(index, 1)
    reading = Reply()
    harness.service.fetch_offsets("g", lambda stored: stored["t"][0].offset, reading)
    assert reading.pending
    harness.ports.release()
    assert reading.value == (ErrorCode.NONE, 1)


def test_waiting_for_replicas_times_out(harness: CoordinatorHarness) -> None:
    harness.commit(1)
    index = partition_of("g", PARTITIONS)
    harness.service.resigned(index, 0)
    harness.ports.held = []
    harness.service.elected(index, 1)
    (writing,) = send_commits(harness, (0, 1))
    harness.advance(4_000)
    reading = Reply()
    harness.service.fetch_offsets("g", lambda stored: stored["t"][0].offset, reading)
    harness.advance(1_000)
    assert (writing.value, reading.pending) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, True)
    harness.advance(4_000)
    assert reading.value == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
    harness.ports.release()
    assert harness.offsets() == {("t", 0): 1}


def test_record_below_min_isr_after_append_is_kept(harness: CoordinatorHarness) -> None:
    harness.ports.held = []
    (writing,) = send_commits(harness, (0, 1))
    harness.host.run_pending()
    harness.ports.release(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert writing.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.offsets() == {("t", 0): 1}


def test_number_of_pending_results_is_limited(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.coordinator.runtime.MAX_PENDING_RESULTS", 2)
    harness.ports.held = []
    replies = send_commits(harness, (0, 1), (0, 2), (0, 3))
    assert replies[2].value == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    harness.host.run_pending()
    harness.ports.release()
    assert [reply.value for reply in replies[:2]] == [ErrorCode.NONE] * 2
    assert harness.offsets() == {("t", 0): 2}


def test_shard_that_resigned_while_loading_loads_again_when_elected(harness: CoordinatorHarness) -> None:
    """The log may have been truncated since."""
    index = partition_of("g", PARTITIONS)
    harness.commit(1)
    harness.service.resigned(index, 0)
    batch = harness.ports.logs[index][-1]
    harness.ports.logs[index] += [batch] * ((2 << 20) // len(batch))
    harness.service.elected(index, 1)
    harness.service.resigned(index, 1)
    del harness.ports.logs[index][:]
    assert harness.commit(2).value == ErrorCode.NOT_COORDINATOR
    harness.service.elected(index, 2)
    assert harness.offsets() == {}
    harness.host.run_pending()
    assert harness.offsets() == {}
