"""Where a node says it is reached, when it registers with the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.config import BrokerConfig
from broker.controller.image import EndpointImage

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


def controller_endpoints(config: BrokerConfig) -> list[EndpointImage]:
    """The listeners of the quorum."""
    return [
        EndpointImage(
            listener.name, listener.host, listener.port, PROTOCOL_IDS[config.protocol(listener.name)]
        )
        for listener in config.controller_endpoints()
    ]
