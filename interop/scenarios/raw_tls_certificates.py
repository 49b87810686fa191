"""Certificates of a running broker, replaced with IncrementalAlterConfigs. KIP-226."""

from __future__ import annotations

import hashlib
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.tls import Encrypted, encrypted
from interop.tools import until

KEY_STORE = "listener.name.encrypted.ssl.keystore.location"
TRUST_STORE = "listener.name.mutual.ssl.truststore.location"
SET, BROKER = 0, 4
CONNECTIONS = 8
WAIT_S = 30.0
MORE_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:added"


@scenario(seconds=120)
def key_stores_and_trust_stores(broker: Broker) -> Any:
    with encrypted(type(broker)) as one:
        return _replace(one)


def _replace(one: Encrypted) -> Any:
    stores = one.certificates
    before = _certificate(one)
    with RawClient(one.bootstrap["ENCRYPTED"]) as kept:
        kept.socket = _wrap(one, kept.socket)
        kept.call("ApiVersions", 3)
        current = stores.issue("broker", MORE_NAMES, file="second")
        seen: dict[str, Any] = {"same subject": _alter(one, KEY_STORE, current)}
        before = _next_certificate(one, before)
        shutil.copy(stores.issue("broker", MORE_NAMES, file="third"), current)
        seen["same value, another file"] = _alter(one, KEY_STORE, current)
        before = _next_certificate(one, before)
        for label, path in {
            "another subject": stores.issue("another"),
            "fewer names": stores.issue("broker", "subjectAltName=DNS:localhost", file="fourth"),
            "no file": current.with_name("nosuch.pem"),
            "no private key": stores.authority,
        }.items():
            seen[label] = _alter(one, KEY_STORE, path)
        seen["without a prefix"] = _alter(one, "ssl.keystore.location", current)
        seen["the key store of the last valid change is used"] = _certificate(one) == before
        seen["an existing connection stays"] = kept.call("ApiVersions", 3)["ErrorCode"]
    stranger = one.key_store(one.others, "stranger")
    seen["an unknown authority is refused"] = not _is_accepted(one, stranger)
    seen["another trust store"] = _alter(one, TRUST_STORE, one.others.authority)
    until(lambda: _is_accepted(one, stranger), WAIT_S)
    seen["the new authority is accepted"] = _is_accepted(one, stranger)
    seen["the former authority is refused"] = not _is_accepted(one, one.key_store())
    return seen


def _alter(one: Encrypted, key: str, path: Path) -> int:
    """Set a dynamic configuration of the broker, and return the error code."""
    configs = [{"Name": key, "ConfigOperation": SET, "Value": str(path)}]
    with RawClient(one.broker.bootstrap) as client:
        answer = client.call(
            "IncrementalAlterConfigs",
            1,
            Resources=[{"ResourceType": BROKER, "ResourceName": "1", "Configs": configs}],
            ValidateOnly=False,
        )
    code: int = answer["Responses"][0]["ErrorCode"]
    return code


def _wrap(one: Encrypted, sock: socket.socket, own: Path | None = None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=one.certificates.authority)
    if own is not None:
        context.load_cert_chain(own)
    return context.wrap_socket(sock, server_hostname="localhost")


def _certificate(one: Encrypted) -> str:
    """Return the hash of the certificate that the listener ENCRYPTED shows."""
    with RawClient(one.bootstrap["ENCRYPTED"]) as client:
        client.socket = shown = _wrap(one, client.socket)
        return hashlib.sha256(shown.getpeercert(binary_form=True) or b"").hexdigest()


def _next_certificate(one: Encrypted, before: str) -> str:
    """Wait until the listener shows another certificate than `before`, and return its hash.

    Each network thread of Apache Kafka loads the new key store, so several connections must show it.
    """
    found: set[str] = set()

    def is_new() -> bool:
        found.clear()
        found.update(_certificate(one) for _ in range(CONNECTIONS))
        return before not in found

    until(is_new, WAIT_S)
    [new] = found
    assert new != before, "the new key store is not used"
    return new


def _is_accepted(one: Encrypted, own: Path) -> bool:
    """Return whether the listener MUTUAL responds to a client with this certificate."""
    with RawClient(one.bootstrap["MUTUAL"]) as client:
        try:
            client.socket = _wrap(one, client.socket, own)
            client.call("ApiVersions", 3)
        except (EOFError, OSError):
            return False
    return True
