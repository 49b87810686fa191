"""Shards: which one a group belongs to, and that a log brings back what was stored."""

from __future__ import annotations

import pytest

from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC
from kwire.broker.node.state_topic import StateTopic
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.coordinator.groups.record_serde import stored_records
from kwire.coordinator.runtime import partition_of
from kwire.coordinator.transactions.state_machine import TransactionMarker
from kwire.wire.batch import read_header
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.records.groups import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from tests.coordinator.scripting import PARTITIONS, Cluster, Reply
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
def test_groups_are_spread_by_the_hash_of_java(group: str, java_hash: int) -> None:
    expected = 0 if java_hash == -(2**31) else abs(java_hash) % 50
    assert partition_of(group, 50) == expected


def test_a_restart_brings_the_group_back_as_it_was(cluster: Cluster) -> None:
    leader, follower = cluster.stable(count=2)
    cluster.commit(42, generation=1, member=leader.member_id)
    before = cluster.service.describe("g")
    cluster.restart()
    assert cluster.service.describe("g") == before
    assert cluster.offsets() == {("t", 0): 42}
    assert cluster.heartbeat(leader) == ErrorCode.NONE
    assert cluster.sync(follower).value.assignment == b"b"
    # Sessions start again with the load, and end as ever.
    cluster.advance(9_999)
    assert cluster.heartbeat(leader) == ErrorCode.NONE
    cluster.advance(1)
    assert cluster.heartbeat(follower) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restart_knows_static_members(cluster: Cluster) -> None:
    joining = cluster.join(instance="i")
    cluster.advance(3_000)
    old = joining.value
    cluster.sync(old, {old.member_id: b"kept"}, instance="i")
    cluster.restart()
    back = cluster.join(instance="i").value
    assert back.generation_id == 1
    assert cluster.sync(back, instance="i").value.assignment == b"kept"
    cluster.restart()
    assert cluster.heartbeat(back, instance="i") == ErrorCode.NONE


def test_the_generation_goes_on_after_a_group_was_empty(cluster: Cluster) -> None:
    (member,) = cluster.stable()
    cluster.leave((member.member_id, None))
    cluster.restart()
    assert cluster.state() == "Empty"
    joining = cluster.new_member()[1]
    cluster.advance(3_000)
    assert joining.value.generation_id == 3


def test_what_is_stored_of_a_group(cluster: Cluster) -> None:
    (member,) = cluster.stable()
    (key, first), (_, value) = cluster.records()
    assert key == GroupMetadataKey(group="g")
    assert isinstance(first, GroupMetadataValue)
    assert isinstance(value, GroupMetadataValue)
    assert (first.generation, first.protocol, first.members) == (0, None, [])
    assert (value.generation, value.protocol, value.protocol_type) == (1, "range", "consumer")
    assert value.leader == member.member_id
    assert [(one.member_id, bytes(one.assignment)) for one in value.members] == [(member.member_id, b"a")]


def test_a_shard_that_is_elsewhere(cluster: Cluster) -> None:
    joining = cluster.new_member()[1]
    cluster.service.resigned(partition_of("g", PARTITIONS), 0)
    assert joining.error == ErrorCode.NOT_COORDINATOR
    assert cluster.join().error == ErrorCode.NOT_COORDINATOR
    assert cluster.commit(1).value == ErrorCode.NOT_COORDINATOR
    cluster.advance(60_000)


def test_who_was_elected_again_goes_on_when_the_end_of_an_earlier_epoch_is_heard_of(cluster: Cluster) -> None:
    index = partition_of("g", PARTITIONS)
    cluster.service.elected(index, 2)
    cluster.service.resigned(index, 1)
    assert cluster.commit(1).value == ErrorCode.NONE
    cluster.service.resigned(index, 2)
    assert cluster.commit(1).value == ErrorCode.NOT_COORDINATOR


def test_a_lost_append_ends_the_shard_and_a_new_election_brings_it_back(cluster: Cluster) -> None:
    cluster.commit(1)
    index = partition_of("g", PARTITIONS)
    stored = list(cluster.ports.logs[index])
    cluster.ports.held = []
    writing = cluster.commit(2)
    describing = Reply()
    cluster.service.delete_offsets("g", [("t", 0)], describing)
    cluster.ports.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert writing.value == ErrorCode.NOT_COORDINATOR
    assert describing.value == (ErrorCode.NOT_COORDINATOR, {})
    cluster.ports.logs[index] = stored
    cluster.service.elected(index, 1)
    assert cluster.offsets() == {("t", 0): 1}


