"""The subject of a certificate whose verification has failed, and what the observation leaves behind."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kwire.broker.security.presented_certificates import (
    CALLBACK,
    PRESENTED,
    end_handshake,
    presented_subject,
    watch_certificates,
)
from kwire.certificates.authority import Authority
from kwire.host.system_time import libc_time_ns

NOW_MS = libc_time_ns() // 1_000_000
OURS, FOREIGN = Authority.create("ours", NOW_MS), Authority.create("foreign", NOW_MS)
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Sides:
    """A server and a client that verify each other, connected by memory."""

    def __init__(
        self, version: ssl.TLSVersion, folder: Path, *, server: Authority, client: Authority
    ) -> None:
        self.contexts = []
        names = {"CN=broker": server, "CN=mallory\\, O=evil": client}
        protocols = (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        for protocol, (subject, authority) in zip(protocols, names.items(), strict=True):
            context = ssl.SSLContext(protocol)
            context.verify_mode = ssl.CERT_REQUIRED
            context.maximum_version = version
            context.load_verify_locations(cadata=OURS.certificate_pem)
            issued = authority.issue(subject, ("localhost",), now_ms=NOW_MS)
            own = folder / "own.pem"
            own.write_text(issued.key_pem + issued.chain_pem)
            context.load_cert_chain(own)
            watch_certificates(context)
            self.contexts.append(context)
        one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = self.contexts[0].wrap_bio(one, other, server_side=True)
        self.client = self.contexts[1].wrap_bio(other, one, server_hostname="localhost")

    def shake_hands(self) -> None:
        for _ in range(3):
            for side in (self.client, self.server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()


@pytest.mark.parametrize("version", VERSIONS)
def test_subject_of_a_refused_client(version: ssl.TLSVersion, tmp_path: Path) -> None:
    sides = Sides(version, tmp_path, server=OURS, client=FOREIGN)
    with pytest.raises(ssl.SSLCertVerificationError):
        sides.shake_hands()
    assert presented_subject(sides.server) == r"CN=mallory\, O\=evil"


@pytest.mark.parametrize("version", VERSIONS)
def test_subject_of_a_refused_server(version: ssl.TLSVersion, tmp_path: Path) -> None:
    sides = Sides(version, tmp_path, server=FOREIGN, client=OURS)
    with pytest.raises(ssl.SSLCertVerificationError):
        sides.shake_hands()
    assert presented_subject(sides.client) == "CN=broker"


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_kept_or_called_after_the_handshake(version: ssl.TLSVersion, tmp_path: Path) -> None:
    sides = Sides(version, tmp_path, server=OURS, client=OURS)
    calls: list[Any] = []
    for context in sides.contexts:
        keep = getattr(context, CALLBACK)

        def count(*arguments: Any, keep: Any = keep) -> None:
            calls.append(arguments)
            keep(*arguments)

        setattr(context, CALLBACK, count)
    sides.shake_hands()
    assert calls
    for side in (sides.server, sides.client):
        assert hasattr(side, PRESENTED)
        end_handshake(side)
        assert not hasattr(side, PRESENTED)
    before = len(calls)
    for sender, receiver in ((sides.client, sides.server), (sides.server, sides.client)):
        sender.write(b"x" * 20_000)
        assert receiver.read(10) == b"x" * 10
    assert len(calls) == before
    assert sides.server.getpeercert(binary_form=True)


@pytest.mark.parametrize(
    "message", [b"", b"\x0b\0\0\4\0\0\0\0", b"\x0b\0\0\3\0\0\0", b"\x0b\0\0\7\0\0\4\0\0\1\x30"]
)
def test_message_without_a_usable_certificate(message: bytes, tmp_path: Path) -> None:
    sides = Sides(ssl.TLSVersion.TLSv1_3, tmp_path, server=OURS, client=OURS)
    setattr(sides.server, PRESENTED, message)
    assert presented_subject(sides.server) == ""
