"""Pipelined requests of one connection: which requests wait until earlier ones are completed.

A client that pipelines requests sees the effects of earlier requests in later ones. Apache Kafka handles
the requests of a connection one at a time. In kwire, a later request other than Fetch completes the delayed
Fetches, and Produce does not wait for an earlier Produce.
"""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.partition import Partition
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.errors import WireError
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.registry import encode_request
from tests.broker.api.groups.client import DELAY_MS, join_request
from tests.node_harness import FETCH_VERSION, PRODUCE_VERSION, NodeHarness, produce_request

LONG_MS = 600_000
UNREPLICATED, REPLICATED = 1, 0
"""A partition with one replica, and one whose follower must replicate each batch."""


def long_poll(index: int) -> FetchRequest:
    partition = FetchPartition(partition=index, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=LONG_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="a", partitions=[partition])],
    )


REQUESTS: dict[str, tuple[int, Any]] = {
    "Metadata": (12, MetadataRequest(topics=None)),
    "Heartbeat": (3, HeartbeatRequest(group_id="g", member_id="nobody", generation_id=1)),
    "JoinGroup": (3, join_request()),
    "Fetch": (FETCH_VERSION, long_poll(REPLICATED)),
    "other Fetch": (FETCH_VERSION, long_poll(UNREPLICATED)),
    "Produce": (PRODUCE_VERSION, produce_request("a", REPLICATED)),
    "quick Produce": (PRODUCE_VERSION, produce_request("a", UNREPLICATED, acks=0)),
}
"""JoinGroup, both Fetches and Produce wait. The others are completed at the end of the turn or before."""


class PipelinedClient(NodeHarness):
    """A broker, and a connection of a client that does not wait for responses."""

    def __init__(self) -> None:
        super().__init__(
            None, **{"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": str(DELAY_MS)}
        )
        self.create("a", partitions=2)
        for _ in range(2):
            found = self.call(3, FindCoordinatorRequest(key="g", key_type=0))
        assert found.error_code == 0
        with_follower = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=1)
        self.partition(REPLICATED).become_leader(with_follower)
        self.client: VirtualClient = self.connect()
        self._sent = 0

    def partition(self, index: int) -> Partition:
        found = self.node.partition("a", index)
        assert found is not None
        return found

    def must_wait(self, name: str) -> bool:
        return self.node.must_wait(self.client.channel, self.frame(name))

    def handle(self, name: str) -> None:
        """Let the node handle the request `name` at once, even if it must wait for earlier requests."""
        self._sent += 1
        self.node.handle_frame(self.client.channel, self.frame(name))

    def frame(self, name: str) -> memoryview:
        version, request = REQUESTS[name]
        # The buffer of the socket server is writable, too.
        return memoryview(bytearray(encode_request(request, version, self._sent, "me")))[4:]

    @property
    def completed(self) -> list[bool]:
        return [context.completed for context in self.client.channel.slots]

    def complete_all(self) -> None:
        """Complete the waiting JoinGroup and Produce."""
        self.turn()
        self.partition(REPLICATED).record_follower_fetch(2, self.ends()[REPLICATED])
        self.turn()
        self.host.advance(DELAY_MS)

    def ends(self) -> dict[int, int]:
        return {index: self.partition(index).log.log_end_offset for index in (REPLICATED, UNREPLICATED)}

    def received(self) -> list[bytes]:
        """Return the received responses, which begin with their correlation ids."""
        found, frames = [], self.client.take_bytes()
        while frames:
            end = 4 + int.from_bytes(frames[:4], "big")
            found.append(frames[4:end])
            frames = frames[end:]
        return found

    def received_ids(self) -> list[int]:
        """Return the correlation ids of the received responses."""
        return [int.from_bytes(response[:4], "big") for response in self.received()]


@pytest.fixture
def broker() -> PipelinedClient:
    return PipelinedClient()


@pytest.mark.parametrize(
    ("before", "completed", "next_requests"),
    [
        (["JoinGroup"], [False], ["Metadata", "Heartbeat", "JoinGroup", "Fetch", "Produce", "quick Produce"]),
        (["Metadata", "JoinGroup"], [True, False], ["Metadata", "Produce"]),
        (["Produce"], [False], ["Metadata", "Heartbeat", "JoinGroup", "Fetch"]),
        (["Produce", "Produce"], [False, False], ["Metadata", "Fetch"]),
        (["Produce", "quick Produce"], [False, True], ["Metadata", "Fetch"]),
        (["quick Produce", "Produce"], [True, False], ["Metadata", "Fetch"]),
    ],
)
def test_a_request_waits_for_earlier_requests(
    broker: PipelinedClient, before: list[str], completed: list[bool], next_requests: list[str]
) -> None:
    """A later request sees the group or the log as JoinGroup or Produce left it."""
    for name in before:
        broker.handle(name)
    broker.turn()
    assert broker.completed == completed
    assert {name: broker.must_wait(name) for name in next_requests} == dict.fromkeys(next_requests, True)
    broker.complete_all()
    # The responses need not have been sent.
    assert all(broker.completed)
    assert {name: broker.must_wait(name) for name in REQUESTS} == dict.fromkeys(REQUESTS, False)


@pytest.mark.parametrize("before", [[], ["Metadata"], ["Metadata", "Heartbeat"], ["quick Produce"]])
def test_no_request_waits_for_completed_requests(broker: PipelinedClient, before: list[str]) -> None:
    """A client may send many quick requests before it reads the first response."""
    for name in before:
        broker.handle(name)
    broker.turn()
    assert all(broker.completed)
    assert {name: broker.must_wait(name) for name in REQUESTS} == dict.fromkeys(REQUESTS, False)


