"""Certificates and client settings of `Broker(tls=...)`, in handshakes without a broker."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from kwire.broker.security.tls_context import server_context
from kwire.broker.security.tls_stores import load_key_store, load_trust_store
from kwire.testing import Broker, ClientConfig, Cluster, Tls
from kwire.testing.broker import Process
from kwire.testing.tls import Certificates, ClientTls, Defect
from kwire.wire.java_properties import load

# Each test imports its clients: importing kafka-python calls deprecated functions of Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TIMEOUT_S = 20


def listener_context(certificates: Certificates) -> ssl.SSLContext:
    """Return the context of a listener from its broker configs."""
    prefix = "listener.name.ssl."
    settings = certificates.listener_settings("SSL")
    assert all(key.startswith(prefix) for key in settings)
    own = {key.removeprefix(prefix): value for key, value in settings.items()}
    return server_context(own, load_key_store(own, _no_file), load_trust_store(own, _no_file))


def _no_file(path: str) -> bytes:
    raise FileNotFoundError(2, "No such file", path)


def handshake(certificates: Certificates, client: ClientTls, name: str = "127.0.0.1") -> Mapping[str, Any]:
    """Connect a client of kafka-python to a listener, and return the client's certificate."""
    settings = ClientConfig("127.0.0.1:1", tls=client).kafka_python
    assert settings["security_protocol"] == "SSL"
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = listener_context(certificates).wrap_bio(to_server, to_client, server_side=True)
    peer = settings["ssl_context"].wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(3):
        for one in (peer, server):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                pass
    server.write(b"x")
    assert peer.read() == b"x"
    return server.getpeercert() or {}


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_client_without_certificate_connects(name: str) -> None:
    certificates = Certificates(Tls())
    assert handshake(certificates, certificates.client(None, None), name) == {}


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_client_certificate_names_the_client(client_auth: Any) -> None:
    certificates = Certificates(Tls(client_auth))
    peer = handshake(certificates, certificates.client("alice", None))
    assert peer["subject"] == ((("commonName", "alice"),),)


def test_client_without_required_certificate_is_refused() -> None:
    certificates = Certificates(Tls("required"))
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        handshake(certificates, certificates.client(None, None))


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("expired", "certificate has expired"),
        ("foreign", "unable to get local issuer certificate"),
        ("wrong-host", "IP address mismatch"),
    ],
)
def test_clients_refuse_a_broker_with_a_defect(defect: Defect, message: str) -> None:
    certificates = Certificates(Tls(defect=defect))
    with pytest.raises(ssl.SSLCertVerificationError, match=message):
        handshake(certificates, certificates.client(None, None))


@pytest.mark.parametrize(
    ("defect", "message"),
    [("expired", "certificate has expired"), ("foreign", "unable to get local issuer certificate")],
)
def test_broker_refuses_a_client_certificate_with_a_defect(defect: Defect, message: str) -> None:
    certificates = Certificates(Tls("requested"))
    with pytest.raises(ssl.SSLCertVerificationError, match=message):
        handshake(certificates, certificates.client("alice", defect))


def test_broker_does_not_check_host_names_of_clients() -> None:
    certificates = Certificates(Tls("required"))
    assert handshake(certificates, certificates.client("alice", "wrong-host"))["subject"]


def test_client_certificates_are_issued_once() -> None:
    certificates = Certificates(Tls())
    first = certificates.client("alice", None)
    assert certificates.client("alice", None) == first
    assert certificates.client("alice", "expired") != first != certificates.client("bob", None)
    assert Certificates(Tls()).client(None, None) != certificates.client(None, None)


@contextmanager
def accepting(certificates: Certificates) -> Iterator[tuple[str, list[Any]]]:
    """Accept a TLS connection in a thread; yield the address, and a list for the client's subject."""
    context = listener_context(certificates)
    found: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            listener.settimeout(TIMEOUT_S)
            accepted, _ = listener.accept()
            try:
                with context.wrap_socket(accepted, server_side=True) as connection:
                    found.append((connection.getpeercert() or {}).get("subject"))
            except OSError as error:
                found.append(error)
                accepted.close()

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = listener.getsockname()
        yield f"{host}:{port}", found
        thread.join()


