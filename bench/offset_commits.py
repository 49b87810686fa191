"""OffsetCommit: commits per second of 50 consumers, each with one request for one partition in flight.

The consumers do not join their groups, so that only commits are measured. They share one group, or each
consumer has its own group. In the end, each committed offset must be the last offset that the consumer sent.
"""

from __future__ import annotations

import struct
import time

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import Broker, running
from bench.figures import Figure
from bench.raw_connections import RawConnections, ResponseReader, request, string

CONSUMERS = 50
TOPIC = "committed"
WARM_UP_SECONDS = 8.0
"""The warm-up of each broker in each case, during which a JVM compiles its code."""
READY_SECONDS = 30.0
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = (8, 7), (9, 5), (10, 2)
_REQUEST_END = struct.Struct(">qih")
"""The last fields of a request: offset, leader epoch, and the length of the metadata."""
CASES = {"one group": 1, "one group per client": CONSUMERS}
"""The number of groups in each case."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure one broker after the other in each round. Every second round has the reverse order."""
    figures = {case: Figure(f"OffsetCommit, {case}", "commits/s") for case in CASES}
    costs = {case: Figure(f"OffsetCommit, {case}, broker's CPU", "µs/commit") for case in CASES}
    with running(names) as brokers:
        for broker in brokers.values():
            _prepare(broker)
            for groups in CASES.values():
                _commits(broker, groups, WARM_UP_SECONDS / 2)
        for number in range(rounds):
            for case, groups in CASES.items():
                for name in names if number % 2 == 0 else reversed(names):
                    begun = brokers[name].cpu_seconds()
                    count, elapsed = _commits(brokers[name], groups, seconds)
                    figures[case].add(name, count / elapsed)
                    costs[case].add(name, (brokers[name].cpu_seconds() - begun) / count * 1e6)
    return [figure for case in CASES for figure in (figures[case], costs[case])]


def _prepare(broker: Broker) -> None:
    """Create the topic, and wait for the coordinators of all groups."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=CONSUMERS)])[TOPIC].result(30)
    deadline = time.perf_counter() + READY_SECONDS
    with RawConnections(broker, 1) as connections:

        def send(sent: bytes) -> bytes:
            connections.send(0, sent)
            while True:
                for _, response in connections.responses(READY_SECONDS):
                    return response

        for number in range(CONSUMERS):
            group = _group(number, CONSUMERS)
            while (
                int.from_bytes(send(request(*FIND_COORDINATOR, string(group) + b"\0"))[4:6], "big")
                or _error(send(_commit(group, number, 0)))
                or _error(send(_commit(_group(0, 1), number, 0)))
            ):
                if time.perf_counter() > deadline:
                    raise RuntimeError(f"{broker.name} has no coordinator for {group}")
                time.sleep(0.1)


def _group(number: int, groups: int) -> str:
    return f"committers-{groups}-{number % groups}"


def _commit(group: str, partition: int, offset: int) -> bytes:
    """Return an OffsetCommit request with generation -1 and no member id, which needs no group membership."""
    partition_data = struct.pack(">iqi", partition, offset, -1) + string("")
    topics = struct.pack(">i", 1) + string(TOPIC) + struct.pack(">i", 1) + partition_data
    return request(*OFFSET_COMMIT, string(group) + struct.pack(">i", -1) + string("") + b"\xff\xff" + topics)


class _Committer:
    """The requests of one consumer. The request is built once, because only its offset changes."""

    def __init__(self, group: str, partition: int, offset: int) -> None:
        self.offset = offset
        self._request = bytearray(_commit(group, partition, offset))
        self._at = len(self._request) - _REQUEST_END.size

    def next(self) -> bytearray:
        """Return the request that commits the next offset."""
        self.offset += 1
        _REQUEST_END.pack_into(self._request, self._at, self.offset, -1, 0)
        return self._request


def _error(response: bytes) -> int:
    """Return the error code, the last two bytes of a response with one partition."""
    return int.from_bytes(response[-2:], "big")


def _commits(broker: Broker, groups: int, seconds: float) -> tuple[int, float]:
    """Commit for `seconds`, then check the committed offsets. Returns the commits, and the seconds."""
    first = time.monotonic_ns()
    names = [_group(number, groups) for number in range(CONSUMERS)]
    committers = [_Committer(names[number], number, first) for number in range(CONSUMERS)]
    with RawConnections(broker, CONSUMERS) as connections:
        begun = time.perf_counter()
        for number in range(CONSUMERS):
            connections.send(number, committers[number].next())
        count = 0
        while (now := time.perf_counter()) - begun < seconds:
            for number, response in connections.responses(1.0):
                if _error(response):
                    raise RuntimeError(f"{broker.name} rejected a commit: error {_error(response)}")
                count += 1
                connections.send(number, committers[number].next())
        missing = CONSUMERS
        while missing:
            missing -= sum(1 for _ in connections.responses(10.0))
        for number in range(CONSUMERS):
            partitions = struct.pack(">iii", 1, number, 0)[:8]
            connections.send(
                number,
                request(
                    *OFFSET_FETCH, string(names[number]) + struct.pack(">i", 1) + string(TOPIC) + partitions
                ),
            )
        missing = CONSUMERS
        while missing:
            for number, response in connections.responses(10.0):
                reader = ResponseReader(response)
                reader.take(8)  # throttle time, one topic
                reader.string()
                reader.take(8)  # one partition, its index
                found = int.from_bytes(reader.take(8), "big")
                expected = committers[number].offset
                if found != expected:
                    raise RuntimeError(f"{broker.name} has committed {found}, expected {expected}")
                missing -= 1
    return count, now - begun
