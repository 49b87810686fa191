"""SASL authentication of client connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kwire.broker.security.settings import Credentials
from kwire.client.connection import Connection
from kwire.client.errors import Disconnected, SecurityMismatch
from kwire.client.security import PLAINTEXT, Security
from kwire.testing import Broker, ClientConfig
from kwire.testing.users import CLIENT_LISTENER
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse


class Clock:
    """A clock that a test advances."""

    now = 0.0


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    listener = f"listener.name.{CLIENT_LISTENER.lower()}"
    settings = {
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        f"{listener}.plain.connections.max.reauth.ms": "100000",
    }
    with Broker(settings, users={"alice": "alice-secret"}) as broker:
        yield broker


def connection_to(servers: str, security: Security, clock: Clock | None = None) -> Connection:
    host, _, port = servers.rpartition(":")
    if clock is None:
        return Connection(host, int(port), "test", 5, security)
    return Connection(host, int(port), "test", 5, security, now=lambda: clock.now)


def security_of(login: ClientConfig) -> Security:
    return Security(None, Credentials(login.mechanism, login.username, login.password, login.is_token))


def send(connection: Connection) -> int:
    return len(connection.send(MetadataRequest(topics=[]), MetadataResponse).brokers)


def test_failed_authentication_raises_with_the_reason(secured: Broker) -> None:
    login = secured.client_config()._replace(password="guessed")
    with pytest.raises(
        ApiError, match=r"user alice at .*: Authentication failed: Invalid username"
    ) as raised:
        connection_to(secured.bootstrap_servers, security_of(login))
    assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "guessed" not in str(raised.value)


def test_disabled_mechanism_raises_with_the_enabled_ones(secured: Broker) -> None:
    login = secured.client_config(mechanism="SCRAM-SHA-512")
    with pytest.raises(
        SecurityMismatch, match=r"does not support sasl.mechanism=SCRAM-SHA-512, but"
    ) as raised:
        connection_to(secured.bootstrap_servers, security_of(login))
    assert "PLAIN" in str(raised.value)
    assert "SCRAM-SHA-256" in str(raised.value)


def test_plaintext_client_at_a_sasl_listener_raises_security_mismatch(secured: Broker) -> None:
    mismatch = pytest.raises(SecurityMismatch, match=r"requires authentication with .*SASL_PLAINTEXT, sasl.")
    # ApiVersions is answered before authentication.
    with connection_to(secured.bootstrap_servers, PLAINTEXT) as connection, mismatch:
        send(connection)


def test_sasl_client_at_a_plaintext_listener_raises_security_mismatch() -> None:
    login = ClientConfig("", "alice", "alice-secret")
    with (
        Broker() as broker,
        pytest.raises(SecurityMismatch, match=r"requires no authentication: use security.protocol=PLAINTEXT"),
    ):
        connection_to(broker.bootstrap_servers, security_of(login))


def test_connection_reauthenticates_before_the_session_ends(secured: Broker) -> None:
    clock = Clock()
    with connection_to(secured.bootstrap_servers, security_of(secured.client_config()), clock) as connection:
        assert send(connection) == 1
        before = len(secured.requests.find("SaslAuthenticate", client_id="test"))
        clock.now = 80
        assert send(connection) == 1
        assert len(secured.requests.find("SaslAuthenticate", client_id="test")) == before
        for times, clock.now in ((1, 86), (1, 100)):
            assert send(connection) == 1
            assert len(secured.requests.find("SaslAuthenticate", client_id="test")) == before + times


def test_short_session_is_not_reauthenticated_too_early(secured: Broker) -> None:
    token, clock = secured.create_token(max_lifetime_ms=1_000), Clock()
    with connection_to(secured.bootstrap_servers, security_of(token), clock) as connection:
        clock.now = 0.9
        assert send(connection) == 1
        secured.advance(1_000)
        with pytest.raises(Disconnected, match="closed the connection"):
            send(connection)


def test_expired_token_raises(secured: Broker) -> None:
    token = secured.create_token(max_lifetime_ms=1_000)
    with connection_to(secured.bootstrap_servers, security_of(token)) as connection:
        assert send(connection) == 1
    secured.advance(1_001)
    with pytest.raises(ApiError, match=f"DELEGATION_TOKEN_EXPIRED: token {token.username} at "):
        connection_to(secured.bootstrap_servers, security_of(token))
