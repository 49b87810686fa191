"""Shards: which one a group belongs to, and that a log brings back what was stored."""

from __future__ import annotations

import pytest

from coordinator.runtime import partition_of
from kwire.errors import ApiError, ErrorCode
from kwire.stored.groups import GroupMetadataKey, GroupMetadataValue
from tests.coordinator.scripting import PARTITIONS, Cluster, Reply


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
    cluster.service.resigned(partition_of("g", PARTITIONS))
    assert joining.error == ErrorCode.NOT_COORDINATOR
    assert cluster.join().error == ErrorCode.NOT_COORDINATOR
    assert cluster.commit(1).value == ErrorCode.NOT_COORDINATOR
    cluster.advance(60_000)


def test_a_lost_append_ends_the_shard_and_a_new_election_brings_it_back(cluster: Cluster) -> None:
    cluster.commit(1)
    index = partition_of("g", PARTITIONS)
    stored = list(cluster.ports.logs[index])
    cluster.ports.held = []
    writing = cluster.commit(2)
    reading = Reply()
    cluster.service.fetch_offsets("g", lambda stored: stored["t"][0].offset, reading)
    cluster.ports.release(ErrorCode.KAFKA_STORAGE_ERROR)
    assert writing.value == ErrorCode.NOT_COORDINATOR
    assert reading.value == (ErrorCode.NOT_COORDINATOR, None)
    cluster.ports.logs[index] = stored
    cluster.service.elected(index, 1)
    assert cluster.offsets() == {("t", 0): 1}


def test_while_a_long_log_is_loaded_clients_wait(cluster: Cluster) -> None:
    index = partition_of("g", PARTITIONS)
    cluster.commit(1)
    cluster.service.resigned(index)
    # More than is replayed in one go: the same commit again and again.
    batch = cluster.ports.logs[index][-1]
    cluster.ports.logs[index] += [batch] * ((2 << 20) // len(batch))
    cluster.service.elected(index, 1)
    reply = Reply()
    cluster.service.fetch_offsets("g", lambda _stored: None, reply)
    assert reply.value == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
    assert cluster.service.heartbeat("g", 1, "m", None) == ErrorCode.NONE
    with pytest.raises(ApiError):
        cluster.service.listed([], [])
    cluster.host.run_pending()
    assert cluster.offsets() == {("t", 0): 1}


def test_the_first_question_for_a_coordinator_creates_the_offsets_topic(cluster: Cluster) -> None:
    assert cluster.service.find("g") == 1
    cluster.ports.partitions = None
    with pytest.raises(ApiError) as raised:
        cluster.service.find("g")
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