@pytest.mark.parametrize("others", [[], ["Produce"], ["quick Produce"], ["Produce", "quick Produce"]])
def test_produce_does_not_wait_for_an_earlier_produce(broker: PipelinedClient, others: list[str]) -> None:
    """Batches are appended in order while followers still replicate the first ones."""
    for name in ["Produce", *others]:
        assert not broker.must_wait(name)
        broker.handle(name)
    broker.turn()
    assert broker.completed[0] is False
    assert broker.ends() == {
        REPLICATED: 1 + others.count("Produce"),
        UNREPLICATED: others.count("quick Produce"),
    }
    assert not broker.must_wait("Produce")
    assert not broker.must_wait("quick Produce")
    assert broker.received_ids() == []
    broker.complete_all()
    # Requests with acks=0 get no response.
    assert broker.received_ids() == [
        at for at, name in enumerate(["Produce", *others], 1) if name == "Produce"
    ]


@pytest.mark.parametrize("fetches", [1, 2, 5])
@pytest.mark.parametrize("next_request", ["Metadata", "Heartbeat", "JoinGroup", "Produce", "quick Produce"])
def test_request_behind_delayed_fetches_completes_all_of_them(
    broker: PipelinedClient, next_request: str, fetches: int
) -> None:
    """The delayed fetches return without records, and the clock does not advance."""
    for _ in range(fetches):
        broker.handle("Fetch")
    broker.turn()
    assert broker.completed == [False] * fetches
    assert not broker.must_wait(next_request)
    broker.handle(next_request)
    assert all(broker.completed[:fetches])
    assert broker.received_ids()[:fetches] == list(range(1, fetches + 1))


def test_queued_fetches_are_completed_in_several_turns_if_they_take_long(
    broker: PipelinedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile, the event loop serves other connections."""
    for _ in range(10):
        broker.handle("Fetch")
    broker.turn()
    host = broker.node.host
    began_ms = host.monotonic_ms()
    # Each Fetch takes 1 ms.
    monkeypatch.setattr(host, "monotonic_ms", lambda: began_ms + sum(broker.completed))
    assert broker.must_wait("Metadata")
    assert 0 < sum(broker.completed) < 10
    broker.host.run_pending()
    assert not broker.must_wait("Metadata")
    broker.handle("Metadata")
    assert broker.received_ids() == list(range(1, 12))


def test_fetch_behind_a_delayed_fetch_waits_for_its_turn(broker: PipelinedClient) -> None:
    """The wait of each fetch begins when the fetch before it has completed, as in Apache Kafka."""
    for _ in range(3):
        assert not broker.must_wait("Fetch")
        broker.handle("Fetch")
    for number in (1, 2, 3):
        broker.host.advance(LONG_MS - 1)
        assert broker.received_ids() == []
        broker.host.advance(1)
        assert broker.received_ids() == [number]


def test_queued_fetch_returns_the_records_that_arrived_before_its_turn(broker: PipelinedClient) -> None:
    """The fetch before it is not completed for these records."""
    broker.handle("Fetch")
    broker.handle("other Fetch")
    broker.produce("a", UNREPLICATED)
    assert broker.completed == [False, False]
    broker.host.advance(LONG_MS)
    first, second = broker.received()
    assert (b"value" in first, b"value" in second) == (False, True)


def test_queued_fetches_start_once_the_first_one_has_records(broker: PipelinedClient) -> None:
    for name in ("other Fetch", "other Fetch", "Fetch"):
        broker.handle(name)
    broker.produce("a", UNREPLICATED)
    assert broker.received_ids() == [1, 2]
    broker.host.advance(LONG_MS)
    assert broker.received_ids() == [3]


def test_request_between_a_completed_and_a_queued_fetch_completes_the_queued_fetch(
    broker: PipelinedClient,
) -> None:
    """The requests arrive before the event loop has started the queued fetch."""
    broker.handle("other Fetch")
    broker.handle("Fetch")
    broker.connect().submit(PRODUCE_VERSION, produce_request("a", UNREPLICATED))
    broker.node.end_turn()
    assert broker.completed == [True, False]
    broker.handle("Fetch")
    assert broker.completed == [True, False, False]
    broker.handle("Metadata")
    assert broker.received_ids() == [1, 2, 3, 4]
    broker.turn()
    assert broker.completed == []


def test_unsupported_version_of_api_versions_completes_delayed_fetches(broker: PipelinedClient) -> None:
    broker.handle("Fetch")
    broker.client.submit_frame(bytes.fromhex("0000000b 0012 7fff 00000002 ffff 00"))
    assert broker.received_ids() == [1, 2]


def test_shutdown_completes_queued_fetches(broker: PipelinedClient) -> None:
    for _ in range(3):
        broker.handle("Fetch")
    broker.node.begin_shutdown()
    broker.turn()
    assert broker.received_ids() == [1, 2, 3]


def test_queued_fetches_of_a_closed_connection_are_forgotten(broker: PipelinedClient) -> None:
    for _ in range(3):
        broker.handle("Fetch")
    broker.node.channel_closed(broker.client.channel)
    broker.turn()
    assert not broker.partition(REPLICATED).delayed_fetches
    assert not broker.client.channel.fetches.queued


def test_malformed_fetch_behind_a_delayed_fetch_closes_the_connection(broker: PipelinedClient) -> None:
    broker.handle("Fetch")
    frame = broker.frame("Fetch")
    with pytest.raises(WireError):
        broker.node.handle_frame(broker.client.channel, frame[:-1])
    assert broker.completed == [False]
