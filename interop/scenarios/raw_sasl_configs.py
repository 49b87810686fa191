"""SASL configurations of a running broker: their descriptions, and accepted and rejected changes (KIP-226).

The SASL settings of a listener in use cannot change. DescribeConfigs never returns passwords.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from interop.brokers import Broker, free_port
from interop.raw import comparable
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_config_values import BROKER, SET, change, entries

LOGIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_a="b";'
)
OWN = "listener.name.secure."
FIRST = {
    "sasl.jaas.config": LOGIN,
    "sasl.server.max.receive.size": "9999",
    f"{OWN}sasl.enabled.mechanisms": "PLAIN",
    f"{OWN}plain.sasl.jaas.config": LOGIN,
    f"{OWN}plain.connections.max.reauth.ms": "5000",
    f"{OWN}connections.max.reauth.ms": "7000",
    f"{OWN}sasl.server.max.receive.size": "8888",
}
MORE = {
    "listener.name.more.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    **{
        f"listener.name.more.{mechanism}.sasl.jaas.config": LOGIN
        for mechanism in ("plain", "scram-sha-256", "scram-sha-512")
    },
}
NAMES = [
    *FIRST,
    *MORE,
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "connections.max.reauth.ms",
]
CHANGES: list[tuple[str, dict[str, str]]] = [
    ("1", {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}),
    ("1", {"sasl.enabled.mechanisms": "UNHEARD-OF"}),
    ("1", {"sasl.enabled.mechanisms": ""}),
    ("", {"sasl.enabled.mechanisms": "PLAIN"}),
    ("1", {f"{OWN}sasl.enabled.mechanisms": "SCRAM-SHA-256"}),
    ("1", {f"{OWN}plain.sasl.jaas.config": "x"}),
    ("", {f"{OWN}plain.sasl.jaas.config": LOGIN}),
    ("1", {f"{OWN}plain.connections.max.reauth.ms": "100"}),
    ("1", {f"{OWN}plain.connections.max.reauth.ms": "x"}),
    ("1", {"connections.max.reauth.ms": "100"}),
    ("1", {"sasl.server.max.receive.size": "100"}),
    # After this change, Kafka compares the listeners, and notices the values that were stored above.
    ("1", {"sasl.jaas.config": LOGIN}),
    ("1", {"sasl.mechanism.inter.broker.protocol": "PLAIN"}),
    ("1", {"sasl.enabled.mechanisms": "PLAIN", f"{OWN}sasl.enabled.mechanisms": "PLAIN"}),
]
SECONDS = 10.0


@contextmanager
def broker_with_sasl_listener(broker: Broker) -> Iterator[tuple[Broker, RawClient]]:
    """Start a broker of the same kind that has a SASL listener. Yield the broker and a plaintext client."""
    own = type(broker)(FIRST)
    own.properties["listeners"] += f",SECURE://127.0.0.1:{free_port()}"
    own.properties["listener.security.protocol.map"] += ",SECURE:SASL_PLAINTEXT,MORE:SASL_PLAINTEXT"
    own.start()
    try:
        with RawClient(own.bootstrap) as client:
            yield own, client
    finally:
        own.discard()


def described_configs(client: RawClient) -> list[Any]:
    """Describe the keys in `NAMES`, sorted by name."""
    return sorted(entries(client, BROKER, "1", NAMES), key=lambda entry: str(entry["Name"]))


@scenario(seconds=90)
def altered_configs(broker: Broker) -> Any:
    """Send each change in `CHANGES`, and record the response."""
    with broker_with_sasl_listener(broker) as (_, client):
        seen: dict[str, Any] = {"first": described_configs(client)}
        for where, settings in CHANGES:
            created = [(name, SET, value) for name, value in settings.items()]
            label = f"{where}: {', '.join(f'{name}={value}' for name, value in settings.items())}"
            seen[label] = change(client, BROKER, where, created, check=False)
        deadline = time.monotonic() + SECONDS
        while "100" not in [entry["Value"] for entry in described_configs(client)]:
            assert time.monotonic() < deadline, "never applied"
            time.sleep(0.1)
        seen["then"] = described_configs(client)
        return seen


@scenario(seconds=90)
def added_listener(broker: Broker) -> Any:
    """Add a SASL listener to a running broker and request its mechanisms."""
    with broker_with_sasl_listener(broker) as (own, client):
        port = free_port()
        settings = {"listeners": f"{own.properties['listeners']},MORE://127.0.0.1:{port}", **MORE}
        created = [(name, SET, value) for name, value in settings.items()]
        seen: dict[str, Any] = {"answer": change(client, BROKER, "1", created, check=False)}
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                with RawClient(f"127.0.0.1:{port}") as newcomer:
                    seen["mechanisms"] = comparable(newcomer.call("SaslHandshake", 1, Mechanism="X"))
                break
            except OSError:
                assert time.monotonic() < deadline, "the listener was not added"
                time.sleep(0.1)
        return seen
