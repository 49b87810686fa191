"""Endpoints: the listeners that a node registers, and the quorum's addresses in its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.config.listeners import META_ADDRESS, parse_listeners
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.host.host import PeerAddress
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID

PROTOCOL_IDS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def broker_endpoints(
    config: BrokerConfig, bound_ports: Mapping[str, int] = {}, host_name: str = ""
) -> list[EndpointImage]:
    """Return the advertised listeners of a broker. Port 0 is replaced by the bound port.

    `host_name` is the host name for listeners that are bound to all interfaces.
    """
    return [
        EndpointImage(
            listener.name,
            listener.host or host_name,
            listener.port or bound_ports.get(listener.name, 0),
            PROTOCOL_IDS[config.protocol(listener.name)],
        )
        for listener in config.advertised_endpoints()
    ]


def controller_endpoints(
    config: BrokerConfig, bound_ports: Mapping[str, int] = {}, host_name: str = ""
) -> list[EndpointImage]:
    """Return the controller listeners, in the order of controller.listener.names.

    The addresses are the advertised listeners (KIP-853), or else those in `listeners`. Port 0 is replaced by
    the bound port. `host_name` is the host name for listeners that are bound to all interfaces.
    """
    advertised = cast("list[str] | None", config.value("advertised.listeners")) or []
    found = {listener.name: listener for listener in config.controller_endpoints()}
    found |= {listener.name: listener for listener in parse_listeners("advertised.listeners", advertised)}
    return [
        EndpointImage(
            name,
            host_name if found[name].host in ("", META_ADDRESS) else found[name].host,
            found[name].port or bound_ports.get(name, 0),
            PROTOCOL_IDS[config.protocol(name)],
        )
        for name in config.controller_listener_names
        if name in found
    ]


class QuorumAddresses(NamedTuple):
    """The addresses of the quorum in a node's configuration."""

    voters: Mapping[int, PeerAddress]
    """The voters of controller.quorum.voters, by id. A dynamic quorum has its voters in the log instead."""
    servers: Sequence[PeerAddress]
    """The addresses at which this node looks for the leader."""


def quorum_addresses(config: BrokerConfig) -> QuorumAddresses:
    """Return the addresses of controller.quorum.voters and controller.quorum.bootstrap.servers.

    While a static quorum is made dynamic, both may be set. The bootstrap servers are then used, as in Kafka
    (KIP-853).
    """
    voters: dict[int, PeerAddress] = {}
    for voter in cast("list[str]", config.value("controller.quorum.voters")):
        node_id, _, address = voter.partition("@")
        voters[int(node_id)] = _peer_address(address)
    named = cast("list[str]", config.value("controller.quorum.bootstrap.servers"))
    servers = [_peer_address(address) for address in named]
    return QuorumAddresses(voters, servers or list(voters.values()))


def static_voters(config: BrokerConfig, endpoints: Sequence[EndpointImage] = ()) -> VoterSet:
    """Return the voters of controller.quorum.voters. They apply until the log has other voters.

    A controller without any configured address is the only voter, with `endpoints` as its endpoints.
    """
    addresses = quorum_addresses(config)
    listener = next(iter(config.controller_listener_names), "")
    if addresses.voters or addresses.servers or not config.is_controller:
        return VoterSet.of_addresses(addresses.voters, listener)
    own = tuple(VoterEndpoint(one.name, one.host, one.port) for one in endpoints)
    return VoterSet([Voter(ReplicaKey(config.node_id, ZERO_UUID), own)])


def _peer_address(text: str) -> PeerAddress:
    host, _, port = text.rpartition(":")
    return PeerAddress(host.strip("[]"), int(port))
