"""Fetches of followers: validation, records, high watermark updates, and the cost of quiet partitions."""

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
from tests.broker.api.records.leader import BATCH_BYTES, NONE, Leader, parts, sizes
from tests.node_harness import produce_request


def test_a_follower_fetch_reads_records_and_advances_the_high_watermark() -> None:
    harness = Leader()
    harness.append()
    (found,) = parts(harness.fetch({0: 0}))
    assert (len(found.records), found.high_watermark, found.aborted_transactions) == (BATCH_BYTES, 0, None)
    assert harness.fetch({0: 1}) is None
    assert harness.partition().high_watermark == 1
    harness.append()
    (found,) = parts(harness.received())
    assert (len(found.records), found.high_watermark) == (BATCH_BYTES, 1)
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
def test_a_refused_fetch_does_not_advance_the_high_watermark(fields: dict[str, Any], code: ErrorCode) -> None:
    harness = Leader()
    harness.append()
    (found,) = parts(harness.fetch(**{"offsets": {0: 1}, **fields}))
    assert (found.error_code, found.high_watermark) == (code, -1)
    assert harness.partition().high_watermark == 0


def test_a_diverging_fetch_returns_the_epoch_end_and_advances_nothing() -> None:
    harness = Leader()
    harness.append()
    harness.become_leader_of(0, epoch=3)
    harness.append()
    (found,) = parts(harness.fetch({0: 2}, partition={"current_leader_epoch": 3, "last_fetched_epoch": 1}))
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (1, 1)
    assert harness.partition().high_watermark == 0


@pytest.mark.parametrize("diverges_first", [False, True])
def test_the_high_watermark_is_sent_again_after_truncation(diverges_first: bool) -> None:
    harness = Leader()
    harness.append()
    harness.become_leader_of(0, epoch=3)
    session = {"max_wait_ms": 0, "session_id": 0, "session_epoch": 0}

    def fetch(last_fetched_epoch: int) -> list[Any]:
        fields = {"current_leader_epoch": 3, "last_fetched_epoch": last_fetched_epoch}
        response = harness.fetch({0: 1}, partition=fields, **session)
        session["session_id"] = response.session_id
        session["session_epoch"] += 1
        return [(one.diverging_epoch.epoch, one.high_watermark) for one in parts(response)]

    if not diverges_first:
        assert fetch(1) == [(-1, 1)]
        assert fetch(1) == []
    diverging = fetch(2)
    assert [epoch for epoch, _ in diverging] == [1]
    # A follower that truncates ignores the rest of the response.
    assert fetch(1) == [(-1, 1)]
    assert fetch(1) == []


def test_the_high_watermark_is_sent_again_in_a_new_leader_epoch() -> None:
    harness = Leader()
    harness.append()
    session = {"max_wait_ms": 0, "session_id": 0, "session_epoch": 0}

    def fetch(leader_epoch: int) -> list[int]:
        response = harness.fetch({0: 1}, partition={"current_leader_epoch": leader_epoch}, **session)
        session["session_id"] = response.session_id
        session["session_epoch"] += 1
        return [one.high_watermark for one in parts(response)]

    assert fetch(1) == [1]
    assert fetch(1) == []
    # A follower ignores a response that arrives after it has learned of the new epoch.
    harness.become_leader_of(0, epoch=3)
    assert fetch(3) == [1]
    assert fetch(3) == []


def test_a_follower_returns_not_leader_without_an_endpoint() -> None:
    harness = Leader()
    harness.partition().become_follower(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=1))
    response = harness.fetch({0: 0})
    assert parts(response)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert response.node_endpoints == []


