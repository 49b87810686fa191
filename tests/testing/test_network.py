"""What nodes and clients on the simulated network see of each other, and of what goes wrong between them."""

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
NOBODY = PeerAddress("nobody", 1)


def node(network: Network, number: int, host: str) -> VirtualNode:
    """A cluster of one, which listens at a host of its own."""
    settings = {
        "node.id": str(number),
        "log.dirs": "/data",
        "listeners": f"PLAINTEXT://{host}:9092,CONTROLLER://{host}:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{number}@{host}:9093",
    }
    return VirtualNode(settings, network=network, seed=number)


class World:
    """Two nodes that know nothing of each other, and what the first one was answered."""

    def __init__(self, seed: int | None = None, faults: NetworkFaults = NetworkFaults()) -> None:  # noqa: B008
        self.notes: list[str] = []
        rng = None if seed is None else random.Random(seed)
        self.network = Network(EventQueue(), rng, faults, self.notes.append)
        self.one = node(self.network, 1, "one")
        self.two = node(self.network, 2, "two")
        self.answers: list[Any] = []
        self.advance = self.network.events.advance
        self.advance(100)  # until both let clients in

    def send(self, request: Any, to: PeerAddress = TWO, timeout_ms: int = 5_000, **more: Any) -> None:
        host = self.one.host
        host.peers.send(
            to,
            more.pop("purpose", "test"),
            request,
            deadline_ms=host.monotonic_ms() + timeout_ms,
            on_response=self.answers.append,
            **more,
        )

    def ask(self, request: Any, to: PeerAddress = TWO, within_ms: int = 5_000, **more: Any) -> Any:
        """What comes of it within some time."""
        before = len(self.answers)
        self.send(request, to, **more)
        assert len(self.answers) == before, "told inside of the call"
        self.advance(within_ms)
        (answer,) = self.answers[before:]
        return answer


def who(answer: Any) -> int:
    """The node that a Metadata answer speaks of."""
    assert isinstance(answer, MetadataResponse)
    return answer.brokers[0].node_id


def test_a_node_asks_another() -> None:
    world = World()
    assert who(world.ask(MetadataRequest(topics=None), within_ms=6)) == 2
    assert who(world.ask(MetadataRequest(topics=None), within_ms=2)) == 2  # it is connected by now
    assert who(world.ask(MetadataRequest(topics=None), ONE)) == 1


def test_the_version_is_the_highest_of_both_or_lower_where_that_is_asked() -> None:
    world = World()
    assert world.ask(MetadataRequest(topics=None)).cluster_id
    assert world.ask(MetadataRequest(topics=None), max_version=1).cluster_id is None  # from version 2 on
    why = world.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), max_version=1)
    assert isinstance(why, PeerUnreachable)
    assert isinstance(why, PeerTooOld)
    assert str(why).startswith("two:9092: version 1 of Metadata cannot represent the request")
    assert who(world.ask(MetadataRequest(topics=None))) == 2  # the connection is none the worse for it


def test_what_a_listener_does_not_serve_is_refused_before_it_is_sent() -> None:
    world = World()
    assert str(world.ask(MetadataRequest(), CONTROLLER_OF_ONE)) == "one:9093: Metadata is not supported"
    names = ApiVersionsRequest(client_software_name="me", client_software_version="1")
    assert isinstance(world.ask(names, CONTROLLER_OF_ONE), ApiVersionsResponse)


def test_whoever_is_not_there_refuses() -> None:
    world = World()
    assert str(world.ask(MetadataRequest(), NOBODY)) == "nobody:1: connection refused"
    world.two.stop()
    assert str(world.ask(MetadataRequest())) == "two:9092: connection refused"
    world.two.start()
    assert who(world.ask(MetadataRequest())) == 2


def test_what_is_asked_while_the_connection_rests_waits_for_the_next_attempt() -> None:
    world = World()
    world.two.stop()
    for _ in range(4):
        world.ask(MetadataRequest(), within_ms=500)
    world.send(MetadataRequest(topics=None))
    world.two.start()
    world.advance(1_500)
    assert who(world.answers[-1]) == 2


def test_one_that_is_told_to_answer_by_when_says_nothing_for_longer() -> None:
    world = World()
    world.two.host.pause()
    world.send(MetadataRequest(topics=None), timeout_ms=700)
    world.advance(699)
    assert world.answers == []
    world.advance(1)
    assert str(world.answers[0]) == "two:9092: ApiVersions timed out"
    assert (
        str(world.ask(MetadataRequest(), timeout_ms=0))
        == "two:9092: request not sent: its deadline has passed"
    )


