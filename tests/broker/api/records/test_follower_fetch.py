"""Fetches of followers: who may, what they read, what the leader learns of them, what a quiet one costs."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, PartitionImage
from kwire.broker.replication.partition import Partition
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kwire.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.broker.api.records.leader import NONE, ONE, Leader, parts, sizes
from tests.node_harness import produce_request


def test_a_follower_reads_what_is_written_and_tells_what_it_has() -> None:
    harness = Leader()
    harness.append()
    (found,) = parts(harness.fetch({0: 0}))
    assert (len(found.records), found.high_watermark, found.aborted_transactions) == (ONE, 0, None)
    assert harness.fetch({0: 1}) is None
    assert harness.partition().high_watermark == 1
    harness.append()
    (found,) = parts(harness.received())
    assert (len(found.records), found.high_watermark) == (ONE, 1)
    assert harness.partition().high_watermark == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"replica": 3}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"replica": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"replica": 3, "partition": {"current_leader_epoch": -1}}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"partition": {"current_leader_epoch": 0}}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition": {"current_leader_epoch": 2}}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"epoch": 19}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"partition": {"last_fetched_epoch": 7}}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offsets": {0: 9}}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offsets": {7: 0}}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_who_is_refused_has_told_nothing(fields: dict[str, Any], code: ErrorCode) -> None:
    harness = Leader()
    harness.append()
    (found,) = parts(harness.fetch(**{"offsets": {0: 1}, **fields}))
    assert (found.error_code, found.high_watermark) == (code, -1)
    assert harness.partition().high_watermark == 0


def test_a_log_that_parts_from_the_leaders_is_told_where_and_tells_nothing() -> None:
    harness = Leader()
    harness.append()
    harness.lead(0, epoch=3)
    harness.append()
    (found,) = parts(harness.fetch({0: 2}, partition={"current_leader_epoch": 3, "last_fetched_epoch": 1}))
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (1, 1)
    assert harness.partition().high_watermark == 0


@pytest.mark.parametrize("diverges_first", [False, True])
def test_a_follower_that_has_cut_its_log_is_told_the_high_watermark_again(diverges_first: bool) -> None:
    harness = Leader()
    harness.append()
    harness.lead(0, epoch=3)
    session = {"max_wait_ms": 0, "session_id": 0, "session_epoch": 0}

    def fetch(last_fetched_epoch: int) -> list[Any]:
        fields = {"current_leader_epoch": 3, "last_fetched_epoch": last_fetched_epoch}
        answer = harness.fetch({0: 1}, partition=fields, **session)
        session["session_id"] = answer.session_id
        session["session_epoch"] += 1
        return [(one.diverging_epoch.epoch, one.high_watermark) for one in parts(answer)]

    if not diverges_first:
        assert fetch(1) == [(-1, 1)]
        assert fetch(1) == []
    diverging = fetch(2)
    assert [epoch for epoch, _ in diverging] == [1]
    # Whoever cuts takes nothing else of that answer.
    assert fetch(1) == [(-1, 1)]
    assert fetch(1) == []


def test_a_replica_of_kwire_that_is_not_the_leader_says_who_is_but_not_where() -> None:
    harness = Leader()
    harness.partition().become_follower(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=1))
    answer = harness.fetch({0: 0})
    assert parts(answer)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.node_endpoints == []


def test_a_quiet_session_looks_at_nothing_and_hears_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Leader(partitions=20)
    for index in range(20):
        harness.append(index)
    made = harness.fetch(dict.fromkeys(range(20), 1), session_epoch=0, min_bytes=1, max_wait_ms=0)
    session_id = made.session_id
    assert len(parts(made)) == 20

    epoch = 0

    def following(offsets: dict[int, int] | None = None, **fields: Any) -> Any:
        nonlocal epoch
        epoch += 1
        return harness.fetch(offsets, session_id=session_id, session_epoch=epoch, **fields)

    def waits(offsets: dict[int, int] | None = None, news: dict[int, int] | None = None) -> None:
        assert following(offsets) is None
        harness.host.advance(500)
        assert sizes(harness.received()) == (news or {})

    waits()
    looked: list[int] = []
    check = Partition.follower_state

    def counted(self: Partition, *args: Any, **fields: Any) -> Any:
        looked.append(self.index)
        return check(self, *args, **fields)

    monkeypatch.setattr(Partition, "follower_state", counted)
    waits()
    assert looked == []
    harness.append(3)
    harness.append(4)
    assert sizes(following()) == {3: ONE, 4: ONE}
    assert looked == [3, 4]
    assert following({3: 2, 4: 2}) is None
    harness.append(5)
    answer = harness.received()
    assert sizes(answer) == {3: 0, 4: 0, 5: ONE}, "the high watermarks are news"
    assert {one.partition_index: one.high_watermark for one in parts(answer)} == {3: 2, 4: 2, 5: 1}
    waits({5: 2}, {5: 0})
    looked.clear()
    waits()
    assert looked == []


def test_one_fetch_takes_what_a_turn_has_written_to_many_partitions() -> None:
    harness = Leader(partitions=3)
    session_id = harness.fetch({0: 0, 1: 0, 2: 0}, session_epoch=0, max_wait_ms=0).session_id
    assert harness.fetch(session_id=session_id, session_epoch=1) is None
    clients = [harness.connect() for _ in range(3)]
    for index, client in enumerate(clients):
        client.submit(12, produce_request("a", index, acks=1))
    harness.turn()
    assert sizes(harness.received()) == {0: ONE, 1: ONE, 2: ONE}


@pytest.mark.parametrize("how", ["resigned", "a new epoch", "deleted", "another life"])
def test_a_fetch_that_waits_is_told_when_it_waits_for_nothing(how: str) -> None:
    harness = Leader(partitions=2)
    session_id = harness.fetch({0: 0, 1: 0}, session_epoch=0, max_wait_ms=0).session_id
    assert harness.fetch(session_id=session_id, session_epoch=1) is None
    if how == "resigned":
        harness.partition().become_follower(
            PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=5)
        )
        code = ErrorCode.FENCED_LEADER_EPOCH
    elif how == "a new epoch":
        harness.lead(0, epoch=2)
        code = ErrorCode.FENCED_LEADER_EPOCH
    elif how == "deleted":
        topic = DeleteTopicState(topic_id=harness.topic_id, name=None)
        harness.call(6, DeleteTopicsRequest(topics=[topic], timeout_ms=1_000))
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        brokers = dict(harness.node.image.brokers)
        brokers[2] = brokers[2]._replace(broker_epoch=21)
        harness.node.image.brokers = brokers
        harness.append()
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.turn()
    told = {one.partition_index: one.error_code for one in parts(harness.received())}
    assert told == ({0: code, 1: code} if how == "deleted" else {0: code})


def test_who_waits_while_a_partition_comes_to_be_misses_nothing_of_it() -> None:
    """Followers may hear of a partition before the broker does that is to lead it."""
    leader = Leader()
    assert leader.fetch({0: 0, 1: 0}, session_epoch=0) is None
    on_leader = CreatePartitionsAssignment(broker_ids=[1])
    topic = CreatePartitionsTopic(name="a", count=2, assignments=[on_leader])
    leader.call(3, CreatePartitionsRequest(topics=[topic], timeout_ms=1_000))
    leader.lead(1)
    leader.host.advance(500)
    answer = leader.received()
    assert {one.partition_index: one.error_code for one in parts(answer)} == {0: NONE, 1: NONE}
    assert leader.fetch(session_id=answer.session_id, session_epoch=1) is None
    leader.append(1)
    assert sizes(leader.received()) == {1: ONE}


def test_a_follower_with_two_sessions_misses_nothing_in_either() -> None:
    harness = Leader()
    first = harness.fetch({0: 0}, session_epoch=0, max_wait_ms=0).session_id
    for epoch in (1, 2):
        harness.fetch(session_id=first, session_epoch=epoch, max_wait_ms=0)
    second = harness.fetch({0: 0}, session_epoch=0, max_wait_ms=0).session_id
    assert first != second
    harness.append()
    assert sizes(harness.fetch(session_id=first, session_epoch=3)) == {0: ONE}
    assert sizes(harness.fetch(session_id=second, session_epoch=1)) == {0: ONE}


def test_a_partition_that_is_forgotten_wakes_nobody() -> None:
    harness = Leader(partitions=2)
    session_id = harness.fetch({0: 0, 1: 0}, session_epoch=0, max_wait_ms=0).session_id
    assert harness.fetch(session_id=session_id, session_epoch=1, forget=(0,)) is None
    harness.append(0)
    assert harness.received() is None
    harness.append(1)
    assert sizes(harness.received()) == {1: ONE}


def test_a_partition_that_is_asked_for_again_is_read_as_it_is_asked_for_now() -> None:
    harness = Leader(partitions=2)
    session = {"max_wait_ms": 0, "session_id": 0, "session_epoch": 0}

    def fetch(offsets: dict[int, int] | None = None, **more: Any) -> dict[int, int]:
        answer = harness.fetch(offsets, **more, **session)
        session["session_id"] = answer.session_id
        session["session_epoch"] += 1
        return sizes(answer)

    fetch({0: 0, 1: 0})
    harness.append()
    fetch(forget=(0,))
    assert fetch({0: 0}) == {0: ONE}
    assert fetch({0: 1}) == {0: 0}, "the high watermark"
    harness.append()
    assert fetch() == {0: ONE}


def test_a_follower_without_a_session_is_woken_too() -> None:
    harness = Leader()
    assert harness.fetch({0: 0}) is None
    harness.append()
    assert sizes(harness.received()) == {0: ONE}


def test_a_follower_of_old_tells_its_id_alone() -> None:
    harness = Leader()
    harness.append()
    asked_of = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=2,
        session_epoch=-1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="a", partitions=[asked_of])],
    )
    (found,) = parts(harness.call(12, request))
    assert (found.error_code, harness.partition().high_watermark) == (NONE, 1)


def test_time_passes_for_a_follower_that_fetches_nothing_new() -> None:
    harness = Leader()
    session_id = harness.fetch({0: 0}, session_epoch=0, max_wait_ms=0).session_id
    for epoch in range(1, 100):
        harness.fetch(session_id=session_id, session_epoch=epoch, max_wait_ms=0)
        harness.host.advance(1_000)
    harness.append()
    led = harness.partition().remote_replicas
    assert led is not None
    harness.host.advance(29_000)
    harness.partition().maybe_shrink_isr()
    assert led.pending is None
    harness.host.advance(1_001)
    harness.partition().maybe_shrink_isr()
    assert led.pending is not None
    assert led.pending.isr == (1,)


def test_a_follower_that_is_behind_gets_no_more_than_the_leader_may_give() -> None:
    harness = Leader()
    configs = dict(harness.node.image.configs)
    configs[(RESOURCE_TOPIC, "a")] = {"leader.replication.throttled.replicas": "0:1"}
    configs[(RESOURCE_BROKER, "1")] = {"leader.replication.throttled.rate": str(ONE)}
    harness.node.image.configs = configs
    harness.lead(0, isr=(1,), epoch=2)
    for _ in range(4):
        harness.append()
    two = {"partition_max_bytes": 2 * ONE, "current_leader_epoch": 2}
    assert sizes(harness.fetch({0: 0}, partition=two)) == {0: 2 * ONE}
    assert harness.fetch({0: 2}, partition=two) is None
    harness.host.advance(500)
    assert sizes(harness.received()) == {0: 0}
    harness.host.advance(2_000)
    assert sizes(harness.fetch({0: 2}, partition=two)) == {0: 2 * ONE}
    harness.lead(0, isr=(1, 2), epoch=3)
    harness.append()
    assert sizes(harness.fetch({0: 4}, partition={"current_leader_epoch": 3})) == {0: ONE}
