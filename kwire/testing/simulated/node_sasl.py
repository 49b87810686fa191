"""Authentication between the nodes of a simulated cluster: SCRAM to brokers, PLAIN to controllers.

Clients use a listener without authentication. Sessions are short, so that nodes reauthenticate (KIP-368).
"""

from __future__ import annotations

import random
from typing import Final

from kwire.broker.controller.scram_parser import parse_credential
from kwire.wire.mechanisms import PLAIN, SCRAM_SHA_256
from kwire.wire.records.metadata import UserScramCredentialRecord

BROKERS_PORT: Final = 9094
REAUTHENTICATION_MS: Final = 2_500
"""The lifetime of a SASL session."""
LOGIN_MODULES: Final = "org.apache.kafka.common.security"


def initial_credentials(rng: random.Random) -> list[UserScramCredentialRecord]:
    """Return the SCRAM credential of brokers, as a record of the initial metadata."""
    return [parse_credential(f"{SCRAM_SHA_256}=[name=broker,password=of-brokers]", rng)]


def with_sasl(settings: dict[str, str]) -> dict[str, str]:
    """Return a node's configs with authentication added, for its listeners and its own requests."""
    host = f"n{settings['node.id']}"
    listeners = settings["listeners"].split(",")
    if "broker" in settings["process.roles"]:
        listeners.append(f"NODES://{host}:{BROKERS_PORT}")
    return {
        **settings,
        "listeners": ",".join(listeners),
        "inter.broker.listener.name": "NODES",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NODES:SASL_PLAINTEXT,"
        "CONTROLLER:SASL_PLAINTEXT",
        "listener.name.nodes.sasl.enabled.mechanisms": SCRAM_SHA_256,
        "listener.name.controller.sasl.enabled.mechanisms": PLAIN,
        "sasl.mechanism.inter.broker.protocol": SCRAM_SHA_256,
        "sasl.mechanism.controller.protocol": PLAIN,
        f"listener.name.nodes.{SCRAM_SHA_256.lower()}.sasl.jaas.config": (
            f'{LOGIN_MODULES}.scram.ScramLoginModule required username="broker" password="of-brokers";'
        ),
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{LOGIN_MODULES}.plain.PlainLoginModule required username="node" password="secret" '
            'user_node="secret";'
        ),
        "connections.max.reauth.ms": str(REAUTHENTICATION_MS),
    }
