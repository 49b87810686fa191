"""A hundred brokers at once: what one of them says costs the active controller what it does among ten.

What is counted is calls of functions, and records: it is the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from kwire.broker.controller.commands import (
    AlterPartition,
    BrokerHeartbeat,
    CreateTopics,
    PartitionAlteration,
    RegisterBroker,
)
from kwire.broker.metadata.features import registered_features
from kwire.broker.metadata.image import EndpointImage
from kwire.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kwire.wire.primitives import Uuid
from tests.broker.controller.conftest import directory_of
from tests.broker.controller.test_runtime import Bench

SESSION_MS = 9_000
BEAT_MS = 2_000
PARTITIONS = 10
"""That each broker leads."""


class Storm:
    """Brokers that a controller has let lead, each the first replica of some partitions of one topic."""

    def __init__(self, brokers: int) -> None:
        self.bench = Bench()
        self.bench.lead()
        self.bench.commit()
        self.ids = range(1, brokers + 1)
        self.replies: list[Any] = []
        for broker_id in self.ids:
            endpoints = [EndpointImage("PLAINTEXT", "127.0.0.1", 9092)]
            self.ask(
                RegisterBroker(
                    broker_id,
                    Uuid(broker_id.to_bytes(16, "big")),
                    endpoints,
                    registered_features(),
                    None,
                    [directory_of(broker_id)],
                )
            )
        self.settle()
        for broker_id in self.ids:
            self.beat(broker_id)
        self.settle()
        assert not any(each.fenced for each in self.image.brokers.values())
        for broker_id in self.ids:
            others = [(broker_id + step - 1) % brokers + 1 for step in range(3)]
            assignments = [
                CreatableReplicaAssignment(partition_index=index, broker_ids=others)
                for index in range(PARTITIONS)
            ]
            topic = CreatableTopic(
                name=f"led-by-{broker_id}",
                num_partitions=-1,
                replication_factor=-1,
                assignments=assignments,
                configs=[],
            )
            self.ask(CreateTopics([topic]))
        self.settle()

    @property
    def image(self) -> Any:
        return self.bench.publisher.image

    def ask(self, command: Any) -> None:
        self.bench.runtime.submit(command, self.replies.append)

    def settle(self) -> None:
        self.bench.commit()
        self.bench.host.run_pending()

    def beat(self, broker_id: int) -> None:
        epoch = self.image.brokers[broker_id].broker_epoch
        self.ask(BrokerHeartbeat(broker_id, epoch, self.image.offset, want_fence=False, want_shut_down=False))

    def shrink(self, broker_id: int) -> None:
        """A leader takes a follower out of the in-sync sets of all that it leads."""
        topic = self.image.topics[f"led-by-{broker_id}"]
        epochs = {each: self.image.brokers[each].broker_epoch for each in self.ids}
        wanted = [
            PartitionAlteration(
                topic.topic_id,
                index,
                partition.leader_epoch,
                partition.partition_epoch,
                [(each, epochs[each]) for each in partition.replicas[:2]],
            )
            for index, partition in enumerate(topic.partitions)
        ]
        self.ask(AlterPartition(broker_id, epochs[broker_id], wanted))


def calls(work: Callable[[], None]) -> int:
    """How many functions are called, ours and those that are built in."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("what", ["beat", "shrink"])
def test_what_a_broker_says_costs_the_same_among_a_hundred(what: str) -> None:
    costs = []
    for brokers in (10, 100):
        storm = Storm(brokers)
        say = getattr(storm, what)
        costs.append(calls(lambda say=say: say(7)))  # type: ignore[misc]
    assert costs[1] <= 1.2 * costs[0] + 10, costs


def test_heartbeats_write_nothing_and_are_all_answered() -> None:
    storm = Storm(100)
    before = storm.bench.end_offset
    for _ in range(3):
        storm.replies.clear()
        storm.bench.host.advance(BEAT_MS)
        for broker_id in storm.ids:
            storm.beat(broker_id)
        storm.bench.host.run_pending()
        assert [reply.is_fenced for reply in storm.replies] == [False] * 100
    assert storm.bench.end_offset == before
    assert storm.bench.appended == []


def test_in_sync_sets_that_shrink_cost_a_record_each() -> None:
    storm = Storm(100)
    before = storm.bench.end_offset
    storm.replies.clear()
    for broker_id in storm.ids:
        storm.shrink(broker_id)
        storm.beat(broker_id)
    storm.settle()
    assert len(storm.replies) == 200
    assert storm.bench.end_offset - before == 100 * PARTITIONS
    for broker_id in storm.ids:
        for partition in storm.image.topics[f"led-by-{broker_id}"].partitions:
            assert partition.isr == partition.replicas[:2]


def test_all_but_a_few_fall_silent_at_once() -> None:
    storm = Storm(100)
    heard = range(1, 11)
    for _ in range(SESSION_MS // BEAT_MS + 2):
        storm.bench.host.advance(BEAT_MS)
        for broker_id in heard:
            storm.beat(broker_id)
        storm.settle()
    assert [each for each in storm.ids if not storm.image.brokers[each].fenced] == list(heard)
    led = {p.leader for topic in storm.image.topics.values() for p in topic.partitions}
    assert led <= {-1, *heard}