@pytest.mark.parametrize("name", [None, "alice"])
def test_confluent_kafka_completes_the_handshake(name: str | None) -> None:
    from confluent_kafka import Producer

    certificates = Certificates(Tls("none" if name is None else "required"))
    with accepting(certificates) as (address, found):
        config = ClientConfig(address, tls=certificates.client(name, None)).confluent
        assert config["security.protocol"] == "SSL"
        producer = Producer({**config, "log_level": 0})
        while not found:
            producer.poll(0.05)
    assert found == [None if name is None else ((("commonName", name),),)]


def test_java_properties_are_the_text_of_a_file() -> None:
    certificates = Certificates(Tls())
    config = ClientConfig("h:1", "al=ice", "ü", tls=certificates.client("alice", None))
    assert config.java["security.protocol"] == "SASL_SSL"
    assert load(config.java_properties) == config.java
    assert len(config.java_properties.splitlines()) == len(config.java)


def test_protocol_follows_from_users_and_tls() -> None:
    tls = Certificates(Tls()).client(None, None)
    assert ClientConfig("h:1").security_protocol == "PLAINTEXT"
    assert ClientConfig("h:1", "alice", "x").security_protocol == "SASL_PLAINTEXT"
    assert ClientConfig("h:1", tls=tls).security_protocol == "SSL"
    assert ClientConfig("h:1", "alice", "x", tls=tls).confluent["security.protocol"] == "SASL_SSL"
    assert "sasl.mechanism" not in ClientConfig("h:1", tls=tls).java


def test_texts_hide_private_keys() -> None:
    tls = Certificates(Tls()).client("alice", None)
    assert repr(ClientConfig("h:1", tls=tls)) == "ClientConfig(h:1, ClientTls([hidden]))"
    assert repr(ClientConfig("h:1", "a", "secret", tls=tls)) == (
        "ClientConfig(h:1, a, [hidden], PLAIN, ClientTls([hidden]))"
    )


@pytest.mark.parametrize("kind", [Broker, Cluster])
def test_invalid_arguments_are_explained(kind: Any) -> None:
    with pytest.raises(TypeError, match="tls is True, or Tls"):
        kind(tls="required")
    with pytest.raises(ValueError, match="client_auth='always': use one of none, requested, required"):
        kind(tls=Tls("always"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="defect='old': use one of expired, foreign, wrong-host"):
        kind(tls=Tls(defect="old"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pass either tls or listeners: with tls, the listeners are set"):
        kind(overrides={"listeners": "SSL://127.0.0.1:0"}, tls=True)


def test_client_config_explains_what_is_missing() -> None:
    without, tls = Cluster(), Cluster(tls=True)
    with pytest.raises(LookupError, match="there is no TLS: pass tls=True"):
        without.client_config(certificate="alice")
    with pytest.raises(LookupError, match="there are no users"):
        tls.client_config("alice")
    with pytest.raises(LookupError, match="there are no users"):
        tls.create_token()
    with pytest.raises(ValueError, match="defect='expired' is that of a certificate"):
        tls.client_config(defect="expired")
    with pytest.raises(ValueError, match="defect='old': use one of"):
        tls.client_config(certificate="alice", defect="old")  # type: ignore[arg-type]
    with pytest.raises(LookupError, match=r"there are no users: pass .* or tls=True"):
        Cluster(tls=False).client_config()


def test_missing_package_is_named_with_its_extra(process: Process) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from kwire.testing import Broker\n"
        f"try:\n    Broker(tls=True, process={process!r})\n"
        "except ImportError as error:\n    print(error)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.endswith("pip install 'kwire[tls]'\n")


def test_brokers_without_tls_import_no_certificates() -> None:
    program = (
        "import sys\nfrom kwire.testing import Broker, Tls\n"
        "with Broker(): pass\n"
        "print([name for name in ('cryptography', 'kwire.certificates.authority') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout == "[]\n"


@pytest.mark.parametrize("library", ["freezegun", "time-machine"])
def test_certificates_are_valid_while_time_is_frozen(library: str) -> None:
    import freezegun
    import time_machine

    at = "2001-01-01"
    with freezegun.freeze_time(at) if library == "freezegun" else time_machine.travel(at, tick=False):
        certificates = Certificates(Tls("required"))
        client = certificates.client("alice", None)
    assert handshake(certificates, client)["subject"]


@pytest.mark.linux("a file in memory, from which OpenSSL reads the private key")
def test_certificates_need_no_files() -> None:
    from pyfakefs.fake_filesystem_unittest import Patcher

    with Patcher():
        certificates = Certificates(Tls("required"))
        assert handshake(certificates, certificates.client("alice", None))["subject"]
