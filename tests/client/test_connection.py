"""One connection: version negotiation, and peers that are no brokers or that disconnect."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kwire.client.connection import Connection
from kwire.client.errors import Disconnected
from kwire.testing import Broker
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, WireError
from kwire.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.registry import encode_response


@contextmanager
def responding_peer(*responses: bytes) -> Iterator[int]:
    """Run a peer that sends these responses to any requests and closes; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                for answer in responses:
                    peer.recv(65536)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5)


def _versions(correlation_id: int, version: int, response: ApiVersionsResponse) -> bytes:
    pieces = encode_response(ApiKey.API_VERSIONS, version, correlation_id, response)
    return b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]


def _connect(port: int) -> Connection:
    return Connection("127.0.0.1", port, "test", 5)


def test_newest_common_version_is_used(broker: Broker) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with Connection(host, int(port), "test", 5) as connection:
        assert connection.version(ApiKey.METADATA) == 13
        assert connection.version(ApiKey.FETCH) == 12  # topics by name
        assert connection.send(MetadataRequest(topics=[]), MetadataResponse).brokers[0].port == int(port)


def test_old_broker_gets_its_own_versions() -> None:
    old = ApiVersionsResponse(error_code=35, api_keys=[])
    known = ApiVersionsResponse(api_keys=[ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=7)])
    known.api_keys += [ApiVersion(api_key=key, min_version=0, max_version=2) for key in (1, 10)]
    with responding_peer(_versions(1, 0, old), _versions(2, 0, known)) as port, _connect(port) as connection:
        assert connection.version(ApiKey.METADATA) == 7
        assert connection.version(ApiKey.FIND_COORDINATOR) == 2
        with pytest.raises(
            ApiError, match="Fetch versions 0 to 2, and this client supports versions 4 to 12"
        ):
            connection.version(ApiKey.FETCH)
        with pytest.raises(ApiError, match="does not support DescribeCluster"):
            connection.version(ApiKey.DESCRIBE_CLUSTER)


def test_peer_that_is_no_broker_raises() -> None:
    with (
        responding_peer(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port,
        pytest.raises(WireError, match="does not respond like a Kafka broker"),
    ):
        _connect(port)
    with responding_peer(b"\0\0\0\x10ab") as port, pytest.raises(Disconnected, match="closed the connection"):
        _connect(port)


def test_wrong_correlation_id_raises() -> None:
    with (
        responding_peer(_versions(7, 3, ApiVersionsResponse())) as port,
        pytest.raises(WireError, match="request 7"),
    ):
        _connect(port)
