"""A hundred brokers: a command of one of them costs the active controller as much as with ten brokers.

Costs are counted in function calls and records, which are the same on every machine.
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
from tests.broker.controller.test_runtime import RuntimeHarness

SESSION_MS = 9_000
HEARTBEAT_MS = 2_000
PARTITIONS = 10
"""The partitions that each broker leads."""


class BrokerFleet:
    """Unfenced brokers, each of which is the preferred leader of some partitions."""

    def __init__(self, brokers: int) -> None:
        self.harness = RuntimeHarness()
        self.harness.become_active()
        self.harness.commit()
        self.ids = range(1, brokers + 1)
        self.replies: list[Any] = []
        for broker_id in self.ids:
            endpoints = [EndpointImage("PLAINTEXT", "127.0.0.1", 9092)]
            self.submit(
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
            self.heartbeat(broker_id)
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
            self.submit(CreateTopics([topic]))
        self.settle()

    @property
    def image(self) -> Any:
        return self.harness.publisher.image

    def submit(self, command: Any) -> None:
        self.harness.runtime.submit(command, self.replies.append)

    def settle(self) -> None:
        self.harness.commit()
        self.harness.host.run_pending()

    def heartbeat(self, broker_id: int) -> None:
        epoch = self.image.brokers[broker_id].broker_epoch
        self.submit(
            BrokerHeartbeat(broker_id, epoch, self.image.offset, want_fence=False, want_shut_down=False)
        )

    def shrink(self, broker_id: int) -> None:
        """Send the request of a leader that removes a follower from the ISR of all its partitions."""
        topic = self.image.topics[f"led-by-{broker_id}"]
        epochs = {each: self.image.brokers[each].broker_epoch for each in self.ids}
        alterations = [
            PartitionAlteration(
                topic.topic_id,
                index,
                partition.leader_epoch,
                partition.partition_epoch,
                [(each, epochs[each]) for each in partition.replicas[:2]],
            )
            for index, partition in enumerate(topic.partitions)
        ]
        self.submit(AlterPartition(broker_id, epochs[broker_id], alterations))


def calls(work: Callable[[], None]) -> int:
    """Return the number of calls of functions, including built-in ones."""
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


@pytest.mark.parametrize("command", ["heartbeat", "shrink"])
def test_command_cost_does_not_grow_with_the_number_of_brokers(command: str) -> None:
    costs = []
    for brokers in (10, 100):
        fleet = BrokerFleet(brokers)
        send = getattr(fleet, command)
        costs.append(calls(lambda send=send: send(7)))  # type: ignore[misc]
    assert costs[1] <= 1.2 * costs[0] + 10, costs


def test_heartbeats_write_no_records_and_all_get_responses() -> None:
    fleet = BrokerFleet(100)
    before = fleet.harness.end_offset
    for _ in range(3):
        fleet.replies.clear()
        fleet.harness.host.advance(HEARTBEAT_MS)
        for broker_id in fleet.ids:
            fleet.heartbeat(broker_id)
        fleet.harness.host.run_pending()
        assert [reply.is_fenced for reply in fleet.replies] == [False] * 100
    assert fleet.harness.end_offset == before
    assert fleet.harness.appended == []


def test_each_isr_shrink_costs_one_record() -> None:
    fleet = BrokerFleet(100)
    before = fleet.harness.end_offset
    fleet.replies.clear()
    for broker_id in fleet.ids:
        fleet.shrink(broker_id)
        fleet.heartbeat(broker_id)
    fleet.settle()
    assert len(fleet.replies) == 200
    assert fleet.harness.end_offset - before == 100 * PARTITIONS
    for broker_id in fleet.ids:
        for partition in fleet.image.topics[f"led-by-{broker_id}"].partitions:
            assert partition.isr == partition.replicas[:2]


def test_brokers_that_stop_at_once_are_all_fenced() -> None:
    fleet = BrokerFleet(100)
    alive = range(1, 11)
    for _ in range(SESSION_MS // HEARTBEAT_MS + 2):
        fleet.harness.host.advance(HEARTBEAT_MS)
        for broker_id in alive:
            fleet.heartbeat(broker_id)
        fleet.settle()
    assert [each for each in fleet.ids if not fleet.image.brokers[each].fenced] == list(alive)
    led = {p.leader for topic in fleet.image.topics.values() for p in topic.partitions}
    assert led <= {-1, *alive}
