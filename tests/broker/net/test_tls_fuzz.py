"""Random changes of the encrypted bytes of a client: at worst its connection closes.

Each byte that a client sends, from its first handshake message to its end of TLS, may be changed.
"""

from __future__ import annotations

import logging
import random
import ssl
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.broker.net.test_tls_at_each_byte import Server, TlsClient, framed
from tests.broker.net.test_tls_transport_layer import VERSIONS, server_context

CONNECTIONS = 600
WARM_UP = 100
MAX_GROWTH_BYTES = 200_000
REQUESTS = [b"%d" % number * 50 for number in range(8)]
EXCHANGES = len(REQUESTS) + 3
"""The calls that give a client the time to complete its handshake and to send each request."""
CHANGES = ("flip", "overwrite", "insert", "delete", "truncate", "repeat")


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(server_context(request.param))
    yield server
    server.close()


def changed(data: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(data)), rng.randint(1, 30)
    match rng.choice(CHANGES):
        case "flip":
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case "overwrite":
            return data[:at] + rng.randbytes(size) + data[at + size :]
        case "insert":
            return data[:at] + rng.randbytes(size) + data[at:]
        case "delete":
            return data[:at] + data[at + size :]
        case "truncate":
            return data[:at]
        case _:
            return data[:at] + data[at : at + size] * 2 + data[at + size :]


def converse(server: Server, rng: random.Random) -> bool:
    """Change one message of a client, and return whether the server closes the connection for it."""
    client = TlsClient(server, b"")
    requests = list(REQUESTS)
    target = rng.randrange(EXCHANGES)
    try:
        for _ in range(EXCHANGES):
            client.receive()
            data = client.next_bytes()
            if not data and requests:
                client._tls.write(framed(b"e" + requests.pop(0)))
                data = client._outgoing.read()
            if target == 0 and data:
                data = changed(data, rng)
            target -= bool(data)
            client.send(data)
    except (ssl.SSLError, ConnectionError):
        pass  # the server has sent an alert, or has closed the connection
    is_closed = len(server.server.connections) < 2
    client.sock.close()
    server.until(lambda: len(server.server.connections) == 1 and not server.server._lingering)
    return is_closed


def test_changed_bytes_end_at_most_their_connection(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """No changed request reaches the node, and another client is served after each connection."""
    caplog.set_level(logging.ERROR, "kwire")
    rng = random.Random(1)
    other = TlsClient(server, framed(b"ehello"))
    while other._requests:
        other.receive()
        other.send(other.next_bytes())
    assert other.responses(9) == framed(b"hello")
    outcomes: Counter[bool] = Counter()
    tracemalloc.start()
    try:
        for number in range(CONNECTIONS):
            server.node.frames.clear()
            outcomes[converse(server, rng)] += 1
            sent = [(b"e" + request)[:64] for request in REQUESTS]
            assert server.node.frames == sent[: len(server.node.frames)]
            other._tls.write(framed(b"e%d" % number))
            other.send(other._outgoing.read())
            expected = framed(b"%d" % number)
            assert other.responses(len(expected)) == expected
            server.node.channels.clear()
            server.node.closed.clear()
            if number == WARM_UP:
                before_bytes, _ = tracemalloc.get_traced_memory()
        after_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after_bytes - before_bytes < MAX_GROWTH_BYTES
    assert min(outcomes[True], outcomes[False]) > CONNECTIONS // 10
    assert not caplog.records
