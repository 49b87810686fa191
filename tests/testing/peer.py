"""A client for tests of injected faults: it sees every byte and retries nothing."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from kwire.testing import Kafka
from kwire.wire import registry
from kwire.wire.batch import build
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.schema import Message

TIMEOUT_SECONDS = 10


class Peer:
    """A connection with a client id."""

    def __init__(self, broker: Kafka, client_id: str = "peer") -> None:
        host, _, port = broker.bootstrap_servers.rpartition(",")[2].rpartition(":")
        self.sock = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        self.client_id = client_id

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, request: Message, version: int) -> None:
        self.sock.sendall(registry.encode_request(request, version, 1, self.client_id))

    def receive(self, size: int) -> bytes:
        """Return `size` bytes, or fewer if the broker closes the connection."""
        data = b""
        with suppress(ConnectionResetError):  # the broker closed it before it had read everything
            while len(data) < size and (more := self.sock.recv(size - len(data))):
                data += more
        return data

    def receive_response(self, request: Message, version: int) -> Any:
        size = int.from_bytes(self.receive(4), "big")
        response_class = registry.API_VERSIONS[request.API_KEY].response_class
        return registry.decode_response(response_class, version, self.receive(size))[1]

    def request(self, request: Message, version: int) -> Any:
        self.send(request, version)
        return self.receive_response(request, version)


def produce_request(topic: str, value: bytes = b"v", *, acks: int = -1) -> ProduceRequest:
    """Return a Produce request for partition 0."""
    data = PartitionProduceData(index=0, records=build([(1, None, value, [])]))
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
