"""Certificates of an authority, checked by openssl, keytool, TLS handshakes and kwire's own readers."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kwire.broker.security.distinguished_name import rfc2253_name, subject_of
from kwire.broker.security.tls_context import client_context, server_context
from kwire.broker.security.tls_stores import load_key_store, load_trust_store
from kwire.certificates.authority import Authority, IssuedCertificate, canonical_name, common_name

NOW_MS = int(time.time() * 1000)
DAY_MS = 24 * 3600 * 1000
PASSWORD = "store secret ü"
AUTHORITY = Authority.create("the test authority", NOW_MS)
NAMES = ["localhost", "127.0.0.1", "::1", "*.example.org", "my_broker", "bücher.example"]
BROKER = AUTHORITY.issue("CN=broker", NAMES, now_ms=NOW_MS)
CLIENT = AUTHORITY.issue("CN=alice,OU=billing", now_ms=NOW_MS)
needs_keytool = pytest.mark.skipif(shutil.which("keytool") is None, reason="needs Java's keytool")


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def contexts(
    server: IssuedCertificate, client: IssuedCertificate | None, trusted: Authority
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a listener with client certificates, and of a client, from inline settings."""
    trust = load_trust_store(trusted.inline_settings(), _no_file)
    accepted = load_trust_store(AUTHORITY.inline_settings(), _no_file)
    listener = server_context(
        {"ssl.client.auth": "requested"}, load_key_store(server.inline_settings(), _no_file), accepted
    )
    own = None if client is None else load_key_store(client.inline_settings(), _no_file)
    peer = client_context({}, own, trust)
    for one in (listener, peer):
        if sys.version_info >= (3, 13):  # as `ssl.create_default_context` does there
            one.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    return listener, peer


def _no_file(path: str) -> bytes:
    raise FileNotFoundError(2, "No such file", path)


