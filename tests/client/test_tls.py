"""TLS: trusted authorities, client certificates and error messages."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import SecurityMismatch
from kwire.client.security import PLAINTEXT, Security, parse_security
from kwire.client.tls import create_context
from kwire.testing import Broker
from tests.client.tls_proxy import AUTHORITY, BROKER, CERTIFICATES, TlsProxy

TRUSTING = {
    "security.protocol": "SSL",
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": str(AUTHORITY),
}
SHOWING = {**TRUSTING, "ssl.keystore.type": "PEM"}
KEY, _, CHAIN = BROKER.read_text().partition("-----BEGIN CERTIFICATE-----")
CHAIN = f"-----BEGIN CERTIFICATE-----{CHAIN}"


def inline(text: str) -> dict[str, str]:
    """Return the properties of an inline trust store in place of the file in `TRUSTING`."""
    return {"ssl.truststore.location": "", "ssl.truststore.certificates": text}


@contextmanager
def broker_behind(proxy: TlsProxy) -> Iterator[TlsProxy]:
    """Run a broker behind a TLS proxy."""
    with Broker({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}) as broker:
        proxy.upstream = int(broker.bootstrap_servers.rpartition(":")[2])
        yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def proxy() -> Iterator[TlsProxy]:
    with broker_behind(TlsProxy()) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def client_auth_proxy() -> Iterator[TlsProxy]:
    """Run a broker behind a TLS proxy that requires client certificates."""
    with broker_behind(TlsProxy(wants_certificate=True)) as proxy:
        yield proxy


def send(proxy: TlsProxy, security: Security) -> int:
    """Connect through the proxy and return the number of brokers in the metadata."""
    servers = [("127.0.0.1", proxy.port)]
    with ClusterClient(servers, client_id="test", timeout_seconds=5, security=security) as cluster:
        return len(cluster.brokers())


@pytest.mark.parametrize("own", [AUTHORITY, CERTIFICATES / "joined.pem"], ids=["lines", "joined"])
def test_trusted_broker_is_reached(proxy: TlsProxy, own: Path, tmp_path: Path) -> None:
    if own.name == "joined.pem":
        own = tmp_path / "joined.pem"
        own.write_text(AUTHORITY.read_text().replace("\n", " "))
    assert send(proxy, parse_security({**TRUSTING, "ssl.truststore.location": str(own)})) == 1


def test_authority_may_be_inline_in_the_properties(proxy: TlsProxy) -> None:
    properties = {**TRUSTING, "ssl.truststore.certificates": AUTHORITY.read_text()}
    del properties["ssl.truststore.location"]
    assert send(proxy, parse_security(properties)) == 1


def test_untrusted_broker_is_refused(proxy: TlsProxy) -> None:
    with pytest.raises(SecurityMismatch, match=r"has a certificate that is not trusted \(.*ssl.truststore"):
        send(proxy, parse_security({"security.protocol": "SSL"}))


def test_wrong_host_name_is_accepted_only_without_endpoint_identification() -> None:
    with broker_behind(TlsProxy(CERTIFICATES / "elsewhere.pem")) as proxy:
        with pytest.raises(SecurityMismatch, match="has a certificate for another name"):
            send(proxy, parse_security(TRUSTING))
        assert send(proxy, parse_security({**TRUSTING, "ssl.endpoint.identification.algorithm": ""})) == 1


@pytest.mark.parametrize(
    "own",
    [
        {"ssl.keystore.location": str(BROKER)},
        {"ssl.keystore.location": str(CERTIFICATES / "locked.pem"), "ssl.key.password": "locked"},
        {"ssl.keystore.key": KEY, "ssl.keystore.certificate.chain": CHAIN.replace("\n", " ")},
    ],
    ids=["file", "locked", "inline"],
)
def test_client_sends_its_certificate(client_auth_proxy: TlsProxy, own: dict[str, str]) -> None:
    assert send(client_auth_proxy, parse_security({**SHOWING, **own})) == 1


@pytest.mark.parametrize("protocols", ["TLSv1.2", "TLSv1.2,TLSv1.3"])
def test_missing_client_certificate_raises_with_the_reason(
    client_auth_proxy: TlsProxy, protocols: str
) -> None:
    with pytest.raises(
        SecurityMismatch, match=r"requires a client certificate that it trusts|handshake failure"
    ):
        send(client_auth_proxy, parse_security({**TRUSTING, "ssl.enabled.protocols": protocols}))


def test_protocol_mismatch_with_tls_raises_with_the_fix(proxy: TlsProxy) -> None:
    with pytest.raises(SecurityMismatch, match=r"requires TLS: set security.protocol=SSL in"):
        send(proxy, PLAINTEXT)
    plain = TlsProxy()
    plain.close()
    plain.port = proxy.upstream
    with pytest.raises(SecurityMismatch, match=r"does not use TLS: set security.protocol=PLAINTEXT"):
        send(plain, parse_security(TRUSTING))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"ssl.truststore.type": "JKS"},
            "authority.pem is a PEM file, but ssl.truststore.type is JKS: set ssl.truststore.type=PEM",
        ),
        (
            {"ssl.keystore.location": str(BROKER)},
            "broker.pem is a PEM file, but ssl.keystore.type is JKS: set ssl.keystore.type=PEM",
        ),
        ({"ssl.truststore.location": "nosuch"}, "location=nosuch cannot be read: No such file"),
        (inline("x"), "ssl.truststore.certificates has no certificate in PEM"),
        (inline(CHAIN.replace("M", "!", 1)), "is not valid PEM"),
        (inline(CHAIN.replace("M", "A", 1)), "certificates has an invalid certificate: "),
        ({"ssl.truststore.certificates": CHAIN}, "are both set: remove one of them"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(AUTHORITY)}, "has no private key in PEM"),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(CERTIFICATES / "locked.pem")},
            "locked.pem has an encrypted private key: set ssl.key.password",
        ),
        ({"ssl.endpoint.identification.algorithm": "LDAPS"}, "use https, or leave it empty"),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols has SSLv3: use TLSv1.2, TLSv1.3"),
        ({"ssl.protocol": "SSLv3"}, "ssl.protocol=SSLv3: use one of TLS, TLSv1.2, TLSv1.3"),
        ({"ssl.cipher.suites": "x"}, r"ssl\.cipher\.suites"),
    ],
)
def test_invalid_tls_properties_raise(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_security({name: value for name, value in {**TRUSTING, **properties}.items() if value})


def test_client_loads_pkcs12_stores_under_the_default_type(
    client_auth_proxy: TlsProxy, tmp_path: Path
) -> None:
    """As in Java, the content decides, since keytool writes PKCS12, and Kafka's default type is JKS."""
    key = serialization.load_pem_private_key(KEY.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
    encryption = serialization.BestAvailableEncryption(b"secret")
    own, trusted = tmp_path / "own.jks", tmp_path / "trusted.jks"
    certificate = x509.load_pem_x509_certificate(CHAIN.encode())
    own.write_bytes(pkcs12.serialize_key_and_certificates(b"own", key, certificate, None, encryption))
    authority = x509.load_pem_x509_certificate(AUTHORITY.read_bytes())
    entry = pkcs12.PKCS12Certificate(authority, b"authority")
    trusted.write_bytes(pkcs12.serialize_java_truststore([entry], encryption))
    stores = {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(own),
        "ssl.keystore.password": "secret",
        "ssl.truststore.location": str(trusted),
        "ssl.truststore.password": "secret",
    }
    assert send(client_auth_proxy, parse_security(stores)) == 1


def test_jks_store_of_a_client_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    store = tmp_path / "trusted.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    properties = {"security.protocol": "SSL", "ssl.truststore.location": str(store)}
    with pytest.raises(
        ValueError, match=r"is a JKS store, .*convert it with keytool -importkeystore -srckey"
    ):
        parse_security(properties)


def test_endless_file_is_refused() -> None:
    with pytest.raises(ValueError, match="location=/dev/zero has more than 2097152 bytes"):
        parse_security({**TRUSTING, "ssl.truststore.location": "/dev/zero"})


def test_client_has_the_configured_cipher_suites_and_refuses_renegotiation() -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    context = create_context({**TRUSTING, "ssl.cipher.suites": suite})
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    names = [one["name"] for one in context.get_ciphers() if not one["name"].startswith("TLS_")]
    assert names == ["ECDHE-ECDSA-AES128-GCM-SHA256"]
    assert context.options & ssl.OP_NO_RENEGOTIATION
    with pytest.raises(ValueError, match=r"^ssl\.provider=BC is not supported"):
        create_context({**TRUSTING, "ssl.provider": "BC"})


def test_pem_stores_do_not_import_cryptography() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None; from kwire.client.security import parse_security; "
        f"parse_security({ {**SHOWING, 'ssl.keystore.location': str(BROKER)}!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