def test_what_is_due_in_a_pause_can_still_be_called_off_or_postponed() -> None:
    world = World()
    made = []
    host = world.two.host
    first = host.schedule(10, lambda: (made.append("first"), second.cancel(), third.postpone(50)))
    second = host.schedule(20, lambda: made.append("second"))
    third = host.schedule(30, lambda: made.append("third"))
    host.pause()
    world.advance(100)
    host.resume()
    world.advance(49)
    assert made == ["first"]
    world.advance(1)
    assert made == ["first", "third"]
    assert not first.postpone(10)


def test_a_process_that_pauses_goes_on_where_it_was() -> None:
    world = World()
    world.ask(MetadataRequest())
    world.two.host.pause()
    world.send(MetadataRequest(topics=None))
    world.advance(4_000)
    assert len(world.answers) == 1
    world.two.host.resume()
    world.advance(10)
    assert who(world.answers[1]) == 2
    world.two.host.pause()
    world.send(MetadataRequest(topics=None), timeout_ms=1_000)
    world.send(MetadataRequest(topics=None), timeout_ms=9_000)
    world.advance(1_100)
    # Answers come in their order: the one that is overdue takes the other with it.
    assert [str(answer) for answer in world.answers[2:]] == ["two:9092: request timed out"] * 2


def test_answers_of_one_purpose_come_in_their_order_and_hold_nobody_else_up() -> None:
    world = World()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    world.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    fetch = fetch_request("t")
    fetch.max_wait_ms = 300
    world.answers.clear()
    world.send(fetch, purpose="fetch-0", max_version=12)
    world.send(HeartbeatRequest(), purpose="fetch-0")
    world.send(MetadataRequest(topics=None), purpose="other")
    world.advance(20)
    # A request behind a fetch that waits ends its wait.
    assert [type(answer).__name__ for answer in world.answers] == [
        "FetchResponse",
        "HeartbeatResponse",
        "MetadataResponse",
    ]
    world.answers.clear()
    world.send(fetch, purpose="fetch-0", max_version=12)
    world.send(MetadataRequest(topics=None), purpose="other")
    world.advance(250)
    assert len(world.answers) == 1
    world.advance(100)
    assert isinstance(world.answers[1], FetchResponse)


@pytest.mark.parametrize("power", [False, True])
def test_a_death_ends_what_was_asked_and_the_next_life_answers(power: bool) -> None:
    world = World()
    world.ask(MetadataRequest())
    world.send(MetadataRequest(topics=None))
    world.two.die(power_failure=random.Random(1) if power else None)
    world.advance(10)
    assert [str(answer) for answer in world.answers[1:]] == (
        [] if power else ["two:9092: the peer reset the connection"]
    )
    world.advance(5_000)
    assert (
        str(world.answers[1])
        == f"two:9092: {'request timed out' if power else 'the peer reset the connection'}"
    )
    if power:
        assert str(world.ask(MetadataRequest())) == "two:9092: connection setup timed out"
    world.two.start()
    assert who(world.ask(MetadataRequest(topics=None))) == 2


def test_a_connection_from_before_a_loss_of_power_is_reset_when_it_is_used() -> None:
    world = World()
    world.ask(MetadataRequest())
    world.two.die(power_failure=random.Random(1))
    world.two.start()
    assert str(world.ask(MetadataRequest())) == "two:9092: the peer reset the connection"
    assert who(world.ask(MetadataRequest(topics=None))) == 2


def test_a_death_in_the_middle_of_a_write_is_the_death_of_that_node_alone() -> None:
    world = World()
    world.two.disk.dies_after = 0
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    why = world.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    assert str(why) == "two:9092: the peer reset the connection"
    assert not world.two.is_running
    assert who(world.ask(MetadataRequest(topics=None), ONE)) == 1
    world.two.start()
    assert who(world.ask(MetadataRequest(topics=None))) == 2


def test_a_wiped_node_starts_anew() -> None:
    world = World()
    before = world.ask(MetadataRequest(topics=None)).cluster_id
    world.two.die()
    world.two.wipe()
    world.two.start()
    world.ask(MetadataRequest())
    assert world.ask(MetadataRequest(topics=None)).cluster_id != before