def test_a_quiet_session_checks_only_changed_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Leader(partitions=20)
    for index in range(20):
        harness.append(index)
    first = harness.fetch(dict.fromkeys(range(20), 1), session_epoch=0, min_bytes=1, max_wait_ms=0)
    session_id = first.session_id
    assert len(parts(first)) == 20

    epoch = 0

    def fetch_next(offsets: dict[int, int] | None = None, **fields: Any) -> Any:
        nonlocal epoch
        epoch += 1
        return harness.fetch(offsets, session_id=session_id, session_epoch=epoch, **fields)

    def assert_waits(offsets: dict[int, int] | None = None, news: dict[int, int] | None = None) -> None:
        assert fetch_next(offsets) is None
        harness.host.advance(500)
        assert sizes(harness.received()) == (news or {})

    assert_waits()
    checked: list[int] = []
    check = Partition.follower_state

    def counted(self: Partition, *args: Any, **fields: Any) -> Any:
        checked.append(self.index)
        return check(self, *args, **fields)

    monkeypatch.setattr(Partition, "follower_state", counted)
    assert_waits()
    assert checked == []
    harness.append(3)
    harness.append(4)
    assert sizes(fetch_next()) == {3: BATCH_BYTES, 4: BATCH_BYTES}
    assert checked == [3, 4]
    assert fetch_next({3: 2, 4: 2}) is None
    harness.append(5)
    response = harness.received()
    assert sizes(response) == {3: 0, 4: 0, 5: BATCH_BYTES}, "the high watermarks are news"
    assert {one.partition_index: one.high_watermark for one in parts(response)} == {3: 2, 4: 2, 5: 1}
    assert_waits({5: 2}, {5: 0})
    checked.clear()
    assert_waits()
    assert checked == []


def test_one_response_contains_all_appends_of_a_turn() -> None:
    harness = Leader(partitions=3)
    session_id = harness.fetch({0: 0, 1: 0, 2: 0}, session_epoch=0, max_wait_ms=0).session_id
    assert harness.fetch(session_id=session_id, session_epoch=1) is None
    clients = [harness.connect() for _ in range(3)]
    for index, client in enumerate(clients):
        client.submit(12, produce_request("a", index, acks=1))
    harness.turn()
    assert sizes(harness.received()) == {0: BATCH_BYTES, 1: BATCH_BYTES, 2: BATCH_BYTES}


@pytest.mark.parametrize("change", ["resigned", "a new epoch", "deleted", "another life"])
def test_a_waiting_fetch_returns_an_error_when_it_becomes_invalid(change: str) -> None:
    harness = Leader(partitions=2)
    session_id = harness.fetch({0: 0, 1: 0}, session_epoch=0, max_wait_ms=0).session_id
    assert harness.fetch(session_id=session_id, session_epoch=1) is None
    if change == "resigned":
        harness.partition().become_follower(
            PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=5)
        )
        code = ErrorCode.FENCED_LEADER_EPOCH
    elif change == "a new epoch":
        harness.become_leader_of(0, epoch=2)
        code = ErrorCode.FENCED_LEADER_EPOCH
    elif change == "deleted":
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
    errors = {one.partition_index: one.error_code for one in parts(harness.received())}
    assert errors == ({0: code, 1: code} if change == "deleted" else {0: code})


def test_a_partition_created_during_a_wait_is_fetched() -> None:
    """A follower may learn of a partition before the broker that becomes its leader."""
    leader = Leader()
    assert leader.fetch({0: 0, 1: 0}, session_epoch=0) is None
    on_leader = CreatePartitionsAssignment(broker_ids=[1])
    topic = CreatePartitionsTopic(name="a", count=2, assignments=[on_leader])
    leader.call(3, CreatePartitionsRequest(topics=[topic], timeout_ms=1_000))
    leader.become_leader_of(1)
    leader.turn()
    response = leader.received()
    assert {one.partition_index: one.error_code for one in parts(response)} == {0: NONE, 1: NONE}
    assert leader.fetch(session_id=response.session_id, session_epoch=1) is None
    leader.append(1)
    assert sizes(leader.received()) == {1: BATCH_BYTES}


def test_appends_are_returned_in_both_sessions_of_a_follower() -> None:
    harness = Leader()
    first = harness.fetch({0: 0}, session_epoch=0, max_wait_ms=0).session_id
    for epoch in (1, 2):
        harness.fetch(session_id=first, session_epoch=epoch, max_wait_ms=0)
    second = harness.fetch({0: 0}, session_epoch=0, max_wait_ms=0).session_id
    assert first != second
    harness.append()
    assert sizes(harness.fetch(session_id=first, session_epoch=3)) == {0: BATCH_BYTES}
    assert sizes(harness.fetch(session_id=second, session_epoch=1)) == {0: BATCH_BYTES}


