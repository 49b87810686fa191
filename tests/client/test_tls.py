"""TLS: trusted authorities, client certificates and error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import SecurityMismatch
from kwire.client.security import PLAINTEXT, Security, parse_security
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
    inline = {**TRUSTING, "ssl.truststore.certificates": AUTHORITY.read_text()}
    del inline["ssl.truststore.location"]
    assert send(proxy, parse_security(inline)) == 1


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
        ({"ssl.truststore.type": "JKS"}, "ssl.truststore.type=JKS is not supported: .*keytool -list -rfc"),
        (
            {"ssl.keystore.location": "a", "ssl.keystore.type": "PKCS12"},
            "PKCS12 is not supported.*openssl pkcs12",
        ),
        ({"ssl.keystore.location": "a"}, "ssl.keystore.type=JKS, which is Kafka's default"),
        ({"ssl.truststore.location": "nosuch"}, "ssl.truststore.location=nosuch: No such file"),
        ({"ssl.truststore.certificates": "x"}, "ssl.truststore.certificates has no certificate in PEM"),
        ({"ssl.truststore.certificates": CHAIN.replace("M", "!", 1)}, "is not valid PEM"),
        ({"ssl.truststore.certificates": CHAIN.replace("M", "A", 1)}, "certificates cannot be used: "),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(AUTHORITY)}, "private key and its cert"),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(CERTIFICATES / "locked.pem")},
            "locked.pem cannot be used: ",
        ),
        ({"ssl.endpoint.identification.algorithm": "LDAPS"}, "use https, or leave it empty"),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols has SSLv3: use TLSv1.2, TLSv1.3"),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites is not supported"),
    ],
)
def test_invalid_tls_properties_raise(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_security({**TRUSTING, **properties})
