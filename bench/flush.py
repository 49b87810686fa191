"""`flush.messages=1`: acknowledgements per second if each record must be on disk before its acknowledgement.

32 producers on separate connections each have one request in flight. A request has a batch with one record of
100 B. One loop runs all producers over raw sockets, so that clients take little processor time. A topic has
either one partition, so that all producers share a log, or eight partitions.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from crc32c import crc32c

from bench.brokers import Broker, running
from bench.figures import Figure
from kwire.wire.plural import plural

PRODUCERS = 32
RECORD_BYTES = 100
PARTITION_COUNTS = (1, 8)
WARM_UP_SECONDS = 3.0
SETTLE_SECONDS = 2.0
"""The time to wait after creating a topic, until every partition has a leader."""
PRODUCE, VERSION = 0, 3
ERROR_CODE_AT = 4 + 4 + 2 + 4 + 4  # after the correlation id, two array sizes, the name's length, the index


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure one broker after the other in each round. Every second round has the reverse order."""
    figures = {
        count: Figure(f"flush.messages=1, {count} partition{'s' * (count > 1)}", "acks/s")
        for count in PARTITION_COUNTS
    }
    with running(names) as brokers:
        for broker in brokers.values():
            for count in PARTITION_COUNTS:
                _create(broker, count)
                time.sleep(SETTLE_SECONDS)
                _acks_per_second(broker, count, WARM_UP_SECONDS)
        for number in range(rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                for count, figure in figures.items():
                    figure.add(name, _acks_per_second(brokers[name], count, seconds))
    return list(figures.values())


def _create(broker: Broker, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topic = NewTopic(_topic(count), num_partitions=count, config={"flush.messages": "1"})
    admin.create_topics([topic])[_topic(count)].result(30)


def _topic(count: int) -> str:
    return f"flushed-{count}"


def produce_request(topic: str, partition: int) -> bytes:
    """Return a Produce request with one batch of one record. It may be sent repeatedly."""
    value = os.urandom(RECORD_BYTES)
    fields = b"\0\0\0\1" + _varint(len(value)) + value + b"\0"  # attributes, two deltas, no key; no headers
    record = _varint(len(fields)) + fields
    now_ms = time.time_ns() // 1_000_000
    summed = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + record
    batch = struct.pack(">qiibI", 0, 9 + len(summed), -1, 2, crc32c(summed)) + summed
    name = topic.encode()
    # Correlation id, no client id, no transactional id, acks=all, the timeout, one topic with one partition.
    header = struct.pack(">hhihhhii", PRODUCE, VERSION, 0, -1, -1, -1, 30_000, 1)
    body = header + struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, partition, len(batch))
    return struct.pack(">i", len(body) + len(batch)) + body + batch


def _varint(number: int) -> bytes:
    """Encode a number from 0 to 8,191 as a zigzag varint."""
    number <<= 1
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def _acks_per_second(broker: Broker, count: int, seconds: float) -> float:
    """Produce to the topic with `count` partitions. Returns the acks per second of all producers."""
    topic = _topic(count)
    connections: dict[int, tuple[socket.socket, bytes]] = {}
    poll = select.epoll()
    try:
        for number in range(PRODUCERS):
            connection = socket.create_connection(("127.0.0.1", broker.port), timeout=30)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections[connection.fileno()] = connection, produce_request(topic, number % count)
            poll.register(connection.fileno(), select.EPOLLIN)
        begun = time.perf_counter()
        for connection, request in connections.values():
            connection.sendall(request)
        acknowledged = 0
        while (now := time.perf_counter()) - begun < seconds:
            for fd, _ in poll.poll(1.0):
                connection, request = connections[fd]
                _check(connection.recv(4096), topic)
                acknowledged += 1
                connection.sendall(request)
        return acknowledged / (now - begun)
    finally:
        poll.close()
        for connection, _ in connections.values():
            connection.close()


def _check(response: bytes, topic: str) -> None:
    at = 4 + ERROR_CODE_AT + len(topic)
    size, error_code = int.from_bytes(response[:4], "big"), int.from_bytes(response[at : at + 2], "big")
    if size != len(response) - 4 or error_code:
        raise RuntimeError(f"a record was rejected: error {error_code} in {plural(len(response), 'byte')}")
