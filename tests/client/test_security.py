"""Security settings from client properties."""

from __future__ import annotations

import pytest

from kwire import testing
from kwire.broker.security.principal import Principal
from kwire.broker.security.settings import Credentials
from kwire.cli.shared.client_settings import ClientSettings
from kwire.client.security import PLAINTEXT, jaas_config, parse_security
from kwire.client.tokens import Token

BY_PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_no_properties_mean_plaintext() -> None:
    assert parse_security({}) == PLAINTEXT
    assert parse_security({"security.protocol": "plaintext", "sasl.mechanism": "GSSAPI"}) == PLAINTEXT
    assert PLAINTEXT.protocol == "PLAINTEXT"


@pytest.mark.parametrize("is_token", [False, True])
@pytest.mark.parametrize(("username", "password"), [("alice", "alice-secret"), ("a\\ b", "\"'\\n;ü")])
def test_jaas_config_round_trip(username: str, password: str, is_token: bool) -> None:
    text = jaas_config("SCRAM-SHA-512", username, password, is_token=is_token)
    properties = {**BY_PLAIN, "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": text}
    credentials = Credentials("SCRAM-SHA-512", username, password, is_token)
    assert parse_security(properties).credentials == credentials
    assert parse_security(properties).protocol == "SASL_PLAINTEXT"
    assert parse_security({**properties, "security.protocol": "SASL_SSL"}).protocol == "SASL_SSL"


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"security.protocol": "TLS"},
            "security.protocol=TLS: expected one of PLAINTEXT, SASL_PLAINTEXT, SSL, ",
        ),
        (
            {"sasl.mechanism": "OAUTHBEARER"},
            "sasl.mechanism=OAUTHBEARER is not supported: use one of PLAIN, ",
        ),
        (
            {},
            "sasl.jaas.config is missing: add credentials, like sasl.jaas.config=.*PlainLoginModule",
        ),
        ({"sasl.jaas.config": "x required"}, "^sasl.jaas.config: JAAS config entry not terminated"),
        ({"sasl.jaas.config": f"{MODULE} required;"}, "sasl.mechanism=PLAIN needs .*PlainLoginModule$"),
        ({"sasl.jaas.config": jaas_config("PLAIN", "alice", "")}, "needs a username and a password"),
        ({"sasl.login.class": "x"}, "sasl.login.class is not supported"),
    ],
)
def test_invalid_security_properties_raise(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_security({**BY_PLAIN, **properties})


def test_error_messages_contain_no_password() -> None:
    with pytest.raises(ValueError, match="=PLAIN needs") as raised:
        parse_security(
            {**BY_PLAIN, "sasl.jaas.config": jaas_config("SCRAM-SHA-256", "alice", "alice-secret")}
        )
    assert "alice-secret" not in str(raised.value)


def test_repr_hides_credentials() -> None:
    alice = Principal("User", "alice")
    assert repr(Token("t", b"proof", alice, alice, (), 1, 2, 3)) == (
        "Token(t, [hidden], owner=User:alice, expires_ms=2)"
    )
    assert repr(testing.Token("t", "proof", "alice", 2, 3)) == "Token(t, [hidden], owner=alice, expires_ms=2)"
    assert repr(testing.ClientConfig("a:1", "alice", "proof")) == "ClientConfig(a:1, alice, [hidden], PLAIN)"
    settings = ClientSettings((("a", 1),), properties={"sasl.jaas.config": "proof"})
    assert "proof" not in repr(settings)
