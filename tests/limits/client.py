"""A blocking client with raw requests, which opens no file while it is used."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from time import monotonic, sleep
from typing import Self, cast

from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kwire.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kwire.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message

TOPIC = "orders"
SECONDS = 30
LATEST = -1
RETRIABLE = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
PRODUCE_VERSION, FETCH_VERSION, CREATE_VERSION = 9, 12, 5


class Client:
    """One connection, with one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._sock = socket.create_connection(address, timeout=SECONDS)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def request(self, version: int, request: Message) -> Message:
        self._sock.sendall(encode_request(request, version, 1, "limits"))
        size = int.from_bytes(self._receive(4), "big")
        response_class = API_VERSIONS[request.API_KEY].response_class
        return decode_response(response_class, version, self._receive(size))[1]

    def _receive(self, size: int) -> bytes:
        while len(self._received) < size:
            more = self._sock.recv(1 << 20)
            if not more:
                raise ConnectionError("the broker closed the connection")
            self._received += more
        data, self._received = self._received[:size], self._received[size:]
        return data

    def await_acceptance(self) -> None:
        """Wait until the broker has accepted the connection."""
        self.request(0, ApiVersionsRequest())

    def create_topic(self, partitions: int, configs: Iterable[tuple[str, str]] = ()) -> None:
        topic = CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000 * SECONDS)
        response = cast(CreateTopicsResponse, self.request(CREATE_VERSION, request))
        assert not response.topics[0].error_code

    def produce(self, partition: int, value: bytes, *, acks: int = -1) -> int:
        """Produce a record, and return the error code."""
        batch = bytes(build([(1_700_000_000_000, None, value, [])]))
        data = TopicProduceData(
            name=TOPIC, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        request = ProduceRequest(acks=acks, timeout_ms=1000 * SECONDS, topic_data=[data])
        response = cast(ProduceResponse, self.request(PRODUCE_VERSION, request))
        return response.responses[0].partition_responses[0].error_code

    def produce_with_retries(self, partition: int, value: bytes) -> None:
        """Produce a record, again after each error that a producer retries."""
        deadline = monotonic() + SECONDS
        while (code := self.produce(partition, value)) != ErrorCode.NONE:
            assert code in RETRIABLE, ErrorCode(code).name
            assert monotonic() < deadline, ErrorCode(code).name
            sleep(0.02)

    def end_offsets(self, partitions: int) -> dict[int, int]:
        """Return the latest offset of each partition."""
        topic = ListOffsetsTopic(
            name=TOPIC,
            partitions=[
                ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in range(partitions)
            ],
        )
        response = cast(ListOffsetsResponse, self.request(5, ListOffsetsRequest(topics=[topic])))
        return {one.partition_index: one.offset for one in response.topics[0].partitions}

    def fetch(self, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Fetch from the beginning; return the error code and the number of bytes, by partition."""
        topic = FetchTopic(
            topic=TOPIC,
            partitions=[
                FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
                for index in partitions
            ],
        )
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=50 << 20, topics=[topic])
        response = cast(FetchResponse, self.request(FETCH_VERSION, request))
        return {
            data.partition_index: (data.error_code, len(cast(bytes, data.records or b"")))
            for one in response.responses
            for data in one.partitions
        }
