"""The clients of kafka-python and aiokafka beside the server's side of each mechanism."""

from __future__ import annotations

import random
from base64 import b64encode
from typing import Any

import pytest

from kwire.broker.config.sasl import ListenerSasl
from kwire.broker.security.mechanisms import sasl_server
from kwire.broker.security.principal import Principal
from kwire.broker.security.sasl import AuthenticationFailed, SaslServer
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from tests.broker.security.test_scram import Known
from tests.wire.kafka_json import reference

MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS)


def server_of(mechanism: str) -> SaslServer:
    rng = random.Random(mechanism)
    security = ListenerSasl(MECHANISMS, {"alice": "secret"}, 1 << 19, {})
    scram = SCRAM_MECHANISMS.get(mechanism)
    users = Known({"alice": scram.derive_credential("secret", rng)} if scram is not None else {})
    return sasl_server(mechanism, security, users, rng)


def by_kafka_python(mechanism: str, password: str, server: SaslServer) -> None:
    module, name = ("plain", "Plain") if mechanism == "PLAIN" else ("scram", "Scram")
    client = getattr(reference(f"kafka.net.sasl.{module}"), f"SaslMechanism{name}")(
        sasl_mechanism=mechanism, sasl_plain_username="alice", sasl_plain_password=password
    )
    while not client.is_done():
        client.receive(server.evaluate(client.auth_bytes()))
    assert client.is_authenticated()


def by_aiokafka(mechanism: str, password: str, server: SaslServer) -> None:
    aiokafka = reference("aiokafka.conn")
    who = {"loop": None, "sasl_plain_username": "alice", "sasl_plain_password": password}
    if mechanism == "PLAIN":
        client = aiokafka.SaslPlainAuthenticator(**who)
    else:
        client = aiokafka.ScramAuthenticator(**who, sasl_mechanism=mechanism)
    payload = None
    while (step := client._step(payload)) is not None:
        payload = server.evaluate(step[0])


@pytest.mark.parametrize("exchange", [by_kafka_python, by_aiokafka])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_strangers_come_by_their_password(mechanism: str, exchange: Any) -> None:
    server = server_of(mechanism)
    exchange(mechanism, "secret", server)
    assert server.outcome is not None
    assert server.outcome.principal == Principal("User", "alice")
    other = server_of(mechanism)
    with pytest.raises(AuthenticationFailed):
        exchange(mechanism, "Secret", other)
    assert other.outcome is None


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_strangers_do_not_believe_a_server_that_does_not_know_the_password(mechanism: str) -> None:
    class Pretending:
        """A server that lets everyone in."""

        def __init__(self) -> None:
            self.server = server_of(mechanism)

        def evaluate(self, response: bytes) -> bytes:
            return self.server.evaluate(response) if response[:1] == b"n" else b"v=" + b64encode(bytes(32))

    with pytest.raises(ValueError, match="wrong signature"):
        by_kafka_python(mechanism, "secret", Pretending())  # type: ignore[arg-type]
