"""The clients of kafka-python and aiokafka against kwire's server side of each SASL mechanism."""

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
from tests.broker.security.test_scram import FixedUsers
from tests.wire.kafka_json import reference

MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS)


def make_server(mechanism: str) -> SaslServer:
    rng = random.Random(mechanism)
    security = ListenerSasl(MECHANISMS, {"alice": "secret"}, 1 << 19, {})
    scram = SCRAM_MECHANISMS.get(mechanism)
    users = FixedUsers({"alice": scram.derive_credential("secret", rng)} if scram is not None else {})
    return sasl_server(mechanism, security, users, rng)


def authenticate_kafka_python(mechanism: str, password: str, server: SaslServer) -> None:
    module, name = ("plain", "Plain") if mechanism == "PLAIN" else ("scram", "Scram")
    client = getattr(reference(f"kafka.net.sasl.{module}"), f"SaslMechanism{name}")(
        sasl_mechanism=mechanism, sasl_plain_username="alice", sasl_plain_password=password
    )
    while not client.is_done():
        client.receive(server.evaluate(client.auth_bytes()))
    assert client.is_authenticated()


def authenticate_aiokafka(mechanism: str, password: str, server: SaslServer) -> None:
    aiokafka = reference("aiokafka.conn")
    credentials = {"loop": None, "sasl_plain_username": "alice", "sasl_plain_password": password}
    if mechanism == "PLAIN":
        client = aiokafka.SaslPlainAuthenticator(**credentials)
    else:
        client = aiokafka.ScramAuthenticator(**credentials, sasl_mechanism=mechanism)
    payload = None
    while (step := client._step(payload)) is not None:
        payload = server.evaluate(step[0])


@pytest.mark.parametrize("exchange", [authenticate_kafka_python, authenticate_aiokafka])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_third_party_clients_authenticate(mechanism: str, exchange: Any) -> None:
    server = make_server(mechanism)
    exchange(mechanism, "secret", server)
    assert server.outcome is not None
    assert server.outcome.principal == Principal("User", "alice")
    other = make_server(mechanism)
    with pytest.raises(AuthenticationFailed):
        exchange(mechanism, "Secret", other)
    assert other.outcome is None


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_kafka_python_rejects_a_server_without_the_password(mechanism: str) -> None:
    class ImpostorServer:
        """A server that accepts any password."""

        def __init__(self) -> None:
            self.server = make_server(mechanism)

        def evaluate(self, response: bytes) -> bytes:
            return self.server.evaluate(response) if response[:1] == b"n" else b"v=" + b64encode(bytes(32))

    with pytest.raises(ValueError, match="wrong signature"):
        authenticate_kafka_python(mechanism, "secret", ImpostorServer())  # type: ignore[arg-type]