def test_a_forgotten_partition_does_not_complete_a_fetch() -> None:
    harness = Leader(partitions=2)
    session_id = harness.fetch({0: 0, 1: 0}, session_epoch=0, max_wait_ms=0).session_id
    assert harness.fetch(session_id=session_id, session_epoch=1, forget=(0,)) is None
    harness.append(0)
    assert harness.received() is None
    harness.append(1)
    assert sizes(harness.received()) == {1: BATCH_BYTES}


def test_a_partition_added_again_is_read_from_its_new_offset() -> None:
    harness = Leader(partitions=2)
    session = {"max_wait_ms": 0, "session_id": 0, "session_epoch": 0}

    def fetch(offsets: dict[int, int] | None = None, **more: Any) -> dict[int, int]:
        response = harness.fetch(offsets, **more, **session)
        session["session_id"] = response.session_id
        session["session_epoch"] += 1
        return sizes(response)

    fetch({0: 0, 1: 0})
    harness.append()
    fetch(forget=(0,))
    assert fetch({0: 0}) == {0: BATCH_BYTES}
    assert fetch({0: 1}) == {0: 0}, "the high watermark"
    harness.append()
    assert fetch() == {0: BATCH_BYTES}


def test_an_append_completes_a_fetch_without_a_session() -> None:
    harness = Leader()
    assert harness.fetch({0: 0}) is None
    harness.append()
    assert sizes(harness.received()) == {0: BATCH_BYTES}


def test_a_v12_follower_without_broker_epoch_is_accepted() -> None:
    harness = Leader()
    harness.append()
    fetched = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=2,
        session_epoch=-1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="a", partitions=[fetched])],
    )
    (found,) = parts(harness.call(12, request))
    assert (found.error_code, harness.partition().high_watermark) == (NONE, 1)


def test_a_caught_up_follower_is_removed_from_the_isr_only_after_max_lag() -> None:
    harness = Leader()
    session_id = harness.fetch({0: 0}, session_epoch=0, max_wait_ms=0).session_id
    for epoch in range(1, 100):
        harness.fetch(session_id=session_id, session_epoch=epoch, max_wait_ms=0)
        harness.host.advance(1_000)
    harness.append()
    replicas = harness.partition().remote_replicas
    assert replicas is not None
    harness.host.advance(29_000)
    harness.partition().maybe_shrink_isr()
    assert replicas.pending is None
    harness.host.advance(1_001)
    harness.partition().maybe_shrink_isr()
    assert replicas.pending is not None
    assert replicas.pending.isr == (1,)


def test_an_out_of_sync_follower_is_throttled() -> None:
    harness = Leader()
    configs = dict(harness.node.image.configs)
    configs[(RESOURCE_TOPIC, "a")] = {"leader.replication.throttled.replicas": "0:1"}
    configs[(RESOURCE_BROKER, "1")] = {"leader.replication.throttled.rate": str(BATCH_BYTES)}
    harness.node.image.configs = configs
    harness.become_leader_of(0, isr=(1,), epoch=2)
    for _ in range(4):
        harness.append()
    two = {"partition_max_bytes": 2 * BATCH_BYTES, "current_leader_epoch": 2}
    assert sizes(harness.fetch({0: 0}, partition=two)) == {0: 2 * BATCH_BYTES}
    assert harness.fetch({0: 2}, partition=two) is None
    harness.host.advance(500)
    assert sizes(harness.received()) == {0: 0}
    harness.host.advance(2_000)
    assert sizes(harness.fetch({0: 2}, partition=two)) == {0: 2 * BATCH_BYTES}
    harness.become_leader_of(0, isr=(1, 2), epoch=3)
    harness.append()
    assert sizes(harness.fetch({0: 4}, partition={"current_leader_epoch": 3})) == {0: BATCH_BYTES}