def test_a_disk_that_fails_in_an_append_ends_the_shard_and_is_told_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(index: int, *_more: object) -> None:
        cluster.service.resigned(index, 0)  # as the replica goes offline
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)

    monkeypatch.setattr(cluster.ports, "append", append)
    reply = Reply()
    commit = OffsetCommit("g", -1, "", None, [PartitionCommit("t", 0, 5, -1, "")], None, 9)
    cluster.service.commit_transactional_offsets(commit, (7, 0), reply)
    assert reply.value == ErrorCode.NOT_COORDINATOR


def test_while_a_long_log_is_loaded_clients_wait(cluster: Cluster) -> None:
    index = partition_of("g", PARTITIONS)
    cluster.commit(1)
    cluster.service.resigned(index, 0)
    # More than is replayed in one go: the same commit again and again.
    batch = cluster.ports.logs[index][-1]
    cluster.ports.logs[index] += [batch] * ((2 << 20) // len(batch))
    cluster.service.elected(index, 1)
    reply = Reply()
    cluster.service.fetch_offsets("g", lambda _stored: None, reply)
    assert reply.value == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
    assert cluster.service.heartbeat("g", 1, "m", None) == ErrorCode.NONE
    with pytest.raises(ApiError):
        cluster.service.list_groups([], [])
    cluster.host.run_pending()
    assert cluster.offsets() == {("t", 0): 1}


def test_the_first_question_for_a_coordinator_creates_the_offsets_topic(cluster: Cluster) -> None:
    assert cluster.service.find_coordinator("g") == 1
    cluster.ports.partitions = None
    with pytest.raises(ApiError) as raised:
        cluster.service.find_coordinator("g")
    assert raised.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.ports.creations == 1


def test_a_generation_that_cannot_be_stored_is_over(cluster: Cluster) -> None:
    joining = cluster.new_member()[1]
    cluster.advance(3_000)
    cluster.ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    refused = cluster.sync(joining.value, {})
    assert refused.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert cluster.state() == "PreparingRebalance"


def test_shutdown_answers_everyone(cluster: Cluster) -> None:
    joining = cluster.new_member()[1]
    cluster.service.shutdown()
    assert joining.error == ErrorCode.NOT_COORDINATOR
    assert cluster.join().error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.host.timers == 0


def sent(cluster: Cluster, *commits: tuple[int, int]) -> list[Reply]:
    """Commits (partition, offset) of group g that come in one turn of the loop."""
    replies = []
    for partition, offset in commits:
        replies.append(Reply())
        wanted = [PartitionCommit("t", partition, offset, -1, "")]
        cluster.service.commit_offsets(OffsetCommit("g", -1, "", None, wanted, None, 9), replies[-1])
    return replies


def stored_offsets(data: bytes) -> list[tuple[int, int]]:
    """The commits (partition, offset) that a batch holds."""
    return [
        (key.partition, value.offset)
        for key, value in stored_records(memoryview(data))
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue)
    ]


def log_of_g(cluster: Cluster) -> list[bytes]:
    return cluster.ports.logs[partition_of("g", PARTITIONS)]


def test_commands_of_one_turn_share_a_batch_and_are_answered_in_their_order(cluster: Cluster) -> None:
    cluster.ports.held = []
    told: list[int] = []
    for number in range(3):
        commits = [PartitionCommit("t", number, 10 + number, -1, "")]
        cluster.service.commit_offsets(
            OffsetCommit("g", -1, "", None, commits, None, 9),
            lambda _code, number=number: told.append(number),
        )
    # Those that come later see the records at once, and are not told of them yet.
    deleting = Reply()
    cluster.service.delete_offsets("g", [("t", 2), ("t", 3)], deleting)
    assert not log_of_g(cluster)
    cluster.host.run_pending()
    (data,) = log_of_g(cluster)
    assert stored_offsets(data) == [(0, 10), (1, 11), (2, 12)]
    assert not told
    assert deleting.pending
    cluster.ports.release()
    assert told == [0, 1, 2]
    assert deleting.value == (ErrorCode.NONE, {("t", 2): ErrorCode.NONE, ("t", 3): ErrorCode.NONE})
    sent(cluster, (0, 20))
    cluster.restart()
    assert cluster.offsets() == {("t", 0): 20, ("t", 1): 11}


