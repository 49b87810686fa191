"""The simulated network between nodes and clients, with faults."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.host.host import PeerAddress, PeerTooOld, PeerUnreachable
from kwire.testing.network import NO_FAULTS, Network, NetworkFaults
from kwire.testing.virtual_host import EventQueue
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchResponse
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.node_harness import PRODUCE_VERSION, fetch_request, produce_request

ONE, TWO = PeerAddress("one", 9092), PeerAddress("two", 9092)
CONTROLLER_OF_ONE = PeerAddress("one", 9093)
UNUSED_ADDRESS = PeerAddress("nobody", 1)


def start_node(network: Network, number: int, host: str) -> VirtualNode:
    """Start a cluster of one node that listens on `host`."""
    settings = {
        "node.id": str(number),
        "log.dirs": "/data",
        "listeners": f"PLAINTEXT://{host}:9092,CONTROLLER://{host}:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{number}@{host}:9093",
    }
    return VirtualNode(settings, network=network, seed=number)


class TwoNodes:
    """Two independent single-node clusters, and the responses to the requests of node one."""

    def __init__(self, seed: int | None = None, faults: NetworkFaults = NetworkFaults()) -> None:  # noqa: B008
        self.notes: list[str] = []
        rng = None if seed is None else random.Random(seed)
        self.network = Network(EventQueue(), rng, faults, self.notes.append)
        self.one = start_node(self.network, 1, "one")
        self.two = start_node(self.network, 2, "two")
        self.responses: list[Any] = []
        self.advance = self.network.events.advance
        self.advance(100)  # until both nodes accept clients

    def send(self, request: Any, to: PeerAddress = TWO, timeout_ms: int = 5_000, **more: Any) -> None:
        host = self.one.host
        host.peers.send(
            to,
            more.pop("purpose", "test"),
            request,
            deadline_ms=host.internode_clock.monotonic_ms() + timeout_ms,
            on_response=self.responses.append,
            **more,
        )

    def request(self, request: Any, to: PeerAddress = TWO, within_ms: int = 5_000, **more: Any) -> Any:
        """Send a request, wait `within_ms`, and return its response or error."""
        before = len(self.responses)
        self.send(request, to, **more)
        assert len(self.responses) == before, "the callback ran inside `send`"
        self.advance(within_ms)
        (response,) = self.responses[before:]
        return response


def node_id_of(response: Any) -> int:
    """Return the id of the first broker in a Metadata response."""
    assert isinstance(response, MetadataResponse)
    return response.brokers[0].node_id


def test_node_sends_a_request_to_another_node() -> None:
    nodes = TwoNodes()
    assert node_id_of(nodes.request(MetadataRequest(topics=None), within_ms=6)) == 2
    assert node_id_of(nodes.request(MetadataRequest(topics=None), within_ms=2)) == 2  # connected
    assert node_id_of(nodes.request(MetadataRequest(topics=None), ONE)) == 1


def test_request_uses_the_highest_common_version_or_max_version() -> None:
    nodes = TwoNodes()
    assert nodes.request(MetadataRequest(topics=None)).cluster_id
    assert nodes.request(MetadataRequest(topics=None), max_version=1).cluster_id is None  # added in version 2
    error = nodes.request(MetadataRequest(topics=None, allow_auto_topic_creation=False), max_version=1)
    assert isinstance(error, PeerUnreachable)
    assert isinstance(error, PeerTooOld)
    assert str(error).startswith("two:9092: version 1 of Metadata cannot represent the request")
    assert node_id_of(nodes.request(MetadataRequest(topics=None))) == 2  # the connection stays usable


def test_api_that_the_listener_does_not_serve_fails_before_sending() -> None:
    nodes = TwoNodes()
    assert str(nodes.request(MetadataRequest(), CONTROLLER_OF_ONE)) == "one:9093: Metadata is not supported"
    names = ApiVersionsRequest(client_software_name="me", client_software_version="1")
    assert isinstance(nodes.request(names, CONTROLLER_OF_ONE), ApiVersionsResponse)


def test_connection_to_a_stopped_node_is_refused() -> None:
    nodes = TwoNodes()
    assert str(nodes.request(MetadataRequest(), UNUSED_ADDRESS)) == "nobody:1: connection refused"
    nodes.two.stop()
    assert str(nodes.request(MetadataRequest())) == "two:9092: connection refused"
    nodes.two.start()
    assert node_id_of(nodes.request(MetadataRequest())) == 2


def test_request_during_reconnect_backoff_waits_for_the_next_attempt() -> None:
    nodes = TwoNodes()
    nodes.two.stop()
    for _ in range(4):
        nodes.request(MetadataRequest(), within_ms=500)
    nodes.send(MetadataRequest(topics=None))
    nodes.two.start()
    nodes.advance(1_500)
    assert node_id_of(nodes.responses[-1]) == 2


def test_request_to_a_paused_node_times_out_at_its_deadline() -> None:
    nodes = TwoNodes()
    nodes.two.host.pause()
    nodes.send(MetadataRequest(topics=None), timeout_ms=700)
    nodes.advance(699)
    assert nodes.responses == []
    nodes.advance(1)
    assert str(nodes.responses[0]) == "two:9092: ApiVersions timed out"
    assert (
        str(nodes.request(MetadataRequest(), timeout_ms=0))
        == "two:9092: request not sent: its deadline has passed"
    )


def test_timers_due_during_a_pause_can_be_canceled_or_postponed() -> None:
    nodes = TwoNodes()
    fired: list[str] = []
    host = nodes.two.host

    def fire_first() -> None:
        fired.append("first")
        second.cancel()
        third.postpone(50)

    first = host.schedule(10, fire_first)
    second = host.schedule(20, lambda: fired.append("second"))
    third = host.schedule(30, lambda: fired.append("third"))
    host.pause()
    nodes.advance(100)
    host.resume()
    nodes.advance(49)
    assert fired == ["first"]
    nodes.advance(1)
    assert fired == ["first", "third"]
    assert not first.postpone(10)


def test_paused_process_handles_requests_after_it_resumes() -> None:
    nodes = TwoNodes()
    nodes.request(MetadataRequest())
    nodes.two.host.pause()
    nodes.send(MetadataRequest(topics=None))
    nodes.advance(4_000)
    assert len(nodes.responses) == 1
    nodes.two.host.resume()
    nodes.advance(10)
    assert node_id_of(nodes.responses[1]) == 2
    nodes.two.host.pause()
    nodes.send(MetadataRequest(topics=None), timeout_ms=1_000)
    nodes.send(MetadataRequest(topics=None), timeout_ms=9_000)
    nodes.advance(1_100)
    # Responses arrive in order: the request that times out fails the one behind it.
    assert [str(response) for response in nodes.responses[2:]] == ["two:9092: request timed out"] * 2


def test_responses_of_one_purpose_are_ordered_and_do_not_block_other_purposes() -> None:
    nodes = TwoNodes()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    nodes.request(CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    fetch = fetch_request("t")
    fetch.max_wait_ms = 300
    nodes.responses.clear()
    nodes.send(fetch, purpose="fetch-0", max_version=12)
    nodes.send(HeartbeatRequest(), purpose="fetch-0")
    nodes.send(MetadataRequest(topics=None), purpose="other")
    nodes.advance(20)
    # A request on the same connection ends the wait of the fetch before it.
    assert [type(response).__name__ for response in nodes.responses] == [
        "FetchResponse",
        "HeartbeatResponse",
        "MetadataResponse",
    ]
    nodes.responses.clear()
    nodes.send(fetch, purpose="fetch-0", max_version=12)
    nodes.send(MetadataRequest(topics=None), purpose="other")
    nodes.advance(250)
    assert len(nodes.responses) == 1
    nodes.advance(100)
    assert isinstance(nodes.responses[1], FetchResponse)


@pytest.mark.parametrize("power", [False, True])
def test_crash_fails_pending_requests_and_the_restarted_node_responds(power: bool) -> None:
    nodes = TwoNodes()
    nodes.request(MetadataRequest())
    nodes.send(MetadataRequest(topics=None))
    nodes.two.die(power_failure=random.Random(1) if power else None)
    nodes.advance(10)
    assert [str(response) for response in nodes.responses[1:]] == (
        [] if power else ["two:9092: the peer reset the connection"]
    )
    nodes.advance(5_000)
    assert (
        str(nodes.responses[1])
        == f"two:9092: {'request timed out' if power else 'the peer reset the connection'}"
    )
    if power:
        assert str(nodes.request(MetadataRequest())) == "two:9092: connection setup timed out"
    nodes.two.start()
    assert node_id_of(nodes.request(MetadataRequest(topics=None))) == 2


def test_connection_from_before_a_power_loss_is_reset_when_used() -> None:
    nodes = TwoNodes()
    nodes.request(MetadataRequest())
    nodes.two.die(power_failure=random.Random(1))
    nodes.two.start()
    assert str(nodes.request(MetadataRequest())) == "two:9092: the peer reset the connection"
    assert node_id_of(nodes.request(MetadataRequest(topics=None))) == 2


def test_crash_during_a_write_stops_only_that_node() -> None:
    nodes = TwoNodes()
    nodes.two.disk.dies_after = 0
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    error = nodes.request(CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    assert str(error) == "two:9092: the peer reset the connection"
    assert not nodes.two.is_running
    assert node_id_of(nodes.request(MetadataRequest(topics=None), ONE)) == 1
    nodes.two.start()
    assert node_id_of(nodes.request(MetadataRequest(topics=None))) == 2


def test_wiped_node_starts_with_a_new_cluster_id() -> None:
    nodes = TwoNodes()
    before = nodes.request(MetadataRequest(topics=None)).cluster_id
    nodes.two.die()
    nodes.two.wipe()
    nodes.two.start()
    nodes.request(MetadataRequest())
    assert nodes.request(MetadataRequest(topics=None)).cluster_id != before


@pytest.mark.parametrize("both_ways", [False, True])
def test_packets_of_a_network_partition_arrive_when_it_heals(both_ways: bool) -> None:
    nodes = TwoNodes()
    nodes.request(MetadataRequest())
    nodes.network.cut(nodes.two.host.name, nodes.one.host.name, both_ways=both_ways)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    nodes.send(CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    nodes.advance(3_000)
    assert len(nodes.responses) == 1
    assert (nodes.two.node.partition("t", 0) is None) is both_ways
    assert node_id_of(nodes.request(MetadataRequest(topics=None), ONE, within_ms=10)) == 1
    nodes.network.heal()
    nodes.advance(2)
    assert nodes.responses[2].topics[0].error_code == 0
    assert nodes.notes == [
        "network cut between node 2 and node 1" if both_ways else "network cut from node 2 to node 1",
        "network restored",
    ]


def test_request_to_an_isolated_node_times_out_and_the_next_reconnects() -> None:
    nodes = TwoNodes()
    nodes.request(MetadataRequest())
    nodes.network.isolate(nodes.two.host.name)
    assert str(nodes.request(MetadataRequest(), timeout_ms=1_000)) == "two:9092: request timed out"
    assert str(nodes.request(MetadataRequest(), timeout_ms=1_000)) == "two:9092: connection setup timed out"
    nodes.network.heal()
    assert node_id_of(nodes.request(MetadataRequest(topics=None))) == 2
    assert len(nodes.network.connections) == 1


def test_clients_see_the_same_network_faults() -> None:
    nodes = TwoNodes()
    client = nodes.network.connect(TWO, "client")
    client.send(12, MetadataRequest(topics=None), nodes.responses.append)
    nodes.advance(10)
    assert node_id_of(nodes.responses.pop()) == 2
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    client.send(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000), nodes.responses.append)
    client.send(PRODUCE_VERSION, produce_request("t", acks=0), None)
    client.send(PRODUCE_VERSION, produce_request("t"), nodes.responses.append)
    nodes.advance(10)
    assert nodes.responses.pop().responses[0].partition_responses[0].base_offset == 1
    nodes.responses.clear()
    nodes.two.host.pause()
    client.send(12, MetadataRequest(topics=None), nodes.responses.append)
    nodes.two.die()
    nodes.advance(10)
    assert [str(response) for response in nodes.responses] == ["two:9092: the peer reset the connection"]
    assert client.close_reason == "two:9092: the peer reset the connection"
    client.send(12, MetadataRequest(topics=None), nodes.responses.append)
    nodes.advance(1)
    assert str(nodes.responses[1]) == client.close_reason
    refused = nodes.network.connect(TWO, "client")
    nodes.advance(10)
    assert refused.close_reason == "two:9092: connection refused"


def test_connection_is_removed_after_a_protocol_error_or_a_close() -> None:
    nodes = TwoNodes()
    client = nodes.network.connect(TWO, "client")
    client.send(9, MetadataRequest(topics=None), nodes.responses.append)
    client.close()
    assert [str(response) for response in nodes.responses] == ["closed"]
    other = nodes.network.connect(PeerAddress("two", 9093), "client")
    other.send(12, MetadataRequest(topics=None), nodes.responses.append)  # controllers do not serve Metadata
    nodes.advance(10)
    assert other.close_reason == "two:9093: the peer closed the connection"
    assert not nodes.network.connections


def test_idle_connections_are_closed() -> None:
    nodes = TwoNodes()
    nodes.request(MetadataRequest())
    nodes.advance(590_000)
    assert len(nodes.network.connections) == 1
    nodes.advance(20_000)
    assert not nodes.network.connections
    assert node_id_of(nodes.request(MetadataRequest(topics=None))) == 2


ROUGH = NetworkFaults(shortest_ms=0, longest_ms=40, slow=0.05, slowest_ms=900, breaks=0.05)


def outcomes_with_seed(seed: int) -> tuple[list[str], list[str], int]:
    """Produce forty records over a faulty network; return the outcomes, the faults and the log end offset."""
    nodes = TwoNodes(seed, ROUGH)
    nodes.network.faults = NO_FAULTS
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    nodes.request(CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    nodes.network.faults = ROUGH
    nodes.responses.clear()
    for number in range(40):
        nodes.send(produce_request("t"), timeout_ms=1_000, max_version=PRODUCE_VERSION)
        nodes.advance(number % 7 * 20)
    nodes.advance(5_000)
    outcomes = [
        str(response)
        if isinstance(response, PeerUnreachable)
        else f"at {response.responses[0].partition_responses[0].base_offset}"
        for response in nodes.responses
    ]
    partition = nodes.two.node.partition("t", 0)
    assert partition is not None
    return outcomes, nodes.notes, partition.log.log_end_offset


def test_network_faults_are_the_same_for_the_same_seed() -> None:
    connection_losses = unacknowledged_appends = 0
    for seed in range(8):
        outcomes, notes, end = outcomes_with_seed(seed)
        assert (outcomes, notes, end) == outcomes_with_seed(seed)
        assert len(outcomes) == 40
        acknowledged = [response for response in outcomes if response.startswith("at ")]
        # In the order in which they were sent, without duplicates.
        offsets = [int(response.removeprefix("at ")) for response in acknowledged]
        assert offsets == sorted(set(offsets))
        connection_losses += any("breaks" in note for note in notes)
        unacknowledged_appends += end > len(acknowledged)
    assert connection_losses == 8
    assert unacknowledged_appends, "no response to an append was lost"
