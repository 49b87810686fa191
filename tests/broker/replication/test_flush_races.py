"""Flushes that complete late, out of order, or never: acknowledged records survive."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.testing.virtual_node import VirtualClient, VirtualNode
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.produce import ProduceRequest
from tests.node_harness import PRODUCE_VERSION, produce_request

SETTINGS = {"log.dirs": "/d1,/d2", "log.flush.interval.messages": "1"}
TOPICS = ("a", "b", "c")


def start_node(settings: dict[str, str] = SETTINGS, **more: Any) -> VirtualNode:
    """Start a node that syncs each append before the acknowledgment, unless other settings are given."""
    node = VirtualNode(settings, **more)
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in TOPICS]
    client = node.connect()
    client.send(7, CreateTopicsRequest(topics=topics, timeout_ms=1000))
    node.host.advance(1000)
    assert [topic.error_code for topic in client.receive(7, CreateTopicsRequest).topics] == [0] * len(TOPICS)
    return node


def produce(node: VirtualNode, topic: str) -> VirtualClient:
    client = node.connect()
    client.send(PRODUCE_VERSION, produce_request(topic))
    return client


def acknowledged_offset(client: VirtualClient) -> int | None:
    """Return the offset in the response, or None without one."""
    answer = client.receive(PRODUCE_VERSION, ProduceRequest)
    if answer is None:
        return None
    [partition] = answer.responses[0].partition_responses
    assert partition.error_code == 0
    return int(partition.base_offset)


def end_offset(node: VirtualNode, topic: str) -> int:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    return int(node.call(5, request).topics[0].partitions[0].offset)


def restart_after_power_cut(node: VirtualNode, seed: int) -> VirtualNode:
    node.host.die()
    node.disk.power_cut(random.Random(seed))
    again = VirtualNode(SETTINGS, disk=node.disk, seed=2)
    again.host.advance(1000)
    return again


def test_produce_is_acknowledged_after_its_flush_completes() -> None:
    node = start_node()
    held = node.host.hold_work()
    client = produce(node, "a")
    assert acknowledged_offset(client) is None
    assert end_offset(node, "a") == 0
    held[0].run()
    node.turn()
    assert acknowledged_offset(client) is None
    held[0].deliver()
    node.turn()
    assert acknowledged_offset(client) == 0
    assert end_offset(node, "a") == 1


def test_produce_returns_unknown_topic_if_deleted_during_its_flush() -> None:
    node = start_node()
    held = node.host.hold_work()
    client = produce(node, "a")
    deleting = node.connect()
    deleting.send(6, DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=1000))
    held[1].run()
    held[1].deliver()
    node.turn()
    answer = client.receive(PRODUCE_VERSION, ProduceRequest)
    assert answer is not None
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (
        "as in Kafka, where a delayed produce looks up its partition again"
    )
    held[0].run()
    held[0].deliver()
    node.turn()
    assert deleting.receive(6, DeleteTopicsRequest).responses[0].error_code == 0


def test_flushes_of_two_logs_complete_in_either_order() -> None:
    node = start_node()
    held = node.host.hold_work()
    one, other = produce(node, "a"), produce(node, "b")
    first, second = held
    second.deliver()
    node.turn()
    assert (acknowledged_offset(one), acknowledged_offset(other)) == (None, 0)
    first.deliver()
    node.turn()
    assert acknowledged_offset(one) == 0


def test_flush_interval_ms_syncs_without_further_appends() -> None:
    node = start_node({"log.dirs": "/d1", "log.flush.interval.ms": "60000"})
    assert acknowledged_offset(produce(node, "a")) == 0
    log = node.node.log_manager.get("a", 0)
    assert log is not None
    node.host.skew_ms = 3_600_000  # the interval is measured on the monotonic clock
    node.host.advance(50_000)
    assert log.recovery_point == 0
    node.host.advance(15_000)
    assert log.recovery_point == 1


def test_rolled_segment_is_synced_without_further_appends() -> None:
    node = start_node({"log.dirs": "/d1"})
    log = node.node.log_manager.get("a", 0)
    assert log is not None
    assert acknowledged_offset(produce(node, "a")) == 0
    log.roll(node.host.now_ms())
    node.host.advance(5_000)
    assert log.recovery_point == 1


@pytest.mark.parametrize("seed", range(10))
def test_append_during_a_flush_waits_for_the_next_flush(seed: int) -> None:
    node = start_node()
    held = node.host.hold_work()
    one, other = produce(node, "a"), produce(node, "a")
    assert len(held) == 1  # both produces share one flush
    held[0].deliver()
    node.turn()
    assert (acknowledged_offset(one), acknowledged_offset(other)) == (0, None)
    assert end_offset(node, "a") == 1
    assert len(held) == 2
    again = restart_after_power_cut(node, seed)
    assert end_offset(again, "a") in (1, 2)


@pytest.mark.parametrize("seed", range(30))
def test_power_loss_keeps_acknowledged_records_in_any_flush_order(seed: int) -> None:
    rng = random.Random(seed)
    node = start_node(work_delays=random.Random(seed))
    sent: list[tuple[str, VirtualClient]] = []
    ends = dict.fromkeys(TOPICS, 0)
    for _ in range(rng.randrange(1, 40)):
        topic = rng.choice(TOPICS)
        sent.append((topic, produce(node, topic)))
        node.host.advance(rng.randrange(20))
    for topic, client in sent:
        offset = acknowledged_offset(client)
        if offset is not None:
            ends[topic] = max(ends[topic], offset + 1)
    again = restart_after_power_cut(node, seed)
    for topic, end in ends.items():
        assert end_offset(again, topic) >= end
