"""The simulated network with TLS between nodes and clients."""

from __future__ import annotations

import random
import ssl
from typing import Any

import pytest

from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.testing.network import Network, NetworkFaults
from kwire.testing.simulated import node_tls
from kwire.testing.simulated.node_tls import new_client_layer, with_tls
from kwire.testing.virtual_host import EventQueue
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

METADATA_VERSION = 12


def start_node(network: Network, number: int) -> VirtualNode:
    settings = {
        "node.id": str(number),
        "process.roles": "broker,controller",
        "log.dirs": "/data",
        "listeners": f"PLAINTEXT://n{number}:9092,CONTROLLER://n{number}:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{number}@n{number}:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    return VirtualNode(with_tls(settings), network=network, seed=number)


class TwoNodes:
    """Two single-node clusters whose listeners have TLS."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.network = Network(EventQueue(), rng, NetworkFaults(longest_ms=3))
        self.network.new_client_layer = new_client_layer()
        self.one, self.two = start_node(self.network, 1), start_node(self.network, 2)
        self.network.events.advance(200)  # until both nodes accept clients
        self.responses: list[Any] = []

    def request_of_client(self, request: MetadataRequest) -> Any:
        client = self.network.connect(PeerAddress("n1", 9092), "a client")
        client.send(METADATA_VERSION, request, self.responses.append)
        self.network.events.advance(500)
        client.close()
        self.network.events.advance(100)
        return self.responses.pop()

    def request_of_node(self) -> Any:
        """Return the response of the second node to the first one."""
        host = self.one.host
        host.peers.send(
            PeerAddress("n2", 9092),
            "test",
            MetadataRequest(topics=None),
            deadline_ms=host.internode_clock.monotonic_ms() + 2_000,
            on_response=self.responses.append,
        )
        self.network.events.advance(2_500)
        return self.responses.pop()


@pytest.mark.parametrize("rng", [None, random.Random(1), random.Random(2)])
def test_clients_and_nodes_exchange_requests(rng: random.Random | None) -> None:
    nodes = TwoNodes(rng)
    response = nodes.request_of_client(MetadataRequest(topics=None))
    assert response.brokers[0].node_id == 1
    assert nodes.request_of_node().brokers[0].node_id == 2
    assert [each.client for each in nodes.network.connections] == ["node 1"]


@pytest.mark.parametrize("seed", range(3))
def test_frames_are_larger_than_a_full_socket_takes(seed: int) -> None:
    nodes = TwoNodes(random.Random(seed))
    names = [f"{number:0200}" for number in range(5_000)]
    topics = [MetadataRequestTopic(name=name) for name in names]
    response = nodes.request_of_client(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
    assert [topic.name for topic in response.topics] == names


@pytest.mark.parametrize("seed", range(20))
def test_connection_that_breaks_fails_its_requests(seed: int) -> None:
    nodes = TwoNodes(random.Random(seed))
    client = nodes.network.connect(PeerAddress("n1", 9092), "a client")
    client.send(METADATA_VERSION, MetadataRequest(topics=None), nodes.responses.append)
    nodes.network.events.advance(seed)
    nodes.network.break_some(1.0)
    nodes.network.events.advance(100)
    (response,) = nodes.responses
    assert not isinstance(response, PeerUnreachable) or client.close_reason is not None
    assert not nodes.network.connections
    assert nodes.request_of_client(MetadataRequest(topics=None)).brokers[0].node_id == 1


def test_client_that_does_not_trust_the_nodes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = TwoNodes()
    monkeypatch.setattr(node_tls, "_client_context", ssl.create_default_context)
    nodes.network.new_client_layer = new_client_layer()
    response = nodes.request_of_client(MetadataRequest(topics=None))
    assert "the handshake failed: the certificate of the peer is not accepted" in str(response)
    assert not nodes.network.connections
