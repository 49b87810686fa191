"""OffsetCommit: commits a second of 50 consumers, each with one request under way that has one partition.

They assign partitions themselves, so their groups have no members and what is measured is the commit alone.
Once all of them are of one group, and once each has its own. In the end each committed offset must be the one
that was sent last.
"""

from __future__ import annotations

import struct
import time

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import Broker, running
from bench.figures import Figure
from bench.peers import Peers, Reader, request, text

CONSUMERS = 50
TOPIC = "committed"
WARM_UP_SECONDS = 8.0
"""Of each broker in each case, not measured: a JVM gets faster for about so long."""
READY_SECONDS = 30.0
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = (8, 7), (9, 5), (10, 2)
_BEHIND_PARTITION = struct.Struct(">qih")
"""How a request ends: offset, leader epoch, and the length of the metadata."""
CASES = {"one group": 1, "a group each": CONSUMERS}
"""How many groups there are."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """The brokers take turns, in the other order every second round."""
    figures = {case: Figure(f"OffsetCommit, {case}", "commits/s") for case in CASES}
    costs = {case: Figure(f"the same, {case}, broker's CPU", "µs/commit") for case in CASES}
    with running(names) as brokers:
        for broker in brokers.values():
            _prepare(broker)
            for groups in CASES.values():
                _commits(broker, groups, WARM_UP_SECONDS / 2)
        for number in range(rounds):
            for case, groups in CASES.items():
                for name in names if number % 2 == 0 else reversed(names):
                    begun = brokers[name].cpu_seconds()
                    count, took = _commits(brokers[name], groups, seconds)
                    figures[case].add(name, count / took)
                    costs[case].add(name, (brokers[name].cpu_seconds() - begun) / count * 1e6)
    return [figure for case in CASES for figure in (figures[case], costs[case])]


def _prepare(broker: Broker) -> None:
    """The topic, and coordinators that answer."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=CONSUMERS)])[TOPIC].result(30)
    deadline = time.perf_counter() + READY_SECONDS
    with Peers(broker, 1) as peers:

        def ask(sent: bytes) -> bytes:
            peers.send(0, sent)
            while True:
                for _, answer in peers.answers(READY_SECONDS):
                    return answer

        for number in range(CONSUMERS):
            group = _group(number, CONSUMERS)
            while (
                int.from_bytes(ask(request(*FIND_COORDINATOR, text(group) + b"\0"))[4:6], "big")
                or _error(ask(_commit(group, number, 0)))
                or _error(ask(_commit(_group(0, 1), number, 0)))
            ):
                if time.perf_counter() > deadline:
                    raise RuntimeError(f"{broker.name} has no coordinator for {group}")
                time.sleep(0.1)


def _group(number: int, groups: int) -> str:
    return f"committers-{groups}-{number % groups}"


def _commit(group: str, partition: int, offset: int) -> bytes:
    """OffsetCommit of a consumer that is no member of its group: generation -1, no member id."""
    place = struct.pack(">iqi", partition, offset, -1) + text("")
    topics = struct.pack(">i", 1) + text(TOPIC) + struct.pack(">i", 1) + place
    return request(*OFFSET_COMMIT, text(group) + struct.pack(">i", -1) + text("") + b"\xff\xff" + topics)


class _Committer:
    """One consumer's requests, alike but for the offset: put together once, so that they cost little."""

    def __init__(self, group: str, partition: int, offset: int) -> None:
        self.offset = offset
        self._request = bytearray(_commit(group, partition, offset))
        self._at = len(self._request) - _BEHIND_PARTITION.size

    def next(self) -> bytearray:
        """The request that commits the offset behind the last one."""
        self.offset += 1
        _BEHIND_PARTITION.pack_into(self._request, self._at, self.offset, -1, 0)
        return self._request


def _error(answer: bytes) -> int:
    """Throttle time, one topic by its name, one partition, and its error: the last two bytes."""
    return int.from_bytes(answer[-2:], "big")


def _commits(broker: Broker, groups: int, seconds: float) -> tuple[int, float]:
    """How many commits were answered, and in how many seconds."""
    first = time.monotonic_ns()
    names = [_group(number, groups) for number in range(CONSUMERS)]
    committers = [_Committer(names[number], number, first) for number in range(CONSUMERS)]
    with Peers(broker, CONSUMERS) as peers:
        begun = time.perf_counter()
        for number in range(CONSUMERS):
            peers.send(number, committers[number].next())
        count = 0
        while (now := time.perf_counter()) - begun < seconds:
            for number, answer in peers.answers(1.0):
                if _error(answer):
                    raise RuntimeError(f"{broker.name} refused a commit: error {_error(answer)}")
                count += 1
                peers.send(number, committers[number].next())
        missing = CONSUMERS
        while missing:
            missing -= sum(1 for _ in peers.answers(10.0))
        for number in range(CONSUMERS):
            partitions = struct.pack(">iii", 1, number, 0)[:8]
            peers.send(
                number,
                request(*OFFSET_FETCH, text(names[number]) + struct.pack(">i", 1) + text(TOPIC) + partitions),
            )
        missing = CONSUMERS
        while missing:
            for number, answer in peers.answers(10.0):
                reader = Reader(answer)
                reader.take(8)  # throttle time, one topic
                reader.text()
                reader.take(8)  # one partition, its index
                found = int.from_bytes(reader.take(8), "big")
                told = committers[number].offset
                if found != told:
                    raise RuntimeError(f"{broker.name} has {found}, and was told {told}")
                missing -= 1
    return count, now - begun