def test_a_batch_stays_within_what_the_topic_takes(cluster: Cluster) -> None:
    sent(cluster, (0, 1), (1, 2))
    cluster.host.run_pending()
    (data,) = log_of_g(cluster)
    cluster.ports.max_bytes = len(data) + 60
    replies = sent(cluster, *((number, number) for number in range(7)))
    cluster.host.run_pending()
    assert [reply.value for reply in replies] == [ErrorCode.NONE] * 7
    batches = log_of_g(cluster)[1:]
    assert len(batches) > 1
    assert max(len(one) for one in batches) <= cluster.ports.max_bytes
    assert [number for one in batches for number, _ in stored_offsets(one)] == list(range(7))


def test_a_command_that_is_too_large_for_any_batch_is_refused_alone(cluster: Cluster) -> None:
    cluster.ports.max_bytes = 400
    (before,) = sent(cluster, (0, 1))
    too_much = Reply()
    commits = [PartitionCommit("t", number, 9, -1, "") for number in range(20)]
    cluster.service.commit_offsets(OffsetCommit("g", -1, "", None, commits, None, 9), too_much)
    (after,) = sent(cluster, (1, 2))
    cluster.host.run_pending()
    assert (before.value, after.value) == (ErrorCode.NONE, ErrorCode.NONE)
    assert too_much.value == ErrorCode.UNKNOWN_SERVER_ERROR
    assert cluster.offsets() == {("t", 0): 1, ("t", 1): 2}


def test_what_a_transaction_writes_comes_after_what_was_gathered(cluster: Cluster) -> None:
    sent(cluster, (0, 1))
    reply = Reply()
    commits = [PartitionCommit("t", 0, 2, -1, "")]
    cluster.service.commit_transactional_offsets(
        OffsetCommit("g", -1, "", None, commits, None, 0), (7, 0), reply
    )
    sent(cluster, (1, 3))
    # Before a marker is written, everything that was decided until then is.
    cluster.service.flush_batch(partition_of("g", PARTITIONS))
    batches = log_of_g(cluster)
    assert [stored_offsets(one) for one in batches] == [[(0, 1)], [(0, 2)], [(1, 3)]]
    assert [read_header(one).producer_id for one in batches] == [-1, 7, -1]
    cluster.service.on_transaction_completed(partition_of("g", PARTITIONS), 7, commit=True)
    assert cluster.offsets() == {("t", 0): 2, ("t", 1): 3}
    assert len(batches) == 3


def test_gathered_records_that_are_lost_are_nobodys_success(cluster: Cluster) -> None:
    sent(cluster, (0, 1))
    cluster.host.run_pending()
    cluster.ports.held = []
    replies = sent(cluster, (0, 2), (1, 2))
    cluster.host.run_pending()
    cluster.ports.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [reply.value for reply in replies] == [ErrorCode.NOT_COORDINATOR] * 2
    assert cluster.commit(3).value == ErrorCode.NOT_COORDINATOR


def test_gathered_records_that_are_refused_are_forgotten_with_the_shard(cluster: Cluster) -> None:
    cluster.ports.held = []
    written = sent(cluster, (0, 1))
    cluster.host.run_pending()
    refused = sent(cluster, (0, 2), (1, 2))
    cluster.ports.refuse = ErrorCode.MESSAGE_TOO_LARGE
    cluster.host.run_pending()
    assert [reply.value for reply in refused] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    # Whether the first one is in the log is open, so it is told to try elsewhere, and the log not read yet.
    assert written[0].value == ErrorCode.NOT_COORDINATOR
    cluster.ports.refuse = None
    assert cluster.commit(3).value == ErrorCode.NOT_COORDINATOR
    cluster.ports.release()
    cluster.host.run_pending()
    assert cluster.offsets() == {("t", 0): 1}
    assert cluster.commit(3).value == ErrorCode.NONE


@pytest.mark.parametrize("ends", ["shutdown", "resigned"])
def test_what_is_gathered_when_a_shard_ends_is_not_appended(cluster: Cluster, ends: str) -> None:
    (reply,) = sent(cluster, (0, 1))
    if ends == "shutdown":
        cluster.service.shutdown()
    else:
        cluster.service.resigned(partition_of("g", PARTITIONS), 0)
    assert reply.value == ErrorCode.NOT_COORDINATOR
    cluster.host.run_pending()
    assert not log_of_g(cluster)


