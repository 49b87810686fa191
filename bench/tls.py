"""TLS: throughput, the cost of a handshake, a storm of new connections, and the memory of idle connections.

Certificates have P-256 keys. Each broker is pinned to one core. The clients, which need as much CPU for TLS
as the broker, run on the other core.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import latency, throughput
from bench.brokers import BROKERS, Broker, free_port
from bench.figures import Figure, Samples, percentile
from kwire.certificates.authority import Authority

LISTENERS = {"without client certificates": "ENCRYPTED", "with client certificates": "MUTUAL"}
HANDSHAKES = 300
CONNECTIONS_PER_SECOND = 200
IDLE_CONNECTIONS = 800
SETTLE_SECONDS = 2.0
BROKER_CORE, CLIENT_CORE = "0", "1"

STORM = """
import socket, ssl, sys, time
port, rate = int(sys.argv[1]), int(sys.argv[2])
context = ssl.create_default_context(cafile=sys.argv[3])
begun, count = time.perf_counter(), 0
while True:
    with socket.create_connection(("127.0.0.1", port)) as sock, context.wrap_socket(
        sock, server_hostname="localhost"
    ):
        count += 1
    time.sleep(max(0.0, begun + count / rate - time.perf_counter()))
"""
"""A program that opens and closes connections at a rate until it is killed."""


class Certificates:
    """The certificates of the brokers and of a client, as PEM files in a directory."""

    def __init__(self, directory: Path) -> None:
        now_ms = time.time_ns() // 1_000_000
        authority = Authority.create("bench", now_ms)
        self.authority = directory / "authority.pem"
        self.authority.write_text(authority.certificate_pem)
        names = ("localhost", "127.0.0.1")
        broker = authority.issue("CN=broker", names, now_ms=now_ms)
        client = authority.issue("CN=client", now_ms=now_ms)
        self.broker, self.client = directory / "broker.pem", directory / "client.pem"
        self.broker.write_text(broker.key_pem + broker.chain_pem)
        self.client.write_text(client.key_pem + client.chain_pem)

    def context(self, *, has_own: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority)
        if has_own:
            context.load_cert_chain(self.client)
        return context


def _secured(kind: type[Broker], certificates: Certificates) -> Broker:
    """Return a broker on one core, with listeners with and without client certificates."""
    ports = {name: free_port() for name in LISTENERS.values()}

    class Secured(kind):  # type: ignore[misc, valid-type]
        def command(self) -> list[str]:
            return ["taskset", "-c", BROKER_CORE, *super().command()]

    plain, controller = free_port(), free_port()
    shown = {"PLAINTEXT": plain, **ports}
    broker: Broker = Secured(
        {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": ",".join(
                f"{name}://127.0.0.1:{port}" for name, port in {**shown, "CONTROLLER": controller}.items()
            ),
            "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in shown.items()),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            + ",".join(f"{name}:SSL" for name in ports),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
            "listener.name.mutual.ssl.client.auth": "required",
        }
    )
    broker.port = plain
    broker.ports = ports
    broker.client = {
        "bootstrap.servers": f"localhost:{ports['ENCRYPTED']}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates.authority),
    }
    return broker


@contextmanager
def _running(names: list[str]) -> Iterator[tuple[dict[str, Broker], Certificates]]:
    with TemporaryDirectory() as directory, ExitStack() as stack:
        certificates = Certificates(Path(directory))
        brokers = {}
        for name in names:
            brokers[name] = _secured(BROKERS[name], certificates)
            stack.callback(brokers[name].discard)
        for broker in brokers.values():
            broker.start()
        yield brokers, certificates


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure one broker after the other in each round. Every second round has the reverse order."""
    if shutil.which("taskset") is None:
        raise RuntimeError("the benchmark needs taskset, which is in util-linux")
    os.sched_setaffinity(0, {int(CLIENT_CORE)})
    figures: dict[str, Figure] = {}
    with _running(names) as (brokers, certificates):
        for name, broker in brokers.items():
            # Later, idle connections would take memory that the broker has released.
            Samples(figures, name).add("idle TLS connection", "KiB", _idle_kib(broker, certificates))
            for size in throughput.SIZES.values():
                throughput.measure_round(broker, size, throughput.WARM_UP_SECONDS)
            _handshakes(broker, certificates)
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                samples = Samples(figures, name)
                for label, size in throughput.SIZES.items():
                    produced, consumed, cost = throughput.measure_round(brokers[name], size, seconds)
                    samples.add(f"TLS, produce {label}", "records/s", produced)
                    samples.add(f"TLS, produce {label}, broker's CPU", "µs/record", cost[0])
                    samples.add(f"TLS, consume {label}", "records/s", consumed)
                    samples.add(f"TLS, consume {label}, broker's CPU", "µs/record", cost[1])
                for label, cost_us in _handshakes(brokers[name], certificates).items():
                    samples.add(f"TLS handshake {label}, broker's CPU", "µs", cost_us)
                quiet, loaded = _p99(brokers[name], certificates, seconds)
                samples.add("TLS, produce one record, p99", "ms", quiet)
                samples.add(f"TLS, p99 during {CONNECTIONS_PER_SECOND} new connections/s", "ms", loaded)
    return list(figures.values())


def _connect(broker: Broker, listener: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", broker.ports[listener]))
    connection = context.wrap_socket(sock, server_hostname="localhost")
    # In TLS 1.3, the broker's last message shows that it has accepted the client's certificate.
    connection.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
    connection.recv(1 << 16)
    return connection


def _handshakes(broker: Broker, certificates: Certificates) -> dict[str, float]:
    """Return the broker's CPU in µs for a connection with its handshake and one ApiVersions request."""
    found = {}
    for label, listener in LISTENERS.items():
        context = certificates.context(has_own=listener == "MUTUAL")
        begun = broker.cpu_seconds()
        for _ in range(HANDSHAKES):
            _connect(broker, listener, context).close()
        time.sleep(0.2)
        found[label] = (broker.cpu_seconds() - begun) / HANDSHAKES * 1e6
    return found


def _p99(broker: Broker, certificates: Certificates, seconds: float) -> tuple[float, float]:
    """Return the p99 of acknowledgements in ms: on a quiet broker, and while other clients connect."""
    quiet = percentile(latency.acknowledgements(broker, seconds), 99)
    arguments = (str(broker.ports["ENCRYPTED"]), str(CONNECTIONS_PER_SECOND), str(certificates.authority))
    storm = subprocess.Popen([sys.executable, "-c", STORM, *arguments])
    try:
        time.sleep(SETTLE_SECONDS)
        loaded = percentile(latency.acknowledgements(broker, seconds), 99)
    finally:
        storm.kill()
        storm.wait()
    return quiet * 1e3, loaded * 1e3


def _idle_kib(broker: Broker, certificates: Certificates) -> float:
    """Return how much the memory of the broker grows for an idle connection, in KiB."""
    context = certificates.context(has_own=False)
    _connect(broker, "ENCRYPTED", context).close()
    before = broker.resident_bytes()
    with ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            stack.enter_context(_connect(broker, "ENCRYPTED", context))
        time.sleep(SETTLE_SECONDS)
        return (broker.resident_bytes() - before) / IDLE_CONNECTIONS / 1024
