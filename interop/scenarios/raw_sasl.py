"""SASL authentication, request by request: responses, their delay, and when the connection is closed.

Each scenario starts its own broker. The broker delays authentication errors by one second, so that the
scenarios can distinguish them from immediate errors.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import time
from collections.abc import Callable
from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.sasl import (
    PLAIN,
    PLAIN_MODULE,
    PREFIX,
    SCRAM_256,
    SCRAM_512,
    SCRAM_MODULE,
    SCRAMS,
    USERS,
    Scram,
    Secured,
    Talk,
    add_scram_users,
    plain,
    secured,
)
from interop.scenario import scenario
from interop.wire import encode_request, versions_of

REAUTH = f"{PREFIX}plain.connections.max.reauth.ms"
SESSION_MS = 3_000
SOFTWARE: dict[str, Any] = {"ClientSoftwareName": "interop", "ClientSoftwareVersion": "1.0"}

TOKENS: dict[str, bytes] = {
    "right": plain(),
    "wrong": plain(password="no"),
    "another's": plain(password="bob's secret"),
    "unknown": plain("carol", "x"),
    "no name": plain("", "x"),
    "no password": plain(password=""),
    "as himself": plain(authorization="alice"),
    "as another": plain(authorization="bob"),
    "wrong, as another": plain(password="no", authorization="bob"),
    "empty": b"",
    "two parts": b"alice\0alice's secret",
    "four parts": plain() + b"\0more",
    "no UTF-8": b"\0\xff\xfe\0x",
    "long": plain(password="x" * 100_000),
}


@scenario(seconds=180)
def plain_tokens(broker: Broker) -> Any:
    """Send valid and invalid messages of the mechanism PLAIN."""
    seen: dict[str, Any] = {}
    with secured(broker) as one:
        for name, token in TOKENS.items():
            for version in versions_of("SaslAuthenticate"):
                with Talk(one.bootstrap) as talk:
                    talk.handshake()
                    talk.authenticate(token, version)
                    talk.metadata()
                    seen[f"{name}, v{version}"] = talk.seen
            with Talk(one.bootstrap) as talk:
                talk.handshake(version=0)
                talk.token(token)
                talk.metadata()
                seen[f"{name}, bare"] = talk.seen
    return seen


@scenario(seconds=180)
def mechanisms(broker: Broker) -> Any:
    """Request each mechanism, known and unknown, and record the response."""
    seen: dict[str, Any] = {}
    with secured(broker) as one:
        for mechanism in (PLAIN, "plain", "PLAIN ", "", "GSSAPI", SCRAM_256, "OAUTHBEARER", "x" * 300):
            for version in versions_of("SaslHandshake"):
                with Talk(one.bootstrap) as talk:
                    talk.handshake(mechanism, version)
                    talk.metadata()
                    seen[f"{mechanism} v{version}"] = talk.seen
    return seen


@scenario(seconds=180)
def requests_before_authentication(broker: Broker) -> Any:
    """Send different APIs before authentication, and then further requests."""
    seen: dict[str, Any] = {}
    with secured(broker) as one:

        def first(name: str, *requested: tuple[str, int, dict[str, Any]]) -> None:
            with Talk(one.bootstrap) as talk:
                for api, version, fields in requested:
                    if talk.ask(api, version, **fields) == "closed":
                        break
                seen[name] = talk.seen

        handshake: tuple[str, int, dict[str, Any]] = "SaslHandshake", 1, {"Mechanism": PLAIN}
        bare: tuple[str, int, dict[str, Any]] = "SaslHandshake", 0, {"Mechanism": PLAIN}
        wrong: tuple[str, int, dict[str, Any]] = "SaslHandshake", 1, {"Mechanism": "nope"}
        authenticate: tuple[str, int, dict[str, Any]] = "SaslAuthenticate", 2, {"AuthBytes": plain()}
        versions: tuple[str, int, dict[str, Any]] = "ApiVersions", 3, SOFTWARE
        odd: tuple[str, int, dict[str, Any]] = "ApiVersions", 3, {"ClientSoftwareName": "-"}
        metadata: tuple[str, int, dict[str, Any]] = "Metadata", 9, {"Topics": []}
        for version in versions_of("ApiVersions"):
            fields: dict[str, Any] = SOFTWARE if version >= 3 else {}
            first(
                f"ApiVersions {version}, then all",
                ("ApiVersions", version, fields),
                handshake,
                authenticate,
                metadata,
            )
        first("metadata", metadata)
        first("produce", ("Produce", 9, {"Acks": 1, "TopicData": []}))
        first("authenticate", authenticate)
        first("versions twice", versions, versions)
        first("odd software", odd, odd, versions, handshake, authenticate, metadata)
        first("odd software after a good one", versions, odd)
        first("metadata after versions", versions, metadata)
        first("authenticate after versions", versions, authenticate)
        first("wrong mechanism after versions", versions, wrong)
        first("handshake twice", handshake, handshake)
        first("bare after handshake", bare, bare)
        first("versions after handshake", handshake, versions)
        others: tuple[tuple[str, int, dict[str, Any]], ...] = (
            ("Metadata", 1, {"Topics": []}),
            ("Metadata", 12, {"Topics": [{"Name": "a"}]}),
            ("FindCoordinator", 3, {"Key": "g"}),
            ("FindCoordinator", 4, {"CoordinatorKeys": ["g"]}),
            ("ListOffsets", 5, {"Topics": [{"Name": "a", "Partitions": [{}]}]}),
            ("DescribeConfigs", 4, {"Resources": [{"ResourceType": 2, "ResourceName": "a"}]}),
            ("CreateTopics", 7, {"Topics": [{"Name": "a", "NumPartitions": 1, "ReplicationFactor": 1}]}),
            ("Heartbeat", 4, {"GroupId": "g"}),
        )
        for api, version, fields in others:
            first(f"{api} {version} after handshake", handshake, (api, version, fields))
        for number in range(3):
            first(
                f"all, {number} times more",
                handshake,
                authenticate,
                metadata,
                *([handshake, authenticate] * number),
                metadata,
            )
    return seen


@scenario(seconds=180)
def malformed_frames(broker: Broker) -> Any:
    """Send malformed frames and unknown APIs at each step of the authentication."""
    seen: dict[str, Any] = {}
    handshake = encode_request("SaslHandshake", 1, {"Mechanism": PLAIN})
    frames: dict[str, bytes] = {
        "empty": b"",
        "one byte": b"\0",
        "as of GSSAPI": b"\x60\x82\x01\x02" + b"\0" * 100,
        "no API": struct.pack(">hhih", 9999, 0, 7, -1) + b"\0" * 20,
        "API -1": struct.pack(">hhih", -1, 0, 7, -1) + b"\0" * 20,
        "HTTP": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "half a handshake": handshake[:-2],
        "handshake and more": handshake + b"more",
        "handshake 2": encode_request("SaslHandshake", 1, {"Mechanism": PLAIN}).replace(
            b"\0\x11\0\x01", b"\0\x11\0\x02", 1
        ),
        "versions 99": struct.pack(">hhih", 18, 99, 7, -1) + b"\0" * 3,
        "authenticate 3": struct.pack(">hhih", 36, 3, 7, -1) + b"\0\1\0",
        "metadata 99": struct.pack(">hhih", 3, 99, 7, -1) + b"\0" * 20,
        "half metadata": encode_request("Metadata", 9, {"Topics": [{"Name": "abc"}]})[:-4],
        "half authenticate": encode_request("SaslAuthenticate", 2, {"AuthBytes": plain()})[:-3],
    }
    with secured(broker) as one:
        for name, frame in frames.items():
            for when in ("at first", "after versions", "after handshake", "after all"):
                with Talk(one.bootstrap) as talk:
                    if when == "after versions":
                        talk.ask("ApiVersions", 3, **SOFTWARE)
                    elif when != "at first":
                        talk.handshake()
                    if when == "after all":
                        talk.authenticate(plain())
                    response = talk.send(frame, None)
                    if isinstance(response, dict):
                        response["token"] = "answered"
                    if response != "closed":
                        talk.metadata()
                    seen[f"{name} {when}"] = talk.seen
    return seen


@scenario(seconds=180)
def request_sizes(broker: Broker) -> Any:
    """Send requests of different sizes before and after authentication."""
    seen: dict[str, Any] = {}
    limit = 1_000
    with secured(broker, overrides={"sasl.server.max.receive.size": str(limit)}) as one:
        for size in (-1, -(2**31), limit + 1, 2**31 - 1, 20_000_001):
            for when in ("at first", "after handshake", "after all"):
                with Talk(one.bootstrap) as talk:
                    if when != "at first":
                        talk.handshake()
                    if when == "after all":
                        talk.authenticate(plain())
                    began = time.monotonic()
                    talk.client.send_bytes(struct.pack(">i", size) + b"\0" * 64)
                    if when == "after all" and size == limit + 1:
                        continue  # the broker still waits for the rest of the frame
                    talk.next(None, began)
                    seen[f"{size} {when}"] = talk.seen
        for size in (limit, limit + 1):
            with Talk(one.bootstrap) as talk:
                talk.handshake()
                message = encode_request("SaslAuthenticate", 0, {"AuthBytes": b""}, correlation_id=7)
                padding = size - len(message) - len(plain("alice", ""))
                token = plain("alice", "x" * padding)
                talk.authenticate(token, 0)
                seen[f"a token of {size}"] = talk.seen
        with Talk(one.bootstrap) as talk:
            talk.log_in()
            talk.ask("Metadata", 9, Topics=[{"Name": "x" * 200} for _ in range(20)])
            talk.seen[-1][0] = "served" if isinstance(talk.seen[-1][0], dict) else talk.seen[-1][0]
            seen["a long request"] = talk.seen
    return seen


@scenario(seconds=120)
def pipelined_authentication(broker: Broker) -> Any:
    """Send the authentication requests and Metadata requests at once. Send another request byte by byte."""
    seen: dict[str, Any] = {}
    handshake = encode_request("SaslHandshake", 1, {"Mechanism": PLAIN})
    metadata = encode_request("Metadata", 9, {"Topics": []})
    with secured(broker) as one:
        for name, message in {
            "as requests": encode_request("SaslAuthenticate", 2, {"AuthBytes": plain()}),
            "wrong": encode_request("SaslAuthenticate", 2, {"AuthBytes": plain(password="no")}),
        }.items():
            with Talk(one.bootstrap) as talk:
                talk.client.send_bytes(b"".join(map(framed, (handshake, message, metadata, metadata))))
                talk.next(("SaslHandshake", 1))
                talk.next(("SaslAuthenticate", 2))
                for _ in range(2):
                    talk.next(("Metadata", 9))
                    if isinstance(talk.seen[-1][0], dict):
                        talk.seen[-1][0] = "served"
                seen[name] = talk.seen
        with Talk(one.bootstrap) as talk:
            bare = encode_request("SaslHandshake", 0, {"Mechanism": PLAIN})
            talk.client.send_bytes(b"".join(map(framed, (bare, plain(), metadata))))
            talk.next(("SaslHandshake", 0))
            talk.next(None)
            talk.next(("Metadata", 9))
            talk.seen[-1][0] = "served" if isinstance(talk.seen[-1][0], dict) else talk.seen[-1][0]
            seen["bare"] = talk.seen
        with Talk(one.bootstrap) as talk:
            for byte in framed(handshake):
                talk.client.send_bytes(bytes([byte]))
            talk.next(("SaslHandshake", 1))
            talk.authenticate(plain())
            talk.metadata()
            seen["byte by byte"] = talk.seen
    return seen


@scenario(seconds=180)
def reauthentication(broker: Broker) -> Any:
    """Authenticate again on the same connection (KIP-368). A session lasts for three seconds."""
    seen: dict[str, Any] = {}
    with secured(broker, (PLAIN, SCRAM_256), {REAUTH: str(SESSION_MS)}) as one:
        for version in versions_of("SaslAuthenticate"):
            with Talk(one.bootstrap) as talk:
                talk.handshake()
                talk.authenticate(plain(), version)
                seen[f"session lifetime, v{version}"] = talk.seen
        for name, second in {
            "same": ("handshake", "right"),
            "another": ("handshake", "another"),
            "wrong": ("handshake", "wrong"),
            "something else": ("handshake", "metadata"),
            "bare": ("bare", "right"),
            "bare another": ("bare", "another"),
            "bare wrong": ("bare", "wrong"),
        }.items():
            with Talk(one.bootstrap) as talk:
                talk.log_in()
                talk.metadata()
                talk.handshake(version=0 if second[0] == "bare" else 1)
                token = {"right": plain(), "another": plain("bob"), "wrong": plain(password="no")}.get(
                    second[1]
                )
                if token is None:
                    talk.metadata()
                elif second[0] == "bare":
                    talk.token(token)
                else:
                    talk.authenticate(token)
                talk.metadata()
                seen[f"again, {name}"] = talk.seen
        for mechanism in (SCRAM_256, "GSSAPI"):
            with Talk(one.bootstrap) as talk:
                talk.log_in()
                if talk.handshake(mechanism) != "closed":
                    talk.authenticate(plain())
                seen[f"again by {mechanism}"] = talk.seen
        with Talk(one.bootstrap) as talk:
            talk.log_in()
            talk.log_in()
            talk.handshake()
            talk.authenticate(plain())
            talk.metadata()
            time.sleep(1.2)
            talk.log_in()
            talk.metadata()
            seen["too soon"] = talk.seen
        with Talk(one.bootstrap) as talk:
            talk.log_in()
            time.sleep(SESSION_MS / 1000 + 0.3)
            talk.metadata()
            seen["too late"] = talk.seen
        with Talk(one.bootstrap) as talk:
            talk.log_in()
            time.sleep(SESSION_MS / 1000 + 0.3)
            talk.log_in()
            talk.metadata()
            time.sleep(SESSION_MS / 1000 - 1.5)
            talk.metadata()
            time.sleep(1.8)
            talk.metadata()
            seen["late, but before anything else"] = talk.seen
        with Talk(one.bootstrap) as talk:
            talk.log_in()
            time.sleep(SESSION_MS / 1000 + 0.3)
            talk.ask("SaslAuthenticate", 2, AuthBytes=plain())
            seen["too late, without a handshake"] = talk.seen
    return seen


@scenario(seconds=120)
def listeners_without_sasl(broker: Broker) -> Any:
    """Send SASL requests to the plaintext listener and to the controller listener."""
    seen: dict[str, Any] = {}
    one = Secured(broker).broker
    try:
        one.start()
        for where, bootstrap in (("broker", one.bootstrap), ("controller", one.controller_bootstrap)):
            with Talk(bootstrap) as talk:
                for version in versions_of("SaslHandshake"):
                    for mechanism in (PLAIN, "nope"):
                        talk.handshake(mechanism, version)
                for version in versions_of("SaslAuthenticate"):
                    talk.authenticate(plain(), version)
                talk.ask("ApiVersions", 3, **SOFTWARE)
                seen[where] = talk.seen
    finally:
        one.discard()
    return seen


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


@scenario(seconds=240)
def scram(broker: Broker) -> Any:
    """Authenticate with both SCRAM mechanisms, and with errors in each message of the client."""
    seen: dict[str, Any] = {}
    alice, secret = "alice", USERS["alice"]
    with secured(broker, (PLAIN, SCRAM_256, SCRAM_512)) as one:
        add_scram_users(one)
        for mechanism in SCRAMS:
            for name, client in {
                "right": Scram(mechanism, alice, secret),
                "wrong": Scram(mechanism, alice, "guessed"),
                "unknown": Scram(mechanism, "carol", secret),
                "of the other alone": Scram(mechanism, "bob", USERS["bob"]),
                "as himself": Scram(mechanism, alice, secret, authorization="a=alice"),
                "as another": Scram(mechanism, alice, secret, authorization="a=bob"),
                "extended": Scram(mechanism, alice, secret, extensions=",x=y"),
                "by a token": Scram(mechanism, "no-token", secret, extensions=",tokenauth=true"),
                "by no token": Scram(mechanism, alice, secret, extensions=",tokenauth=false"),
            }.items():
                for version in (0, 1, None):
                    with Talk(one.bootstrap) as talk:
                        talk.log_in_by(client, mechanism, version)
                        talk.metadata()
                        seen[f"{mechanism}, {name}, v{version}"] = talk.seen
        for name, first in FIRST_MESSAGES.items():
            for version in (1, None):
                with Talk(one.bootstrap) as talk:
                    talk.handshake(SCRAM_256, 1 if version else 0)
                    talk.say(first, version)
                    talk.hide_server_first()
                    seen[f"first is {name}, v{version}"] = talk.seen
        for name, change in FINAL_CHANGES.items():
            for version in (1, None):
                with Talk(one.bootstrap) as talk:
                    talk.log_in_by(Scram(SCRAM_256, alice, secret), SCRAM_256, version, change)
                    seen[f"final is {name}, v{version}"] = talk.seen
    return seen


FIRST_MESSAGES: dict[str, bytes] = {
    "empty": b"",
    "PLAIN's": plain(),
    "without a header": b"n=alice,r=nonce",
    "bound": b"p=tls-unique,,n=alice,r=nonce",
    "not bound, though it could": b"y,,n=alice,r=nonce",
    "without a name": b"n,,r=nonce",
    "of an empty name": b"n,,n=,r=nonce",
    "without a nonce": b"n,,n=alice",
    "of an empty nonce": b"n,,n=alice,r=",
    "with something mandatory": b"n,,m=x,n=alice,r=nonce",
    "of an escaped name": b"n,,n=al=2Cice,r=nonce",
    "of a badly escaped name": b"n,,n=al=ice,r=nonce",
    "no UTF-8": b"n,,n=\xff\xfe,r=nonce",
    "beyond ASCII": "n,,n=al\N{LATIN SMALL LETTER I WITH ACUTE}ce,r=nonce".encode(),
    "of a half escaped name": b"n,,n=al=2Cic=e,r=nonce",
    "escaped in small letters": b"n,,n=al=2cice,r=nonce",
    "with an empty authorization id": b"n,a=,n=alice,r=nonce",
    "with an unknown name as another user": b"n,a=bob,n=carol,r=nonce",
    "with a blank in its nonce": b"n,,n=alice,r=no nce",
    "with a comma more": b"n,,n=alice,r=nonce,",
    "with a line more": b"n,,n=alice,r=nonce\n",
    "with an extension without a value": b"n,,n=alice,r=nonce,ext",
    "of a token, in capitals": b"n,,n=alice,r=nonce,tokenauth=TRUE",
}
FINAL_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "of another nonce": lambda message: message.replace(b",r=", b",r=x"),
    "of a longer nonce": lambda message: message.replace(b",p=", b"x,p="),
    "of the client's nonce": lambda message: re.sub(b",r=a-nonce[^,]*", b",r=a-nonce", message),
    "of a short proof": lambda message: message.partition(b",p=")[0] + b",p=AAAA",
    "with a line more": lambda message: message + b"\n",
    "without a header": lambda message: message.removeprefix(b"c=biws,"),
    "without a proof": lambda message: message.partition(b",p=")[0],
    "of a proof that is no base64": lambda message: message.partition(b",p=")[0] + b",p=!!!!",
    "otherwise bound": lambda message: message.replace(b"c=biws", b"c=eSws"),
    "extended": lambda message: message.replace(b",p=", b",x=y,p="),
    "the first one": lambda _: b"n,,n=alice,r=a-nonce",
}


@scenario(seconds=120)
def delegation_tokens(broker: Broker) -> Any:
    """Authenticate with tokens. Check owner and expiry, and requests that a token does not permit."""
    seen: dict[str, Any] = {}
    settings = {"delegation.token.secret.key": "a secret of the cluster"}
    with secured(broker, (PLAIN, SCRAM_256, SCRAM_512), settings) as one:
        with Talk(one.bootstrap) as talk:
            talk.log_in()
            created = talk.client.call(
                "CreateDelegationToken", 3, OwnerPrincipalName=None, MaxLifetimeMs=60_000
            )
            seen["made"] = [created["ErrorCode"], created["PrincipalName"]]
            name, password = created["TokenId"], base64.b64encode(created["Hmac"]).decode()
            until = time.monotonic() + 10
            while time.monotonic() < until:
                described = talk.client.call("DescribeDelegationToken", 3, Owners=None)
                if described["Tokens"]:
                    break
            for mechanism in SCRAMS:
                for kind, client in {
                    "right": Scram(mechanism, name, password, extensions=",tokenauth=true"),
                    "wrong": Scram(mechanism, name, "guessed", extensions=",tokenauth=true"),
                    "as its owner": Scram(
                        mechanism, name, password, extensions=",tokenauth=true", authorization="a=alice"
                    ),
                    "as itself": Scram(
                        mechanism, name, password, extensions=",tokenauth=true", authorization=f"a={name}"
                    ),
                    "without tokenauth": Scram(mechanism, name, password),
                }.items():
                    with Talk(one.bootstrap) as holder:
                        holder.log_in_by(client, mechanism, 2)
                        if holder.metadata() != "closed":
                            requested = holder.client.call(
                                "CreateDelegationToken", 3, OwnerPrincipalName=None
                            )
                            holder.seen.append(requested["ErrorCode"])
                        seen[f"{mechanism}, {kind}"] = holder.seen
            expired = talk.client.call(
                "ExpireDelegationToken", 2, Hmac=created["Hmac"], ExpiryTimePeriodMs=-1
            )
            seen["expired"] = expired["ErrorCode"]
            while time.monotonic() < until and described["Tokens"]:
                described = talk.client.call("DescribeDelegationToken", 3, Owners=None)
        with Talk(one.bootstrap) as holder:
            client = Scram(SCRAM_256, name, password, extensions=",tokenauth=true")
            holder.log_in_by(client, SCRAM_256, 2)
            seen["afterwards"] = holder.seen
    return seen


@scenario(seconds=120)
def controller_listener(broker: Broker) -> Any:
    """Use the controller listener with correct and wrong credentials, and without authentication."""
    seen: dict[str, Any] = {}
    node = (
        f'{PLAIN_MODULE} required username="alice" password="{USERS["alice"]}" user_alice="{USERS["alice"]}";'
    )
    settings = {
        "connection.failed.authentication.delay.ms": "1000",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.mechanism.controller.protocol": PLAIN,
        "listener.name.controller.sasl.enabled.mechanisms": f"{PLAIN},{SCRAM_512}",
        "listener.name.controller.plain.sasl.jaas.config": node,
        "listener.name.controller.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }
    one = type(broker)(settings)
    try:
        one.start()
        with RawClient(one.bootstrap) as client:
            salt = b"salt of bob"
            user = {
                "Name": "bob",
                "Mechanism": SCRAMS[SCRAM_512],
                "Iterations": 4096,
                "Salt": salt,
                "SaltedPassword": hashlib.pbkdf2_hmac("sha512", USERS["bob"].encode(), salt, 4096),
            }
            [created] = client.call("AlterUserScramCredentials", 0, Upsertions=[user])["Results"]
            assert not created["ErrorCode"], created
        for name, password in {"right": USERS["alice"], "wrong": "guessed"}.items():
            with Talk(one.controller_bootstrap) as talk:
                talk.ask("ApiVersions", 3, **SOFTWARE)
                talk.handshake()
                talk.authenticate(plain(password=password))
                talk.ask("DescribeCluster", 1, EndpointType=2)
                talk.seen[-1][0] = "served" if isinstance(talk.seen[-1][0], dict) else talk.seen[-1][0]
                talk.handshake()
                talk.authenticate(plain())
                seen[name] = talk.seen
        for name in ("bob", "alice"):
            with Talk(one.controller_bootstrap) as talk:
                talk.log_in_by(Scram(SCRAM_512, name, USERS[name]), SCRAM_512, 2)
                seen[f"{name} by SCRAM"] = talk.seen
        with Talk(one.controller_bootstrap) as talk:
            talk.ask("DescribeCluster", 1, EndpointType=2)
            seen["nobody"] = talk.seen
    finally:
        one.discard()
    return seen


@scenario(seconds=120)
def unauthenticated_timeout(broker: Broker) -> Any:
    """Stay idle before and after authentication. Connections must close after connections.max.idle.ms."""
    idle_ms = 2_000
    seen: dict[str, Any] = {}
    with secured(broker, overrides={"connections.max.idle.ms": str(idle_ms)}) as one:
        for name in ("nothing", "half a frame", "versions", "a handshake", "all"):
            with Talk(one.bootstrap) as talk:
                talk.client.socket.settimeout(15)
                if name == "half a frame":
                    talk.client.send_bytes(
                        framed(encode_request("SaslHandshake", 1, {"Mechanism": PLAIN}))[:9]
                    )
                elif name == "versions":
                    talk.ask("ApiVersions", 3, **SOFTWARE)
                elif name != "nothing":
                    talk.handshake()
                if name == "all":
                    talk.authenticate(plain())
                began = time.monotonic()
                talk.next(None)
                took_ms = (time.monotonic() - began) * 1_000
                seen[name] = [talk.seen, idle_ms * 0.9 < took_ms < 4 * idle_ms]
    return seen