def handshake(
    listener: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost"
) -> Mapping[str, object]:
    """Connect both in memory, and return the client's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = listener.wrap_bio(to_server, to_client, server_side=True)
    peer = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(3):
        for one in (peer, server):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                pass
    server.write(b"x")
    assert peer.read() == b"x"
    return server.getpeercert() or {}


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "a.example.org", "bücher.example"])
def test_broker_and_client_accept_each_other(name: str) -> None:
    certificate = handshake(*contexts(BROKER, CLIENT, AUTHORITY), name)
    assert certificate["subject"] == ((("organizationalUnitName", "billing"),), (("commonName", "alice"),))


def test_broker_certificate_is_a_client_certificate_too() -> None:
    certificate = handshake(*contexts(BROKER, BROKER, AUTHORITY))
    assert certificate["subject"] == ((("commonName", "broker"),),)


def test_other_name_is_refused() -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'example"):
        handshake(*contexts(BROKER, None, AUTHORITY), "example.org")


def test_certificate_of_another_authority_is_refused() -> None:
    other = Authority.create("the test authority", NOW_MS)  # the same name, but another key
    # OpenSSL also sends the certificate of an authority that a broker trusts.
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed certificate in certificate chain"):
        handshake(*contexts(BROKER, None, other))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(*contexts(BROKER, other.issue("CN=alice", now_ms=NOW_MS), AUTHORITY))


def test_expired_certificate_is_refused() -> None:
    expired = AUTHORITY.issue("CN=broker", NAMES, now_ms=NOW_MS - 2 * DAY_MS, lifetime_days=1)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(*contexts(expired, None, AUTHORITY))


def test_openssl_verifies_the_chain(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(AUTHORITY.certificate_pem)
    (tmp_path / "broker.pem").write_text(BROKER.chain_pem)
    (tmp_path / "key.pem").write_text(BROKER.key_pem)
    for purpose in ("sslserver", "sslclient"):
        verified = output(
            *("openssl", "verify", "-x509_strict", "-purpose", purpose, "-verify_hostname", "localhost"),
            *("-CAfile", tmp_path / "ca.pem", tmp_path / "broker.pem"),
        )
        assert verified.strip().endswith(": OK")
    of_certificate = output("openssl", "x509", "-in", tmp_path / "broker.pem", "-noout", "-pubkey")
    assert of_certificate == output("openssl", "pkey", "-in", tmp_path / "key.pem", "-pubout")
    text = output("openssl", "x509", "-in", tmp_path / "ca.pem", "-noout", "-text")
    assert "CA:TRUE, pathlen:0" in text
    assert "prime256v1" in text


def test_authority_is_loaded_again() -> None:
    loaded = Authority.load(AUTHORITY.certificate_pem, AUTHORITY.key_pem)
    assert loaded.expires_ms == AUTHORITY.expires_ms
    issued = loaded.issue("CN=broker", ["localhost"], now_ms=NOW_MS)
    handshake(*contexts(issued, CLIENT, AUTHORITY))


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        (AUTHORITY.certificate_pem, BROKER.key_pem, "the private key does not belong to the certificate"),
        (BROKER.chain_pem, BROKER.key_pem, "the certificate is not that of an authority"),
        ("nothing", BROKER.key_pem, "Unable to load PEM file"),
        (AUTHORITY.certificate_pem, "nothing", "Unable to load PEM file"),
    ],
)
def test_other_texts_are_no_authority(certificate: str, key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Authority.load(certificate, key)


def test_certificate_does_not_outlive_the_authority() -> None:
    short = Authority.create("short", NOW_MS, lifetime_days=3)
    issued = short.issue("CN=broker", now_ms=NOW_MS)
    assert issued.expires_ms == short.expires_ms == (NOW_MS + 3 * DAY_MS) // 1000 * 1000
    assert short.issue("CN=broker", now_ms=NOW_MS, lifetime_days=1).expires_ms < short.expires_ms


@pytest.mark.parametrize(
    "name", ["256.1.1.1", "", "a b", "-a", "a..b", "https://a", "a:9092", "ü" * 99, "a" * 254]
)
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is neither a host name nor an IP address"):
        canonical_name(name)
    with pytest.raises(ValueError, match="is neither a host name nor an IP address"):
        AUTHORITY.issue("CN=broker", [name], now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("nonsense", "^nonsense is not a subject such as CN=alice,OU=billing$"),
        ("", "^the subject is empty: "),
        (f"CN={'x' * 65}", "length must be >= 1 and <= 64"),
    ],
)
def test_invalid_subjects_are_refused(subject: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AUTHORITY.issue(subject, now_ms=NOW_MS)


@pytest.mark.parametrize("name", ["alice", "a, b=c+d", ' #x"\\;<> ', "ünï", "broker-1.example.org"])
def test_common_name_may_have_any_characters(name: str) -> None:
    issued = AUTHORITY.issue(common_name(name), now_ms=NOW_MS)
    [attribute] = issued.certificate.subject
    assert (attribute.rfc4514_attribute_name, attribute.value) == ("CN", name)
    assert rfc2253_name(subject_of(issued.der)).startswith("CN=")


def test_names_are_those_of_the_certificate() -> None:
    expected = ["localhost", "127.0.0.1", "::1", "*.example.org", "my_broker", "xn--bcher-kva.example"]
    assert BROKER.names == expected == [canonical_name(name) for name in NAMES]
    assert CLIENT.names == []


def test_issued_certificate_is_loaded_again() -> None:
    loaded = IssuedCertificate.load(BROKER.key_pem + BROKER.chain_pem)
    assert (loaded.der, loaded.key_pem) == (BROKER.der, BROKER.key_pem)
    assert AUTHORITY.has_issued(loaded)
    assert not Authority.create("the test authority", NOW_MS).has_issued(loaded)
    with pytest.raises(ValueError, match="does not belong to the certificate"):
        IssuedCertificate.load(CLIENT.key_pem + BROKER.chain_pem)


def test_keys_of_other_kinds_are_refused() -> None:
    encrypted = BROKER.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    ).decode()
    other = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(ValueError, match="the private key has a password"):
        IssuedCertificate.load(encrypted + BROKER.chain_pem)
    with pytest.raises(ValueError, match="not an elliptic-curve key"):
        IssuedCertificate.load(other.decode() + BROKER.chain_pem)


def test_texts_of_objects_hide_keys() -> None:
    for text, key in ((repr(BROKER), BROKER.key_pem), (repr(AUTHORITY), AUTHORITY.key_pem)):
        assert "[hidden]" in text
        assert key[60:80] not in text
    assert repr(CLIENT) == "IssuedCertificate(CN=alice,OU=billing, [hidden])"


# --- PKCS12


def test_key_store_is_read_back() -> None:
    settings = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "own.p12",
        "ssl.keystore.password": PASSWORD,
    }
    store = load_key_store(settings, {"own.p12": BROKER.key_store(PASSWORD)}.__getitem__)
    assert store is not None
    [key] = store.keys
    assert key.chain == BROKER.chain
    assert key.block.data == BROKER.key_der
    assert store.certificates == (("kafka", BROKER.der),)


def test_trust_store_is_read_back() -> None:
    settings = {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": "trust.p12",
        "ssl.truststore.password": PASSWORD,
    }
    store = load_trust_store(settings, {"trust.p12": AUTHORITY.trust_store(PASSWORD)}.__getitem__)
    inline = load_trust_store(AUTHORITY.inline_settings(), _no_file)
    assert store is not None
    assert inline is not None
    assert store.certificates == inline.certificates


@needs_keytool
def test_java_reads_both_stores(tmp_path: Path) -> None:
    for content, kind in (
        (BROKER.key_store("secret"), "PrivateKeyEntry"),
        (AUTHORITY.trust_store("secret"), "trustedCertEntry"),
    ):
        path = tmp_path / f"{kind}.p12"
        path.write_bytes(content)
        listed = output("keytool", "-list", "-keystore", path, "-storepass", "secret")
        assert "Your keystore contains 1 entry" in listed
        assert "kafka, " in listed
        assert kind in listed


# --- the optional package


def test_missing_package_is_named_with_its_extra() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from kwire.certificates import CertificatesUnavailable\n"
        "try:\n    import kwire.certificates.authority\n"
        "except CertificatesUnavailable as error:\n    print(error)"
    )
    assert output(sys.executable, "-c", program) == (
        "the Python package cryptography is not installed, and certificates need it: "
        "pip install 'kwire[tls]'\n"
    )
