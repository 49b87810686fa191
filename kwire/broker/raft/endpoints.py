"""Where a node says it is reached, when it registers with the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.config.listeners import META_ADDRESS, parse_listeners
from kwire.broker.metadata.image import EndpointImage

PROTOCOL_IDS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def broker_endpoints(config: BrokerConfig, bound_ports: Mapping[str, int]) -> list[EndpointImage]:
    """The advertised listeners; port 0 is the one that the listener was bound to."""
    return [
        EndpointImage(
            listener.name,
            listener.host,
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
