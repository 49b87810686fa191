"""SASL/PLAIN: successful authentications and the errors of failed ones."""

from __future__ import annotations

import pytest

from kwire.broker.security.plain import PlainClient, PlainServer
from kwire.broker.security.principal import Principal
from kwire.broker.security.sasl import AuthenticationFailed

PASSWORDS = {"tim": "tanstaaftanstaaf", "Kurt": "xipj3plmq", "e": "\N{EURO SIGN}", "empty": ""}


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("\0tim\0tanstaaftanstaaf", "tim"),  # RFC 4616, section 4
        ("Kurt\0Kurt\0xipj3plmq", "Kurt"),
        ("\0e\0\N{EURO SIGN}", "e"),
    ],
)
def test_a_correct_password_authenticates(message: str, name: str) -> None:
    server = PlainServer(PASSWORDS)
    assert server.outcome is None
    assert server.evaluate(message.encode()) == b""
    assert server.outcome == (Principal("User", name), None)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0tim", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0tim\0x\0y\0z", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0tim\0", "Authentication failed: password not specified"),
        (b"\0empty\0", "Authentication failed: password not specified"),
        (b"\0tim\0x", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0x", "Authentication failed: Invalid username or password"),
        (b"\0tim\0\xff", "Authentication failed: Invalid username or password"),
        (
            b"Ursel\0Kurt\0xipj3plmq",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"Ursel\0Kurt\0x", "Authentication failed: Invalid username or password"),
    ],
)
def test_an_invalid_message_fails_authentication(message: bytes, error: str) -> None:
    server = PlainServer(PASSWORDS)
    with pytest.raises(AuthenticationFailed) as failed:
        server.evaluate(message)
    assert (str(failed.value), failed.value.client_message) == (error, error)
    assert server.outcome is None


def test_a_client_sends_its_password_once() -> None:
    client, server = PlainClient("tim", "tanstaaftanstaaf"), PlainServer(PASSWORDS)
    assert client.mechanism == "PLAIN"
    response = client.evaluate(b"")
    assert response == b"\0tim\0tanstaaftanstaaf"
    assert client.evaluate(server.evaluate(response)) is None
    assert client.is_complete