def test_the_end_of_a_transaction_comes_after_what_was_gathered_before() -> None:
    harness = NodeHarness(**{"offsets.topic.num.partitions": "1"})
    node, host = harness.node, harness.host
    with pytest.raises(ApiError):
        node.groups.find_coordinator("g")
    host.run_pending()
    written, plain, ended = Reply(), Reply(), Reply()
    commit = OffsetCommit("g", -1, "", None, [PartitionCommit("t", 0, 7, -1, "")], None, 0)
    node.groups.commit_transactional_offsets(commit, (7, 0), written)
    node.groups.commit_offsets(commit._replace(commits=[PartitionCommit("t", 0, 5, -1, "")]), plain)
    node.write_marker((GROUP_METADATA_TOPIC, 0), TransactionMarker("", 7, 0, True, frozenset(), 1), 0, ended)
    node.end_turn()
    host.run_pending()
    assert (written.value, plain.value, ended.value) == (ErrorCode.NONE, ErrorCode.NONE, None)
    headers = [read_header(data) for data in StateTopic(node, GROUP_METADATA_TOPIC).stored_batches(0)]
    assert [(one.producer_id, one.is_control) for one in headers] == [(7, False), (-1, False), (7, True)]
    # What is in memory is what the log gives.
    for _ in range(2):
        found = Reply()
        node.groups.fetch_offsets("g", lambda stored: stored["t"][0].offset, found)
        host.run_pending()
        assert found.value == (ErrorCode.NONE, 5), "the one that was written last"
        node.groups.resigned(0, 1)
        node.groups.elected(0, 1)


def test_what_was_loaded_is_told_once_it_is_committed(cluster: Cluster) -> None:
    """Whoever is elected does not know yet what of its log is committed."""
    cluster.commit(1)
    index = partition_of("g", PARTITIONS)
    cluster.service.resigned(index, 0)
    cluster.ports.held = []
    cluster.service.elected(index, 1)
    reading = Reply()
    cluster.service.fetch_offsets("g", lambda stored: stored["t"][0].offset, reading)
    assert reading.pending
    cluster.ports.release()
    assert reading.value == (ErrorCode.NONE, 1)


def test_nobody_waits_for_replicas_without_end(cluster: Cluster) -> None:
    cluster.commit(1)
    index = partition_of("g", PARTITIONS)
    cluster.service.resigned(index, 0)
    cluster.ports.held = []
    cluster.service.elected(index, 1)
    (writing,) = sent(cluster, (0, 1))
    cluster.advance(4_000)
    reading = Reply()
    cluster.service.fetch_offsets("g", lambda stored: stored["t"][0].offset, reading)
    cluster.advance(1_000)
    assert (writing.value, reading.pending) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, True)
    cluster.advance(4_000)
    assert reading.value == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
    cluster.ports.release()
    assert cluster.offsets() == {("t", 0): 1}


def test_what_too_few_replicas_have_is_there(cluster: Cluster) -> None:
    cluster.ports.held = []
    (writing,) = sent(cluster, (0, 1))
    cluster.host.run_pending()
    cluster.ports.release(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert writing.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.offsets() == {("t", 0): 1}


def test_only_so_many_wait_for_replicas(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.coordinator.runtime.MAX_PENDING_RESULTS", 2)
    cluster.ports.held = []
    replies = sent(cluster, (0, 1), (0, 2), (0, 3))
    assert replies[2].value == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.host.run_pending()
    cluster.ports.release()
    assert [reply.value for reply in replies[:2]] == [ErrorCode.NONE] * 2
    assert cluster.offsets() == {("t", 0): 2}


def test_who_resigns_while_it_loads_loads_anew_when_it_is_elected_again(cluster: Cluster) -> None:
    """What it had read is of a log that was cut meanwhile, say."""
    index = partition_of("g", PARTITIONS)
    cluster.commit(1)
    cluster.service.resigned(index, 0)
    batch = cluster.ports.logs[index][-1]
    cluster.ports.logs[index] += [batch] * ((2 << 20) // len(batch))
    cluster.service.elected(index, 1)
    cluster.service.resigned(index, 1)
    del cluster.ports.logs[index][:]
    assert cluster.commit(2).value == ErrorCode.NOT_COORDINATOR
    cluster.service.elected(index, 2)
    assert cluster.offsets() == {}
    cluster.host.run_pending()
    assert cluster.offsets() == {}
