"""Requests of one connection behind each other: which of them waits until those before it are answered.

A client that sends several at once sees that each has found what those before it have done: Apache Kafka
takes a connection's requests one at a time. Here a long poll ends instead, and Produce behind Produce does
not wait.
"""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.partition import Partition
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.registry import encode_request
from tests.broker.api.groups.client import DELAY_MS, join_request
from tests.node_harness import FETCH_VERSION, PRODUCE_VERSION, NodeHarness, produce_request

LONG_MS = 600_000
ANSWERED_ALONE, ANSWERED_LATER = 1, 0
"""A partition that this broker has alone, and one whose follower has to have what is appended."""

POLL = FetchRequest(
    max_wait_ms=LONG_MS,
    min_bytes=1,
    max_bytes=1 << 20,
    topics=[FetchTopic(topic="a", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])],
)

REQUESTS: dict[str, tuple[int, Any]] = {
    "Metadata": (12, MetadataRequest(topics=None)),
    "Heartbeat": (3, HeartbeatRequest(group_id="g", member_id="nobody", generation_id=1)),
    "JoinGroup": (3, join_request()),
    "Fetch": (FETCH_VERSION, POLL),
    "Produce": (PRODUCE_VERSION, produce_request("a", ANSWERED_LATER)),
    "quick Produce": (PRODUCE_VERSION, produce_request("a", ANSWERED_ALONE, acks=0)),
}
"""JoinGroup, Fetch and Produce wait for something; the others are answered when the turn ends, or before."""


class Pipelined(NodeHarness):
    """A broker, and a connection of a client that does not wait for answers."""

    def __init__(self) -> None:
        super().__init__(
            None, **{"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": str(DELAY_MS)}
        )
        self.create("a", partitions=2)
        for _ in range(2):
            found = self.call(3, FindCoordinatorRequest(key="g", key_type=0))
        assert found.error_code == 0
        with_follower = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=1)
        self.partition(ANSWERED_LATER).become_leader(with_follower)
        self.client: VirtualClient = self.connect()
        self._sent = 0

    def partition(self, index: int) -> Partition:
        found = self.node.partition("a", index)
        assert found is not None
        return found

    def must_wait(self, name: str) -> bool:
        return self.node.must_wait(self.client.channel, self._frame(name))

    def take(self, name: str) -> None:
        """Have the broker take it as the next one, whether it has to wait or not."""
        self._sent += 1
        self.node.handle_frame(self.client.channel, self._frame(name))

    def _frame(self, name: str) -> memoryview:
        version, request = REQUESTS[name]
        # As in the shell's buffer, which may be written to.
        return memoryview(bytearray(encode_request(request, version, self._sent, "me")))[4:]

    @property
    def answered(self) -> list[bool]:
        return [context.completed for context in self.client.channel.slots]

    def answer_all(self) -> None:
        """Have happen what JoinGroup and Produce wait for."""
        self.turn()
        self.partition(ANSWERED_LATER).record_follower_fetch(2, self.ends()[ANSWERED_LATER])
        self.turn()
        self.host.advance(DELAY_MS)

    def ends(self) -> dict[int, int]:
        return {index: self.partition(index).log.log_end_offset for index in (ANSWERED_LATER, ANSWERED_ALONE)}

    def received(self) -> list[int]:
        """The correlation ids of the answers that have come."""
        ids, frames = [], self.client.take_bytes()
        while frames:
            ids.append(int.from_bytes(frames[4:8], "big"))
            frames = frames[4 + int.from_bytes(frames[:4], "big") :]
        return ids


@pytest.fixture
def broker() -> Pipelined:
    return Pipelined()


@pytest.mark.parametrize(
    ("before", "answered", "behind"),
    [
        (["JoinGroup"], [False], ["Metadata", "Heartbeat", "JoinGroup", "Fetch", "Produce", "quick Produce"]),
        (["Metadata", "JoinGroup"], [True, False], ["Metadata", "Produce"]),
        (["Produce"], [False], ["Metadata", "Heartbeat", "JoinGroup", "Fetch"]),
        (["Produce", "Produce"], [False, False], ["Metadata", "Fetch"]),
        (["Produce", "quick Produce"], [False, True], ["Metadata", "Fetch"]),
        (["quick Produce", "Produce"], [True, False], ["Metadata", "Fetch"]),
    ],
)
def test_a_request_waits_until_those_before_it_are_answered(
    broker: Pipelined, before: list[str], answered: list[bool], behind: list[str]
) -> None:
    """What a client sends behind JoinGroup or Produce finds the group, or the log, as that has left it."""
    for name in before:
        broker.take(name)
    broker.turn()
    assert broker.answered == answered
    assert {name: broker.must_wait(name) for name in behind} == dict.fromkeys(behind, True)
    broker.answer_all()
    # They need not have been sent.
    assert all(broker.answered)
    assert {name: broker.must_wait(name) for name in REQUESTS} == dict.fromkeys(REQUESTS, False)


@pytest.mark.parametrize("before", [[], ["Metadata"], ["Metadata", "Heartbeat"], ["quick Produce"]])
def test_nothing_waits_behind_what_is_answered(broker: Pipelined, before: list[str]) -> None:
    """A client that sends many quick requests need not have taken the answers to the first of them."""
    for name in before:
        broker.take(name)
    broker.turn()
    assert all(broker.answered)
    assert {name: broker.must_wait(name) for name in REQUESTS} == dict.fromkeys(REQUESTS, False)


@pytest.mark.parametrize("others", [[], ["Produce"], ["quick Produce"], ["Produce", "quick Produce"]])
def test_produce_does_not_wait_behind_produce(broker: Pipelined, others: list[str]) -> None:
    """A producer's batches are written as they come, in their order, though followers lack the first ones."""
    for name in ["Produce", *others]:
        assert not broker.must_wait(name)
        broker.take(name)
    broker.turn()
    assert broker.answered[0] is False
    assert broker.ends() == {
        ANSWERED_LATER: 1 + others.count("Produce"),
        ANSWERED_ALONE: others.count("quick Produce"),
    }
    assert not broker.must_wait("Produce")
    assert not broker.must_wait("quick Produce")
    assert broker.received() == []
    broker.answer_all()
    # Those without acks have no answer.
    assert broker.received() == [at for at, name in enumerate(["Produce", *others], 1) if name == "Produce"]


@pytest.mark.parametrize(
    "behind", ["Metadata", "Heartbeat", "JoinGroup", "Fetch", "Produce", "quick Produce"]
)
def test_a_request_behind_a_long_poll_ends_that_instead_of_waiting(broker: Pipelined, behind: str) -> None:
    """A consumer whose fetch waits for records has it answered, without any, before what it asks next."""
    broker.take("Fetch")
    broker.turn()
    assert broker.answered == [False]
    assert not broker.must_wait(behind)
    broker.take(behind)
    assert broker.answered[0]
    assert broker.received()[0] == 1
