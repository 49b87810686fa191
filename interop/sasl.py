"""A broker with a SASL listener in addition to its plaintext listener, and hand-written SASL clients."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from interop.brokers import Broker, free_port
from interop.raw import comparable
from interop.raw_client import RawClient
from interop.wire import decode_response, encode_request

Settings = Mapping[str, str]

USERS = {"alice": "alice's secret", "bob": "bob's secret"}
PLAIN, SCRAM_256, SCRAM_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
HASHES = {SCRAM_256: "sha256", SCRAM_512: "sha512"}
SCRAMS = {SCRAM_256: 1, SCRAM_512: 2}
"""SCRAM mechanisms, and the number of each mechanism in AlterUserScramCredentials."""
PREFIX = "listener.name.secured."
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
DELAY_MS = 1_000
"""`connection.failed.authentication.delay.ms`: a delayed response differs clearly from an immediate one."""
LATE_S = 0.6


class Secured:
    """A broker with a listener named SECURED, on which clients must authenticate with SASL."""

    def __init__(
        self, like: Broker, mechanisms: tuple[str, ...] = (PLAIN,), overrides: Settings | None = None
    ) -> None:
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        settings = {
            "connection.failed.authentication.delay.ms": str(DELAY_MS),
            f"{PREFIX}sasl.enabled.mechanisms": ",".join(mechanisms),
            **{f"{PREFIX}{one.lower()}.sasl.jaas.config": jaas(one) for one in mechanisms},
            **(overrides or {}),
        }
        self.broker = type(like)(settings)
        properties = self.broker.properties
        for key in ("listeners", "advertised.listeners"):
            properties[key] += f",SECURED://{self.bootstrap}"
        properties["listener.security.protocol.map"] += ",SECURED:SASL_PLAINTEXT"


def jaas(mechanism: str) -> str:
    """Return the JAAS configuration of the server for a mechanism."""
    if mechanism != PLAIN:
        return f"{SCRAM_MODULE} required;"
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return f"{PLAIN_MODULE} required {users};"


@contextmanager
def secured(
    like: Broker, mechanisms: tuple[str, ...] = (PLAIN,), overrides: Settings | None = None
) -> Iterator[Secured]:
    """Start a broker like `like` with the listener SECURED, and discard the broker after the block."""
    one = Secured(like, mechanisms, overrides)
    try:
        one.broker.start()
        yield one
    finally:
        one.broker.discard()


def plain(name: str = "alice", password: str | None = None, authorization: str = "") -> bytes:
    """Return the message in which a PLAIN client sends its user name and password (RFC 4616)."""
    return f"{authorization}\0{name}\0{USERS.get(name, '') if password is None else password}".encode()


class Scram:
    """The client side of one SCRAM exchange (RFC 5802)."""

    def __init__(
        self,
        mechanism: str,
        name: str,
        password: str,
        *,
        authorization: str = "",
        nonce: str = "a-nonce",
        extensions: str = "",
    ) -> None:
        self.hash_name = HASHES[mechanism]
        self.password = password
        self.gs2 = f"n,{authorization},"
        self.first_bare = f"n={name},r={nonce}{extensions}"
        self.server_signature = b""

    def first(self) -> bytes:
        return (self.gs2 + self.first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        attributes = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salted = hashlib.pbkdf2_hmac(
            self.hash_name, self.password.encode(), base64.b64decode(attributes["s"]), int(attributes["i"])
        )
        without_proof = f"c={base64.b64encode(self.gs2.encode()).decode()},r={attributes['r']}"
        said = ",".join((self.first_bare, server_first.decode(), without_proof)).encode()
        client_key = self._hmac(salted, b"Client Key")
        stored = hashlib.new(self.hash_name, client_key).digest()
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored, said), strict=True))
        self.server_signature = self._hmac(self._hmac(salted, b"Server Key"), said)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def is_answered_by(self, server_final: bytes) -> bool:
        """Return whether the server's final message proves that the server knows the user's credentials."""
        return server_final == b"v=" + base64.b64encode(self.server_signature)

    def _hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.new(key, text, self.hash_name).digest()


def log_in_by_token(client: RawClient, mechanism: str, token_id: str, hmac_of_token: bytes) -> bool:
    """Authenticate with a delegation token. Return whether the broker accepts the token."""
    password = base64.b64encode(hmac_of_token).decode()
    scram = Scram(mechanism, token_id, password, extensions=",tokenauth=true")
    client.call("SaslHandshake", 1, Mechanism=mechanism)
    first = client.call("SaslAuthenticate", 2, AuthBytes=scram.first())
    if first["ErrorCode"]:
        return False
    final = client.call("SaslAuthenticate", 2, AuthBytes=scram.final(first["AuthBytes"]))
    return not final["ErrorCode"]


class Talk:
    """One connection, and the outcome of each message that was sent on it, in a form that can be compared."""

    def __init__(self, bootstrap: str) -> None:
        self.client = RawClient(bootstrap)
        self.client.socket.settimeout(5)
        self.seen: list[Any] = []

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.socket.close()

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        return self.send(encode_request(api, version, fields, correlation_id=7), (api, version))

    def token(self, token: bytes) -> Any:
        """Send SASL bytes without a request header and receive the server's bytes, also without a header."""
        return self.send(token, None)

    def send(self, frame: bytes, answered_as: tuple[str, int] | None) -> Any:
        """Send a frame and return its outcome. `answered_as` is None if the response has no header."""
        began = time.monotonic()
        try:
            self.client.send_frame(frame)
        except OSError:
            return self._note("closed", began)
        return self.next(answered_as, began)

    def next(self, answered_as: tuple[str, int] | None, began: float | None = None) -> Any:
        """Return the next response, or bare SASL bytes if `answered_as` is None, or `closed`, or `silence`.

        `answered_as` is the API and version of the response. `began` is the time of the request.
        """
        began = time.monotonic() if began is None else began
        try:
            frame = self.client.read_frame()
        except EOFError:
            return self._note("closed", began)
        except TimeoutError:
            return self._note("silence", began)
        if answered_as is None:
            return self._note({"token": frame}, began)
        answer = decode_response(*answered_as, frame)[1]
        if answered_as[0] == "ApiVersions":
            answer = {"ErrorCode": answer["ErrorCode"], "all": len(answer["ApiKeys"]) > 1}
        return self._note(comparable(answer), began)

    def _note(self, what: Any, began: float) -> Any:
        self.seen.append([what, "late" if time.monotonic() - began > LATE_S else "at once"])
        return what

    def handshake(self, mechanism: str = PLAIN, version: int = 1) -> Any:
        return self.ask("SaslHandshake", version, Mechanism=mechanism)

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        return self.ask("SaslAuthenticate", version, AuthBytes=token)

    def say(self, token: bytes, version: int | None) -> Any:
        """Send SASL bytes in a SaslAuthenticate request, or without a header if the version is None."""
        return self.token(token) if version is None else self.authenticate(token, version)

    def log_in_by(
        self,
        client: Scram,
        mechanism: str,
        version: int | None,
        change: Callable[[bytes], bytes] = lambda said: said,
    ) -> None:
        """Run a SCRAM exchange until it completes or a message is rejected.

        `change` modifies the client's final message.
        """
        self.handshake(mechanism, 0 if version is None else 1)
        answer = self.say(client.first(), version)
        server_first = self.hide_server_first()
        if server_first is not None:
            answer = self.say(change(client.final(server_first)), version)
            place = self.seen[-1][0]
            key = "token" if version is None else "AuthBytes"
            if isinstance(answer, dict) and client.is_answered_by(answer[key]):
                place[key] = "it is the server"
            if isinstance(answer, dict) and answer.get("SessionLifetimeMs"):
                place["SessionLifetimeMs"] = "some"

    def hide_server_first(self) -> bytes | None:
        """Mask random parts of the server's first message in `seen`. Return the message if there is one."""
        place = self.seen[-1][0]
        if not isinstance(place, dict):
            return None
        key = "token" if "token" in place else "AuthBytes"
        said: bytes = place[key]
        if not said:
            return None
        nonce, salt, iterations = said.split(b",")
        known = base64.b64decode(salt[2:]).startswith(b"salt of ")
        place[key] = [nonce[:7], salt if known else b"s=some", iterations]
        return said

    def log_in_by_scram(self, mechanism: str, name: str) -> None:
        self.log_in_by(Scram(mechanism, name, USERS[name]), mechanism, 2)

    def metadata(self) -> Any:
        """Send a Metadata request, which only an authenticated client may send."""
        answer = self.ask("Metadata", 9, Topics=[])
        if isinstance(answer, dict):
            self.seen[-1][0] = "served"
        return answer

    def log_in(self, name: str = "alice", mechanism: str = PLAIN) -> None:
        """Authenticate with PLAIN messages, after a handshake for `mechanism`."""
        self.handshake(mechanism)
        self.authenticate(plain(name))


def add_scram_users(one: Secured) -> None:
    """Create the SCRAM users alice (both mechanisms) and bob (one mechanism).

    Return once bob can authenticate.
    """
    users = [("alice", SCRAM_256, 4096), ("alice", SCRAM_512, 8192), ("bob", SCRAM_512, 4096)]
    with RawClient(one.broker.bootstrap) as client:
        for name, mechanism, iterations in users:  # One request each: a request may not name a user twice.
            salt = b"salt of " + name.encode()
            user = {
                "Name": name,
                "Mechanism": SCRAMS[mechanism],
                "Iterations": iterations,
                "Salt": salt,
                "SaltedPassword": hashlib.pbkdf2_hmac(
                    HASHES[mechanism], USERS[name].encode(), salt, iterations
                ),
            }
            [answer] = client.call("AlterUserScramCredentials", 0, Upsertions=[user])["Results"]
            assert not answer["ErrorCode"], answer
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with Talk(one.bootstrap) as talk:
            talk.log_in_by_scram(SCRAM_512, "bob")
            if talk.metadata() != "closed":
                return
    raise TimeoutError("bob may not come")