@pytest.mark.parametrize("both_ways", [False, True])
def test_what_is_cut_off_waits_and_arrives_when_it_heals(both_ways: bool) -> None:
    world = World()
    world.ask(MetadataRequest())
    world.network.cut(world.two.host.name, world.one.host.name, both_ways=both_ways)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    world.send(CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    world.advance(3_000)
    assert len(world.answers) == 1
    assert (world.two.node.partition("t", 0) is None) is both_ways
    assert who(world.ask(MetadataRequest(topics=None), ONE, within_ms=10)) == 1
    world.network.heal()
    world.advance(2)
    assert world.answers[2].topics[0].error_code == 0
    assert world.notes == [
        "network cut between node 2 and node 1" if both_ways else "network cut from node 2 to node 1",
        "network restored",
    ]


def test_who_waits_too_long_for_the_network_gives_up_and_asks_again_over_another_connection() -> None:
    world = World()
    world.ask(MetadataRequest())
    world.network.isolate(world.two.host.name)
    assert str(world.ask(MetadataRequest(), timeout_ms=1_000)) == "two:9092: request timed out"
    assert str(world.ask(MetadataRequest(), timeout_ms=1_000)) == "two:9092: connection setup timed out"
    world.network.heal()
    assert who(world.ask(MetadataRequest(topics=None))) == 2
    assert len(world.network.connections) == 1


def test_clients_suffer_the_same() -> None:
    world = World()
    client = world.network.connect(TWO, "client")
    client.send(12, MetadataRequest(topics=None), world.answers.append)
    world.advance(10)
    assert who(world.answers.pop()) == 2
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    client.send(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000), world.answers.append)
    client.send(PRODUCE_VERSION, produce_request("t", acks=0), None)
    client.send(PRODUCE_VERSION, produce_request("t"), world.answers.append)
    world.advance(10)
    assert world.answers.pop().responses[0].partition_responses[0].base_offset == 1
    world.answers.clear()
    world.two.host.pause()
    client.send(12, MetadataRequest(topics=None), world.answers.append)
    world.two.die()
    world.advance(10)
    assert [str(answer) for answer in world.answers] == ["two:9092: the peer reset the connection"]
    assert client.close_reason == "two:9092: the peer reset the connection"
    client.send(12, MetadataRequest(topics=None), world.answers.append)
    world.advance(1)
    assert str(world.answers[1]) == client.close_reason
    refused = world.network.connect(TWO, "client")
    world.advance(10)
    assert refused.close_reason == "two:9092: connection refused"


def test_a_client_that_breaks_the_protocol_or_hangs_up_is_forgotten() -> None:
    world = World()
    client = world.network.connect(TWO, "client")
    client.send(9, MetadataRequest(topics=None), world.answers.append)
    client.close()
    assert [str(answer) for answer in world.answers] == ["closed"]
    stranger = world.network.connect(PeerAddress("two", 9093), "client")
    stranger.send(12, MetadataRequest(topics=None), world.answers.append)  # which a controller does not serve
    world.advance(10)
    assert stranger.close_reason == "two:9093: the peer closed the connection"
    assert not world.network.connections


def test_idle_connections_are_closed() -> None:
    world = World()
    world.ask(MetadataRequest())
    world.advance(590_000)
    assert len(world.network.connections) == 1
    world.advance(20_000)
    assert not world.network.connections
    assert who(world.ask(MetadataRequest(topics=None))) == 2


ROUGH = NetworkFaults(shortest_ms=0, longest_ms=40, slow=0.05, slowest_ms=900, breaks=0.05)


def history(seed: int) -> tuple[list[str], list[str], int]:
    """Forty records are produced over a bad network: what was told of them, what broke, and the log's end."""
    world = World(seed, ROUGH)
    world.network.faults = NO_FAULTS
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    world.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    world.network.faults = ROUGH
    world.answers.clear()
    for number in range(40):
        world.send(produce_request("t"), timeout_ms=1_000, max_version=PRODUCE_VERSION)
        world.advance(number % 7 * 20)
    world.advance(5_000)
    told = [
        str(answer)
        if isinstance(answer, PeerUnreachable)
        else f"at {answer.responses[0].partition_responses[0].base_offset}"
        for answer in world.answers
    ]
    partition = world.two.node.partition("t", 0)
    assert partition is not None
    return told, world.notes, partition.log.log_end_offset


def test_a_seed_decides_what_breaks() -> None:
    broken = doubtful = 0
    for seed in range(8):
        told, notes, end = history(seed)
        assert (told, notes, end) == history(seed)
        assert len(told) == 40
        done = [answer for answer in told if answer.startswith("at ")]
        # In the order in which they were sent, none of them twice.
        offsets = [int(answer.removeprefix("at ")) for answer in done]
        assert offsets == sorted(set(offsets))
        broken += any("breaks" in note for note in notes)
        doubtful += end > len(done)
    assert broken == 8
    assert doubtful, "no answer was lost to what had been done"
