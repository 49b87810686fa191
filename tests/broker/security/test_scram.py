"""SCRAM against the test vectors of its RFCs, and kwire's client against kwire's server."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from collections.abc import Mapping

import pytest

from kwire.broker.security.principal import Principal
from kwire.broker.security.sasl import AuthenticationFailed
from kwire.broker.security.scram import ScramClient, ScramServer
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS, ScramMechanism
from kwire.broker.security.users import ScramCredential, TokenCredential
from kwire.wire.errors import WireError

SHA_1 = ScramMechanism("SCRAM-SHA-1", 0, "sha1")
SHA_256, SHA_512 = SCRAM_MECHANISMS["SCRAM-SHA-256"], SCRAM_MECHANISMS["SCRAM-SHA-512"]

RFC_5802 = (
    SHA_1,
    "user",
    "pencil",
    "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    SHA_256,
    "user",
    "pencil",
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


class FixedUsers:
    """Users with given credentials."""

    def __init__(
        self,
        credentials: Mapping[str, ScramCredential] | None = None,
        tokens: Mapping[str, TokenCredential] | None = None,
    ) -> None:
        self.credentials = credentials or {}
        self.tokens = tokens or {}

    def scram_credential(self, mechanism: str, name: str) -> ScramCredential | None:
        return self.credentials.get(name)

    def token(self, mechanism: str, token_id: str) -> TokenCredential | None:
        return self.tokens.get(token_id)


@pytest.mark.parametrize("vector", [RFC_5802, RFC_7677], ids=["RFC 5802", "RFC 7677"])
def test_client_and_server_send_the_messages_of_the_rfc(
    vector: tuple[ScramMechanism, str, str, str, str, str, str],
) -> None:
    mechanism, name, password, first, server_first, final, signature = vector
    client_nonce = first.rpartition("r=")[2]
    nonce, salt, _ = server_first.split(",")
    client = ScramClient(mechanism, name, password, client_nonce)
    assert client.evaluate(b"") == first.encode()
    assert client.evaluate(server_first.encode()) == final.encode()
    assert not client.is_complete
    assert client.evaluate(signature.encode()) is None
    assert client.is_complete
    assert client.mechanism == mechanism.name

    salted = mechanism.salt_password(password, b64decode(salt[2:]), 4096)
    credential = mechanism.credential(b64decode(salt[2:]), 4096, salted)
    server = ScramServer(mechanism, FixedUsers({name: credential}), nonce[2:].removeprefix(client_nonce))
    assert server.evaluate(first.encode()) == server_first.encode()
    assert server.outcome is None
    assert server.evaluate(final.encode()) == signature.encode()
    assert server.outcome is not None
    assert server.outcome.principal == Principal("User", name)
    assert server.outcome.expires_ms is None


def exchange(client: ScramClient, server: ScramServer) -> None:
    response = client.evaluate(b"")
    while response is not None:
        response = client.evaluate(server.evaluate(response))


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512], ids=lambda one: one.name)
@pytest.mark.parametrize("name", ["alice", "a=b,c", "=2C", "=3D=2C,", " "])
def test_a_correct_password_authenticates_and_a_wrong_one_fails(mechanism: ScramMechanism, name: str) -> None:
    rng = random.Random(name)
    users = FixedUsers({name: mechanism.derive_credential("secret \N{EURO SIGN}", rng, 8192)})
    client = ScramClient(mechanism, name, "secret \N{EURO SIGN}", "c")
    server = ScramServer(mechanism, users, "s")
    exchange(client, server)
    assert client.is_complete
    assert server.outcome is not None
    assert server.outcome.principal == Principal("User", name)

    wrong = ScramServer(mechanism, users, "s")
    with pytest.raises(AuthenticationFailed, match="Invalid client credentials") as failed:
        exchange(ScramClient(mechanism, name, "secret", "c"), wrong)
    assert failed.value.client_message is None
    assert wrong.outcome is None


def test_scram_extensions_are_ignored() -> None:
    users = FixedUsers({"user": SHA_256.derive_credential("secret", random.Random(1))})
    client, server = ScramClient(SHA_256, "user", "secret", "c"), ScramServer(SHA_256, users, "s")
    first = client.evaluate(b"")
    assert first is not None
    final = client.evaluate(server.evaluate(first.replace(b"n,,", b"n,,m=must,")))
    assert final is not None
    client.evaluate(server.evaluate(final.replace(b",p=", b",x=y,p=")))
    assert client.is_complete


def test_a_token_authenticates_as_its_owner() -> None:
    rng = random.Random(1)
    token = TokenCredential(Principal("User", "owner"), 5000, SHA_256.derive_credential("aG1hYw==", rng))
    users = FixedUsers({"id": SHA_256.derive_credential("mine", rng)}, {"id": token})
    server = ScramServer(SHA_256, users, "s")
    exchange(ScramClient(SHA_256, "id", "aG1hYw==", "c", is_token=True), server)
    assert server.outcome is not None
    assert server.outcome.principal == Principal("User", "owner", token_authenticated=True)
    assert server.outcome.expires_ms == 5000
    with pytest.raises(AuthenticationFailed, match="Invalid client credentials"):
        exchange(ScramClient(SHA_256, "id", "aG1hYw==", "c"), ScramServer(SHA_256, users, "s"))
    with pytest.raises(AuthenticationFailed, match="Invalid tokenId : other") as failed:
        exchange(
            ScramClient(SHA_256, "other", "aG1hYw==", "c", is_token=True), ScramServer(SHA_256, users, "s")
        )
    assert failed.value.client_message is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("n,,n=nobody,r=x", "Authentication failed: Invalid user credentials"),
        ("y,,n=user,r=x", "Invalid SCRAM client first message format"),
        ("p=tls-unique,,n=user,r=x", "Invalid SCRAM client first message format"),
        ("n,,n=us=er,r=x", "Invalid SCRAM client first message format"),
        ("n,,n=user,r=", "Invalid SCRAM client first message format"),
        ("n,,n=\N{EURO SIGN},r=x", "Invalid SCRAM client first message format"),
        ("n,,n=user,r=x,tokenauth", "Invalid SCRAM client first message format"),
        ("n,,n=user,r=x\n", "Invalid SCRAM client first message format"),
        ("", "Invalid SCRAM client first message format"),
    ],
)
def test_an_invalid_client_first_message_fails(message: str, reason: str) -> None:
    rng = random.Random(2)
    server = ScramServer(SHA_256, FixedUsers({"user": SHA_256.derive_credential("pencil", rng)}), "s")
    with pytest.raises(AuthenticationFailed) as failed:
        server.evaluate(message.encode())
    assert str(failed.value) == reason
    assert failed.value.client_message is None
    with pytest.raises(AuthenticationFailed, match="already complete or had failed"):
        server.evaluate(b"n,,n=user,r=x")


def test_an_authorization_id_must_be_the_username() -> None:
    rng = random.Random(3)
    users = FixedUsers({"user": SHA_256.derive_credential("pencil", rng)})
    assert ScramServer(SHA_256, users, "s").evaluate(b"n,a=user,n=user,r=x").startswith(b"r=xs")
    with pytest.raises(AuthenticationFailed) as failed:
        ScramServer(SHA_256, users, "s").evaluate(b"n,a=admin,n=user,r=x")
    assert failed.value.client_message == (
        "Authentication failed: Client requested an authorization id that is different from username"
    )


def test_a_credential_with_too_few_iterations_fails() -> None:
    rng = random.Random(4)
    users = FixedUsers({"user": SHA_256.derive_credential("pencil", rng, 4095)})
    with pytest.raises(AuthenticationFailed, match="Iterations 4095 is less than the minimum 4096"):
        ScramServer(SHA_256, users, "s").evaluate(b"n,,n=user,r=x")


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        ("c=biws,r=x,p=AAAA", "Invalid client nonce"),
        ("c=biws,r=xs,p=" + b64encode(bytes(32)).decode(), "Invalid client credentials"),
        ("c=biws,r=xs", "Invalid SCRAM client final message format"),
        ("c=biws,r=xs,p=A", "Invalid SCRAM client final message format"),
    ],
)
def test_an_invalid_client_final_message_fails(final: str, reason: str) -> None:
    rng = random.Random(5)
    server = ScramServer(SHA_256, FixedUsers({"user": SHA_256.derive_credential("pencil", rng)}), "s")
    assert server.evaluate(b"n,,n=user,r=x").startswith(b"r=xs,s=")
    with pytest.raises(AuthenticationFailed, match=reason) as failed:
        server.evaluate(final.encode())
    assert failed.value.client_message is None
    assert server.outcome is None


def test_only_one_proof_is_accepted_in_an_exchange() -> None:
    users = FixedUsers({"user": SHA_256.derive_credential("pencil", random.Random(9))})
    client, server = ScramClient(SHA_256, "user", "pencil", "x"), ScramServer(SHA_256, users, "s")
    proof = client.evaluate(server.evaluate(client.evaluate(b"") or b"")) or b""
    wrong = proof[:-44] + b64encode(bytes(32))
    with pytest.raises(AuthenticationFailed, match="Invalid client credentials"):
        server.evaluate(wrong)
    for guess in (wrong, proof):
        with pytest.raises(
            AuthenticationFailed, match="the SCRAM exchange was already complete or had failed"
        ):
            server.evaluate(guess)
        assert server.outcome is None


def test_a_proof_of_the_wrong_length_is_a_wire_error() -> None:
    users = FixedUsers({"user": SHA_256.derive_credential("pencil", random.Random(8))})
    server = ScramServer(SHA_256, users, "s")
    server.evaluate(b"n,,n=user,r=x")
    with pytest.raises(WireError):
        server.evaluate(b"c=biws,r=xs,p=AAAA")
    assert server.outcome is None


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        ("r=other,s=AAAA,i=4096", "Invalid server nonce: does not start with client nonce"),
        ("r=cy,s=AAAA,i=4095", "Requested iterations 4095 is less than the minimum 4096"),
        ("r=cy,s=AAAA,i=1000001", "Requested iterations 1000001 is more than the maximum 1000000"),
        ("r=cy,s=AAAA,i=9999999999", "Requested iterations 9999999999 is more than the maximum 1000000"),
        pytest.param(
            "r=cy,s=AAAA,i=" + "9" * 5_000, "Invalid SCRAM server first message format", id="5000 digits"
        ),
        ("r=cy,s=AAAA,i=x", "Invalid SCRAM server first message format"),
        ("e=other-error", "Invalid SCRAM server first message format"),
    ],
)
def test_client_rejects_an_invalid_server_first_message(server_first: str, reason: str) -> None:
    client = ScramClient(SHA_256, "user", "pencil", "c")
    assert client.evaluate(b"") == b"n,,n=user,r=c"
    with pytest.raises(AuthenticationFailed, match=reason):
        client.evaluate(server_first.encode())


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("e=invalid-proof", "Sasl authentication using SCRAM-SHA-256 failed with error: invalid-proof"),
        ("v=" + b64encode(bytes(32)).decode(), "Invalid server signature in server final message"),
        ("v=", "Invalid server signature in server final message"),
        ("", "Invalid SCRAM server final message format"),
    ],
)
def test_client_rejects_a_server_without_the_password(last: str, reason: str) -> None:
    client = ScramClient(SHA_256, "user", "pencil", "c")
    assert client.evaluate(b"") == b"n,,n=user,r=c"
    assert client.evaluate(b"r=cy,s=AAAA,i=4096")
    with pytest.raises(AuthenticationFailed, match=reason):
        client.evaluate(last.encode())
    assert not client.is_complete


def test_repr_of_a_credential_hides_its_values() -> None:
    assert repr(ScramCredential(b"salt", b"stored", b"server", 4096)) == "ScramCredential([hidden])"
