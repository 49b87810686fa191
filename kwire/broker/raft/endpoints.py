"""Where a node says it is reached, when it registers, and where it looks for the quorum."""

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
    """The advertised listeners. Port 0 is the one that the listener was bound to.

    `host_name` is the host where none is named: that of a listener on every interface.
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
    """Where the listeners of the quorum are reached, in the order of controller.listener.names.

    As advertised (KIP-853), or else as in listeners. Port 0 is the one that the listener was bound to, and
    `host_name` is the host where that is every interface.
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
    """Where the configuration says that the quorum is."""

    voters: Mapping[int, PeerAddress]
    """By their ids, where controller.quorum.voters names them: then the log does not."""
    servers: Sequence[PeerAddress]
    """Whom to ask who leads."""


def quorum_addresses(config: BrokerConfig) -> QuorumAddresses:
    """What controller.quorum.voters and controller.quorum.bootstrap.servers name.

    Both may be set while a quorum becomes dynamic: the latter are asked then, as Kafka does (KIP-853).
    """
    voters: dict[int, PeerAddress] = {}
    for voter in cast("list[str]", config.value("controller.quorum.voters")):
        node_id, _, address = voter.partition("@")
        voters[int(node_id)] = _peer_address(address)
    named = cast("list[str]", config.value("controller.quorum.bootstrap.servers"))
    servers = [_peer_address(address) for address in named]
    return QuorumAddresses(voters, servers or list(voters.values()))


def static_voters(config: BrokerConfig, endpoints: Sequence[EndpointImage] = ()) -> VoterSet:
    """Who votes where no log says it: those of controller.quorum.voters.

    Where nobody is named to be found, a controller is alone; `endpoints` tell where it is reached.
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
