"""TLS contexts: client authentication, host names, versions, cipher suites and errors, in memory."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.broker.security import tls_context
from kwire.broker.security.cipher_suites import TLS13_SUITES, openssl_name
from kwire.broker.security.tls_context import (
    check_handshake,
    client_context,
    private_file,
    server_context,
    server_warnings,
    validation_context,
)
from kwire.broker.security.tls_settings import TlsConfigError
from kwire.broker.security.tls_stores import load_key_store, load_trust_store
from kwire.host.system_os import os as system_os
from tests.broker.security.tls_certificates import Identity

ROOT = Identity("root ca")
INNER = Identity("inner ca", ROOT)
BROKER = Identity("broker", INNER)
CLIENT = Identity("client", ROOT)
STRANGER = Identity("stranger", Identity("other ca"))
OLD = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


def unused(path: str) -> bytes:
    raise AssertionError(path)


def server(settings: dict[str, str] | None = None, *, own: Identity = BROKER) -> ssl.SSLContext:
    found = {**own.keys(INNER), **ROOT.trust(), **(settings or {})}
    return server_context(found, load_key_store(found, unused), load_trust_store(found, unused))


def client(settings: dict[str, str] | None = None, *, trusted: Identity = ROOT) -> ssl.SSLContext:
    found = {**trusted.trust(), **(settings or {})}
    return client_context(found, load_key_store(found, unused), load_trust_store(found, unused))


class Pair:
    """A server and a client that exchange bytes in memory."""

    def __init__(
        self,
        serving: ssl.SSLContext,
        connecting: ssl.SSLContext,
        host: str = "broker.test",
        session: ssl.SSLSession | None = None,
    ) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = serving.wrap_bio(to_server, to_client, server_side=True)
        self.client = connecting.wrap_bio(to_client, to_server, server_hostname=host, session=session)

    def shake(self) -> Pair:
        """Complete the handshake, and one message in each direction. Raises ssl.SSLError."""
        for _ in range(4):
            for side in (self.client, self.server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        for sender, receiver in ((self.client, self.server), (self.server, self.client)):
            sender.write(b"message")
            assert receiver.read() == b"message"
        return self


def test_client_verifies_the_servers_chain_and_host_name() -> None:
    pair = Pair(server(), client()).shake()
    assert pair.client.version() == "TLSv1.3"
    assert pair.client.getpeercert(binary_form=True) == BROKER.der
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer certificate"):
        Pair(server(), client(trusted=STRANGER)).shake()
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        Pair(server(), client(), host="other.test").shake()
    Pair(server(), client(), host="127.0.0.1").shake()


def test_empty_endpoint_identification_algorithm_skips_only_the_host_name() -> None:
    lenient = {"ssl.endpoint.identification.algorithm": ""}
    Pair(server(), client(lenient), host="other.test").shake()
    with pytest.raises(ssl.SSLCertVerificationError):
        Pair(server(), client(lenient, trusted=STRANGER), host="other.test").shake()


def test_chain_may_end_at_a_trusted_certificate_that_is_no_root() -> None:
    Pair(server(), client(trusted=INNER)).shake()


def test_expired_certificate_is_refused() -> None:
    expired = Identity("expired", INNER, is_expired=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        Pair(server(own=expired), client()).shake()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("client_auth", "own", "is_accepted"),
    [
        ("none", None, True),
        ("none", STRANGER, True),
        ("requested", None, True),
        ("requested", CLIENT, True),
        ("requested", STRANGER, False),
        ("required", None, False),
        ("required", CLIENT, True),
        ("required", STRANGER, False),
    ],
)
def test_client_auth(client_auth: str, own: Identity | None, is_accepted: bool, version: str) -> None:
    settings = {"ssl.client.auth": client_auth, "ssl.enabled.protocols": version}
    pair = Pair(server(settings), client({**own.keys(), **settings} if own else settings))
    if not is_accepted:
        with pytest.raises(ssl.SSLError):
            pair.shake()
        return
    pair.shake()
    shown = own.der if own is not None and client_auth != "none" else None
    assert pair.server.getpeercert(binary_form=True) == shown


@pytest.mark.parametrize(
    ("settings", "version"),
    [
        ({"ssl.enabled.protocols": "TLSv1.2"}, "TLSv1.2"),
        ({"ssl.enabled.protocols": "TLSv1.3"}, "TLSv1.3"),
        ({"ssl.enabled.protocols": "TLSv1.2, TLSv1.3", "ssl.protocol": "TLSv1.2"}, "TLSv1.3"),
        ({"ssl.enabled.protocols": "", "ssl.protocol": "TLSv1.2"}, "TLSv1.2"),
        ({"ssl.enabled.protocols": "", "ssl.protocol": "TLS"}, "TLSv1.3"),
        ({"ssl.cipher.suites": OLD}, "TLSv1.2"),
        ({"ssl.cipher.suites": ",".join([OLD, *TLS13_SUITES])}, "TLSv1.3"),
        ({"ssl.cipher.suites": f"{OLD},{TLS13_SUITES[0]}", "ssl.enabled.protocols": "TLSv1.2"}, "TLSv1.2"),
    ],
)
def test_version_of_a_client_with_settings(settings: dict[str, str], version: str) -> None:
    pair = Pair(server(), client(settings)).shake()
    assert pair.client.version() == version


def test_server_has_only_the_configured_versions_and_suites() -> None:
    old = server({"ssl.cipher.suites": OLD})
    pair = Pair(old, client()).shake()
    assert pair.client.version() == "TLSv1.2"
    cipher = pair.client.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-AES128-GCM-SHA256"
    other = client({"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"})
    with pytest.raises(ssl.SSLError, match=r"(?i)no.shared.cipher|handshake.failure"):
        Pair(old, other).shake()
    new = server({"ssl.cipher.suites": ",".join(TLS13_SUITES)})
    with pytest.raises(ssl.SSLError):
        Pair(new, client({"ssl.enabled.protocols": "TLSv1.2"})).shake()


def test_every_mapped_suite_has_the_name_in_the_standard() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    known = {cipher["name"] for cipher in context.get_ciphers()}
    suites = [
        f"TLS_{exchange}_WITH_{cipher}"
        for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA", "RSA")
        for cipher in ("AES_256_GCM_SHA384", "AES_128_GCM_SHA256", "AES_128_CBC_SHA256", "AES_256_CBC_SHA")
    ]
    assert {openssl_name(suite) for suite in suites} <= known
    assert openssl_name("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256") in known
    assert openssl_name("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384") in known
    assert openssl_name("TLS_RSA_WITH_3DES_EDE_CBC_SHA") is None


def test_session_is_resumed_by_ticket() -> None:
    serving, connecting = server({"ssl.client.auth": "required"}), client(CLIENT.keys())
    assert serving.num_tickets == 1
    first = Pair(serving, connecting).shake()
    again = Pair(serving, connecting, session=first.client.session).shake()
    assert again.client.session_reused
    assert again.server.getpeercert(binary_form=True) == CLIENT.der
    # A new context, as after a replacement of a store, accepts no old ticket.
    replaced = Pair(server({"ssl.client.auth": "required"}), connecting, session=first.client.session).shake()
    assert not replaced.client.session_reused


def test_renegotiation_and_compression_are_off() -> None:
    for context in (server(), client()):
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.options & ssl.OP_NO_COMPRESSION


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl.client.auth": "maybe"}, "^ssl.client.auth=maybe: use one of none, requested, required$"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "^ssl.enabled.protocols has TLSv1.1: use TLSv1.2, TLSv1.3"),
        ({"ssl.protocol": "SSLv3"}, "^ssl.protocol=SSLv3: use one of TLS, TLSv1.2, TLSv1.3$"),
        ({"ssl.cipher.suites": "TLS_NEVER"}, "^ssl.cipher.suites has TLS_NEVER, which"),
        (
            {"ssl.cipher.suites": f"{OLD},TLS_RSA_WITH_RC4_128_SHA"},
            "has TLS_RSA_WITH_RC4_128_SHA, which Open",
        ),
        (
            {"ssl.cipher.suites": TLS13_SUITES[0]},
            f"^ssl.cipher.suites lacks {TLS13_SUITES[1]}, {TLS13_SUITES[2]}",
        ),
        (
            {"ssl.cipher.suites": OLD, "ssl.enabled.protocols": "TLSv1.3"},
            "^ssl.cipher.suites has no suite for TLSv1.3$",
        ),
        (
            {"ssl.engine.factory.class": "org.example.Factory"},
            "^ssl.engine.factory.class=org.example.Factory is",
        ),
        ({"ssl.provider": "BC"}, "^ssl.provider=BC is not supported"),
        (
            {"ssl.secure.random.implementation": "NativePRNG"},
            "^ssl.secure.random.implementation=NativePRNG is",
        ),
        ({"ssl.keymanager.algorithm": "NewSunX509"}, "^ssl.keymanager.algorithm=NewSunX509 is not"),
        ({"ssl.trustmanager.algorithm": "SunX509"}, "^ssl.trustmanager.algorithm=SunX509 is not"),
        (
            {"ssl.keystore.key": STRANGER.key_pem()},
            "^ssl.keystore.certificate.chain cannot be used: the private key does not match the certificate$",
        ),
        (
            {"ssl.keystore.key": BROKER.key_pem("secret"), "ssl.key.password": "wrong"},
            "certificate.chain cannot be used: ssl.key.password is not the password of the private key, or",
        ),
    ],
)
def test_invalid_setting_is_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(TlsConfigError, match=message):
        server(settings)


def test_default_values_of_java_keys_are_accepted() -> None:
    server(
        {
            "ssl.engine.factory.class": "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
            "ssl.keymanager.algorithm": "SunX509",
            "ssl.trustmanager.algorithm": "PKIX",
        }
    )


def test_server_without_a_key_store_and_client_with_another_algorithm_are_refused() -> None:
    with pytest.raises(TlsConfigError, match=r"^ssl\.keystore\.location is not set"):
        server_context({}, None, None)
    with pytest.raises(TlsConfigError, match=r"^ssl\.endpoint\.identification\.algorithm=ldaps: use https"):
        client({"ssl.endpoint.identification.algorithm": "LDAPS"})


def test_encrypted_key_is_loaded_with_its_password() -> None:
    own = {"ssl.keystore.key": BROKER.key_pem("secret"), "ssl.key.password": "secret"}
    Pair(server(own), client()).shake()


@pytest.mark.parametrize("platform", [pytest.param("linux", marks=pytest.mark.linux("memfd")), "darwin"])
def test_private_file_is_readable_by_the_user_only_and_removed(
    platform: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_file(b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
        if platform == "darwin":
            assert os.stat(path).st_mode & 0o077 == 0
        elif platform == "linux":
            assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_contexts_leave_no_descriptor_open() -> None:
    server()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    server()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("platform", [pytest.param("linux", marks=pytest.mark.linux("memfd")), "darwin"])
@pytest.mark.parametrize("call", ["create", "write"])
def test_key_that_cannot_be_written_to_its_file_is_explained(
    platform: str, call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if call == "write":
        monkeypatch.setattr(system_os, "write", fail)
    else:
        monkeypatch.setattr(tls_context, "anonymous_file", fail)
        monkeypatch.setattr(tempfile, "mkstemp", fail)
    with pytest.raises(
        TlsConfigError, match=r"^the temporary file for a private key cannot be written: Too many open files$"
    ):
        server()
    assert list(tmp_path.iterdir()) == []


def test_key_file_that_openssl_cannot_open_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def missing(_: bytes) -> Iterator[str]:
        yield "/nosuch/file"

    monkeypatch.setattr(tls_context, "private_file", missing)
    with pytest.raises(TlsConfigError, match=r"certificate.chain cannot be used: No such file or directory$"):
        server()


def test_key_is_written_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    write = system_os.write
    monkeypatch.setattr(system_os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with private_file(b"secret key") as path:
        assert Path(path).read_bytes() == b"secret key"


@pytest.mark.parametrize(
    ("settings", "is_warned"),
    [
        ({}, False),
        ({"ssl.client.auth": "none"}, False),
        ({"ssl.client.auth": "required"}, True),
        ({"ssl.client.auth": "requested"}, True),
        ({"ssl.client.auth": "required", "ssl.truststore.location": "x"}, False),
        ({"ssl.client.auth": "required", "ssl.truststore.certificates": "x"}, False),
    ],
)
def test_client_certificates_of_public_authorities_give_a_warning(
    settings: dict[str, str], is_warned: bool
) -> None:
    warnings = server_warnings(settings)
    assert len(warnings) == is_warned
    if is_warned:
        (warning,) = warnings
        assert warning.startswith(
            f"ssl.client.auth={settings['ssl.client.auth']} without a trust store accepts"
        )


def validating(own: Identity, trusted: Identity) -> ssl.SSLContext:
    chain = [INNER] if own.issuer is INNER else []
    found = {**own.keys(*chain), **trusted.trust()}
    return validation_context(found, load_key_store(found, unused), load_trust_store(found, unused))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_stores_that_accept_each_other_pass_the_handshake(version: str) -> None:
    settings = {"ssl.client.auth": "required", "ssl.enabled.protocols": version}
    check_handshake(server(settings), validating(BROKER, ROOT))
    check_handshake(server(), validating(BROKER, ROOT))
    elsewhere = Identity("broker", INNER, host="elsewhere.test")
    check_handshake(server(settings, own=elsewhere), validating(elsewhere, ROOT))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("own", "client", "trusted", "reason"),
    [
        (BROKER, BROKER, STRANGER, "unable to get local issuer certificate"),
        (BROKER, STRANGER, ROOT, "unable to get local issuer certificate"),
        (Identity("broker", INNER, is_expired=True), BROKER, ROOT, "certificate has expired"),
    ],
)
def test_stores_that_do_not_accept_each_other_fail_the_handshake(
    own: Identity, client: Identity, trusted: Identity, reason: str, version: str
) -> None:
    settings = {"ssl.client.auth": "required", "ssl.enabled.protocols": version}
    with pytest.raises(TlsConfigError, match=f"^a handshake with the key store and .* failed: {reason}"):
        check_handshake(server(settings, own=own), validating(client, trusted))


def test_handshake_without_a_common_version_fails() -> None:
    with pytest.raises(TlsConfigError, match=r"failed: unsupported protocol\. With these stores"):
        check_handshake(
            server({"ssl.enabled.protocols": "TLSv1.3"}),
            validation_context({**ROOT.trust(), "ssl.enabled.protocols": "TLSv1.2"}, None, None),
        )
