"""Authentication, request by request: what is answered, how soon, and when the connection ends.

Each scenario has a broker of its own, which tells who fails only after a second: what ends at once is told
from what is seen to fail.
"""

from __future__ import annotations

import struct
import time
from typing import Any

from interop.brokers import Broker
from interop.sasl import PLAIN, PREFIX, SCRAM_256, Secured, Talk, plain, secured
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
def tokens(broker: Broker) -> Any:
    """What PLAIN makes of what it is told, in each form."""
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
    """Which may be asked for, and what is told of the others."""
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
def before(broker: Broker) -> Any:
    """What may come first, and what after it."""
    seen: dict[str, Any] = {}
    with secured(broker) as one:

        def first(name: str, *asked: tuple[str, int, dict[str, Any]]) -> None:
            with Talk(one.bootstrap) as talk:
                for api, version, fields in asked:
                    if talk.ask(api, version, **fields) == "closed":
                        break
                seen[name] = talk.seen

        shake: tuple[str, int, dict[str, Any]] = "SaslHandshake", 1, {"Mechanism": PLAIN}
        bare: tuple[str, int, dict[str, Any]] = "SaslHandshake", 0, {"Mechanism": PLAIN}
        wrong: tuple[str, int, dict[str, Any]] = "SaslHandshake", 1, {"Mechanism": "nope"}
        tell: tuple[str, int, dict[str, Any]] = "SaslAuthenticate", 2, {"AuthBytes": plain()}
        ask: tuple[str, int, dict[str, Any]] = "ApiVersions", 3, SOFTWARE
        odd: tuple[str, int, dict[str, Any]] = "ApiVersions", 3, {"ClientSoftwareName": "-"}
        metadata: tuple[str, int, dict[str, Any]] = "Metadata", 9, {"Topics": []}
        for version in versions_of("ApiVersions"):
            fields: dict[str, Any] = SOFTWARE if version >= 3 else {}
            first(f"ApiVersions {version}, then all", ("ApiVersions", version, fields), shake, tell, metadata)
        first("metadata", metadata)
        first("produce", ("Produce", 9, {"Acks": 1, "TopicData": []}))
        first("authenticate", tell)
        first("versions twice", ask, ask)
        first("odd software", odd, odd, ask, shake, tell, metadata)
        first("odd software after a good one", ask, odd)
        first("metadata after versions", ask, metadata)
        first("authenticate after versions", ask, tell)
        first("wrong mechanism after versions", ask, wrong)
        first("handshake twice", shake, shake)
        first("bare after handshake", bare, bare)
        first("versions after handshake", shake, ask)
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
            first(f"{api} {version} after handshake", shake, (api, version, fields))
        for number in range(3):
            first(f"all, {number} times more", shake, tell, metadata, *([shake, tell] * number), metadata)
    return seen


@scenario(seconds=180)
def garbage(broker: Broker) -> Any:
    """Frames that are no requests, or none that is known, at each point."""
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
                    answer = talk.send(frame, None)
                    if isinstance(answer, dict):
                        answer["token"] = "answered"
                    if answer != "closed":
                        talk.metadata()
                    seen[f"{name} {when}"] = talk.seen
    return seen


@scenario(seconds=180)
def sizes(broker: Broker) -> Any:
    """How long what comes may be, before and after it is known who asks."""
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
                        continue  # of which the rest is awaited
                    talk.next(None, began)
                    seen[f"{size} {when}"] = talk.seen
        for size in (limit, limit + 1):
            with Talk(one.bootstrap) as talk:
                talk.handshake()
                said = encode_request("SaslAuthenticate", 0, {"AuthBytes": b""}, correlation_id=7)
                padding = size - len(said) - len(plain("alice", ""))
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
def at_once(broker: Broker) -> Any:
    """All that is to be said in one segment, and what follows it."""
    seen: dict[str, Any] = {}
    handshake = encode_request("SaslHandshake", 1, {"Mechanism": PLAIN})
    metadata = encode_request("Metadata", 9, {"Topics": []})
    with secured(broker) as one:
        for name, said in {
            "as requests": encode_request("SaslAuthenticate", 2, {"AuthBytes": plain()}),
            "wrong": encode_request("SaslAuthenticate", 2, {"AuthBytes": plain(password="no")}),
        }.items():
            with Talk(one.bootstrap) as talk:
                talk.client.send_bytes(b"".join(map(framed, (handshake, said, metadata, metadata))))
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
def again(broker: Broker) -> Any:
    """KIP-368: sessions that end after three seconds, and clients that go on."""
    seen: dict[str, Any] = {}
    with secured(broker, (PLAIN, SCRAM_256), {REAUTH: str(SESSION_MS)}) as one:
        for version in versions_of("SaslAuthenticate"):
            with Talk(one.bootstrap) as talk:
                talk.handshake()
                talk.authenticate(plain(), version)
                seen[f"told, v{version}"] = talk.seen
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
def nobody_asks(broker: Broker) -> Any:
    """On the plain listener, and on the controller's."""
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
