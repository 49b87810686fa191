"""Groups: the processor time for heartbeats of 10,000 members, and the rebalance time of a group of 200.

Heartbeats: 1,000 groups have 10 members each, on separate connections. Heartbeat intervals are Kafka's
defaults: 3 s in the classic protocol, and 5 s in the consumer protocol (KIP-848). The result is the broker's
processor time in percent of one core.

Rebalance: a member joins a group with 200 members and 400 partitions, and leaves the group. All members send
their requests at once, so that the time does not depend on heartbeat intervals. In the classic protocol, the
rebalance time is the time from the first JoinGroup to the last SyncGroup. In the consumer protocol, it is the
time from the new member's first heartbeat until every member has confirmed its partitions.
"""

from __future__ import annotations

import heapq
import struct
import time
import uuid
from abc import ABC, abstractmethod

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import BROKERS, Broker
from bench.figures import Figure
from bench.raw_connections import (
    RawConnections,
    ResponseReader,
    compact_string,
    nullable_bytes,
    request,
    string,
    unsigned_varint,
)
from kwire.wire.plural import plural

GROUPS, MEMBERS = 1000, 10
GROUPS_AT_ONCE = 100
LARGE_GROUP = 200
TOPIC, PARTITIONS = "shared", 400
CLASSIC_SECONDS, CONSUMER_SECONDS = 3.0, 5.0
"""The defaults of `heartbeat.interval.ms` and `group.consumer.heartbeat.interval.ms` in seconds."""
READY_SECONDS = 60.0
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 300_000, 300_000
ASSIGNMENT_BYTES = 100
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = (11, 3), (12, 1), (13, 1), (14, 1)
FIND_COORDINATOR, CONSUMER_GROUP_HEARTBEAT = (10, 2), (68, 0)
REBALANCE_IN_PROGRESS = 27
PROPERTIES = {
    # The delay lets the first members of a group join together, instead of each starting a generation.
    "group.initial.rebalance.delay.ms": "1000",
    "group.max.session.timeout.ms": "600000",
    # 10,000 members may connect faster than a broker on a busy machine accepts connections.
    "socket.listen.backlog.size": "4096",
}
MARGIN_SECONDS = 1.0


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure ten rebalances of each kind per round, and heartbeats for three times `seconds`."""
    figures: dict[str, Figure] = {}

    def add(name: str, unit: str, broker: str, *values: float) -> None:
        figures.setdefault(name, Figure(name, unit)).add(broker, *values)

    for name in names:
        broker = BROKERS[name](PROPERTIES)
        try:
            broker.start()
            _prepare(broker)
            for _ in range(rounds):
                for kind, group in (("classic", ClassicGroup), ("consumer", ConsumerGroup)):
                    for joined, left in group(broker).rebalances(10):
                        add(f"one joins {LARGE_GROUP}, {kind}", "ms", name, joined * 1000)
                        add(f"one leaves, {kind}", "ms", name, left * 1000)
            for kind, heartbeats in (("classic", ClassicHeartbeats), ("consumer", ConsumerHeartbeats)):
                with RawConnections(broker, GROUPS * MEMBERS) as connections:
                    members = heartbeats(connections)
                    members.join()
                    # Do not measure the remaining joins, and each member's first minimal heartbeat.
                    members.run(3 * heartbeats.interval_s)
                    idle = broker.cpu_seconds()
                    count, elapsed = members.run(3 * seconds)
                    used = broker.cpu_seconds() - idle
                cpu_percent = used / elapsed * 100
                add(f"heartbeats of {GROUPS * MEMBERS:,}, {kind}", "% of a core", name, cpu_percent)
                add(f"heartbeats per second, {kind}", "/s", name, count / elapsed)
        finally:
            broker.discard()
    return list(figures.values())


def _prepare(broker: Broker) -> None:
    """Create the topic, and wait for the coordinators of all groups."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result(30)
    deadline = time.perf_counter() + READY_SECONDS
    with RawConnections(broker, 1) as connections:
        for number in range(GROUPS):
            find = request(*FIND_COORDINATOR, string(f"group-{number}") + b"\0")
            heartbeat = request(
                *HEARTBEAT, string(f"group-{number}") + struct.pack(">i", 1) + string("nobody")
            )
            while (
                _request(connections, find).take(6)[4:] != b"\0\0"
                or _request(connections, heartbeat).take(6)[4:] == b"\0\x0f"
            ):
                if time.perf_counter() > deadline:
                    raise RuntimeError(f"{broker.name} has no coordinator for group {number}")
                time.sleep(0.05)
    time.sleep(MARGIN_SECONDS)


def _request(connections: RawConnections, sent: bytes, number: int = 0) -> ResponseReader:
    connections.send(number, sent)
    while True:
        for _, response in connections.responses(READY_SECONDS):
            return ResponseReader(response)


def _receive_all(connections: RawConnections, count: int) -> dict[int, ResponseReader]:
    """Receive one response on each connection. Each reader is positioned after the throttle time."""
    found: dict[int, ResponseReader] = {}
    deadline = time.perf_counter() + READY_SECONDS
    while len(found) < count:
        if time.perf_counter() > deadline:
            raise RuntimeError(f"only {len(found)} of {plural(count, 'response')} arrived")
        for number, response in connections.responses(1.0):
            found[number] = ResponseReader(response)
            found[number].int32()
    return found


def _expect_no_error(reader: ResponseReader, what: str) -> None:
    error = reader.int16()
    if error:
        raise RuntimeError(f"{what}: error {error}")


# --- the classic protocol


def _join(group: str, member_id: str) -> bytes:
    protocols = struct.pack(">i", 1) + string("range") + nullable_bytes(bytes(ASSIGNMENT_BYTES))
    timeouts = struct.pack(">ii", SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS)
    return request(*JOIN_GROUP, string(group) + timeouts + string(member_id) + string("consumer") + protocols)


def _sync(group: str, generation: int, member_id: str, members: list[str]) -> bytes:
    """Return a SyncGroup request. The leader's request has an assignment for each of `members`."""
    shares = b"".join(string(member) + nullable_bytes(bytes(ASSIGNMENT_BYTES)) for member in members)
    head = string(group) + struct.pack(">i", generation) + string(member_id)
    return request(*SYNC_GROUP, head + struct.pack(">i", len(members)) + shares)


def _heartbeat(group: str, generation: int, member_id: str) -> bytes:
    return request(*HEARTBEAT, string(group) + struct.pack(">i", generation) + string(member_id))


class JoinResponse:
    def __init__(self, reader: ResponseReader) -> None:
        _expect_no_error(reader, "JoinGroup")
        self.generation = reader.int32()
        reader.string()
        leader = reader.string()
        self.member_id = reader.string()
        self.members: list[str] = []
        """The ids of all members. Only the leader's response has them."""
        for _ in range(reader.int32()):
            self.members.append(reader.string())
            reader.take(reader.int32())
        assert (leader == self.member_id) == bool(self.members)


class ClassicGroup:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._group = f"large-classic-{uuid.uuid4()}"
        self._joined: dict[int, JoinResponse] = {}

    def rebalances(self, count: int) -> list[tuple[float, float]]:
        """Let a member join and leave `count` times. Returns the seconds of each join and of each leave.

        The time of a join or leave ends when all members are in a new generation.
        """
        found: list[tuple[float, float]] = []
        with RawConnections(self._broker, LARGE_GROUP + 1) as connections:
            _request(connections, request(*FIND_COORDINATOR, string(self._group) + b"\0"))
            for number in range(LARGE_GROUP):
                connections.send(number, _join(self._group, ""))
            self._sync_all(connections, LARGE_GROUP)
            for _ in range(count):
                begun = time.perf_counter()
                connections.send(LARGE_GROUP, _join(self._group, ""))
                self._rejoin_all(connections)
                self._sync_all(connections, LARGE_GROUP + 1)
                joined = time.perf_counter() - begun
                begun = time.perf_counter()
                newest = self._joined.pop(LARGE_GROUP)
                leave = request(*LEAVE_GROUP, string(self._group) + string(newest.member_id))
                _expect_no_error(
                    ResponseReader(_request(connections, leave, LARGE_GROUP).take(6)[4:]), "LeaveGroup"
                )
                self._rejoin_all(connections)
                self._sync_all(connections, LARGE_GROUP)
                found.append((joined, time.perf_counter() - begun))
        return found

    def _rejoin_all(self, connections: RawConnections) -> None:
        """Send heartbeats until all 200 members learn of the rebalance, and join again."""
        waiting: set[int] = set()
        for number in range(LARGE_GROUP):
            joined = self._joined[number]
            connections.send(number, _heartbeat(self._group, joined.generation, joined.member_id))
            waiting.add(number)
        while waiting:
            for number, response in connections.responses(READY_SECONDS):
                joined = self._joined[number]
                if int.from_bytes(response[4:6], "big") == REBALANCE_IN_PROGRESS:
                    waiting.discard(number)
                    connections.send(number, _join(self._group, joined.member_id))
                else:
                    connections.send(number, _heartbeat(self._group, joined.generation, joined.member_id))

    def _sync_all(self, connections: RawConnections, count: int) -> None:
        """Receive all JoinGroup responses, then send SyncGroup and receive its responses."""
        for number, reader in _receive_all(connections, count).items():
            joined = self._joined[number] = JoinResponse(reader)
            connections.send(number, _sync(self._group, joined.generation, joined.member_id, joined.members))
        for reader in _receive_all(connections, count).values():
            _expect_no_error(reader, "SyncGroup")


# --- the consumer protocol


class ConsumerMember:
    """The state of a member in the consumer protocol: its epoch and its partitions."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.member_id = ""
        self.epoch = 0
        self.partitions: list[int] = []
        self.topic_id = bytes(16)
        self._sends_all_fields = True

    def heartbeat(self, *, leaving: bool = False) -> bytes:
        """Return a heartbeat request, with all fields if the member is new or its partitions have changed."""
        identity = compact_string(self._group) + compact_string(self.member_id)
        epoch = struct.pack(">i", -1 if leaving else self.epoch)
        no_ids = b"\0\0"  # no instance id, no rack
        if not self._sends_all_fields or leaving:
            body = struct.pack(">i", -1) + b"\0\0\0"
        else:
            owned = unsigned_varint(1)
            if self.partitions:
                numbers = b"".join(struct.pack(">i", number) for number in self.partitions)
                owned = (
                    unsigned_varint(2)
                    + self.topic_id
                    + unsigned_varint(len(self.partitions) + 1)
                    + numbers
                    + b"\0"
                )
            topics = unsigned_varint(2) + compact_string(TOPIC) if not self.epoch else b"\0"
            body = struct.pack(">i", REBALANCE_TIMEOUT_MS) + topics + b"\0" + owned
        self._sends_all_fields = False
        return request(*CONSUMER_GROUP_HEARTBEAT, identity + epoch + no_ids + body + b"\0", flexible=True)

    def on_response(self, reader: ResponseReader) -> None:
        """Handle a heartbeat response, of which the throttle time has been read already."""
        _expect_no_error(reader, "ConsumerGroupHeartbeat")
        reader.compact_string()
        self.member_id = reader.compact_string() or self.member_id
        self.epoch = reader.int32()
        reader.int32()
        if int.from_bytes(reader.take(1), "big", signed=True) < 0:
            return
        partitions: list[int] = []
        for _ in range(max(0, reader.unsigned_varint() - 1)):
            self.topic_id = reader.take(16)
            partitions += [reader.int32() for _ in range(reader.unsigned_varint() - 1)]
            reader.unsigned_varint()
        self._sends_all_fields = partitions != self.partitions
        self.partitions = partitions


class ConsumerGroup:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._group = f"large-consumer-{uuid.uuid4()}"

    def rebalances(self, count: int) -> list[tuple[float, float]]:
        """Let a member join and leave `count` times. Returns the seconds of each join and of each leave.

        The time of a join or leave ends when `_await_stable` returns.
        """
        found: list[tuple[float, float]] = []
        with RawConnections(self._broker, LARGE_GROUP + 1) as connections:
            members = {number: ConsumerMember(self._group) for number in range(LARGE_GROUP)}
            self._await_stable(connections, members)
            for _ in range(count):
                begun = time.perf_counter()
                members[LARGE_GROUP] = ConsumerMember(self._group)
                self._await_stable(connections, members)
                joined = time.perf_counter() - begun
                begun = time.perf_counter()
                reader = _request(connections, members.pop(LARGE_GROUP).heartbeat(leaving=True), LARGE_GROUP)
                reader.take(5)
                _expect_no_error(reader, "leaving heartbeat")
                self._await_stable(connections, members)
                found.append((joined, time.perf_counter() - begun))
        return found

    @staticmethod
    def _await_stable(connections: RawConnections, members: dict[int, ConsumerMember]) -> None:
        """Send heartbeats until each partition has one owner, and all members have confirmed one epoch."""
        deadline = time.perf_counter() + READY_SECONDS
        # The newest member is first, because the other members must revoke partitions for it.
        for number in sorted(members, reverse=True):
            connections.send(number, members[number].heartbeat())
        in_flight = set(members)
        done = False
        unchanged: set[int] = set()
        while in_flight:
            if time.perf_counter() > deadline:
                epochs = {member.epoch for member in members.values()}
                raise RuntimeError(f"the group does not become stable: epochs {epochs}")
            for number, response in connections.responses(1.0):
                member = members[number]
                reader = ResponseReader(response)
                reader.take(5)  # the header's tagged fields, throttle time
                before = (member.epoch, member.partitions)
                member.on_response(reader)
                if before == (member.epoch, member.partitions):
                    unchanged.add(number)
                else:
                    unchanged.discard(number)
                done = done or (len(unchanged) == len(members) and _is_stable(members))
                if done:
                    in_flight.discard(number)
                else:
                    connections.send(number, member.heartbeat())


def _is_stable(members: dict[int, ConsumerMember]) -> bool:
    """Return whether every partition has one owner, and all members have the same epoch."""
    owned = [number for member in members.values() for number in member.partitions]
    one_epoch = len({member.epoch for member in members.values()}) == 1
    return one_epoch and len(owned) == PARTITIONS == len(set(owned))


# --- heartbeats


class Heartbeats(ABC):
    """10,000 members that send heartbeats at the heartbeat interval."""

    interval_s: float

    def __init__(self, connections: RawConnections) -> None:
        self._connections = connections
        self._due: list[tuple[float, int]] = []

    @abstractmethod
    def join(self) -> None:
        """Join all members, until the groups are stable."""

    @abstractmethod
    def request(self, number: int) -> bytes:
        """Return the next heartbeat of a member."""

    @abstractmethod
    def on_response(self, number: int, response: bytes) -> None:
        """Handle a member's response. Raises RuntimeError after an error."""

    def run(self, seconds: float) -> tuple[int, float]:
        """Send heartbeats, spread over the interval. Returns the number of responses, and the seconds."""
        if not self._due:
            now = time.perf_counter()
            total = GROUPS * MEMBERS
            self._due = [(now + number * self.interval_s / total, number) for number in range(total)]
        due, connections = self._due, self._connections
        begun = time.perf_counter()
        count = 0
        while (now := time.perf_counter()) - begun < seconds:
            while due[0][0] <= now:
                at, number = due[0]
                heapq.heapreplace(due, (at + self.interval_s, number))
                connections.send(number, self.request(number))
            for number, response in connections.responses(max(0.0, min(0.01, due[0][0] - now))):
                self.on_response(number, response)
                count += 1
        return count, now - begun


class ClassicHeartbeats(Heartbeats):
    interval_s = CLASSIC_SECONDS

    def __init__(self, connections: RawConnections) -> None:
        super().__init__(connections)
        self._requests: dict[int, bytes] = {}

    def join(self) -> None:
        for first in range(0, GROUPS, GROUPS_AT_ONCE):
            numbers = range(first * MEMBERS, (first + GROUPS_AT_ONCE) * MEMBERS)
            for number in numbers:
                self._connections.send(number, _join(f"group-{number // MEMBERS}", ""))
            for number, reader in _receive_all(self._connections, len(numbers)).items():
                joined, group = JoinResponse(reader), f"group-{number // MEMBERS}"
                self._requests[number] = _heartbeat(group, joined.generation, joined.member_id)
                sync = _sync(group, joined.generation, joined.member_id, joined.members)
                self._connections.send(number, sync)
            for reader in _receive_all(self._connections, len(numbers)).values():
                _expect_no_error(reader, "SyncGroup")

    def request(self, number: int) -> bytes:
        return self._requests[number]

    def on_response(self, number: int, response: bytes) -> None:
        error = int.from_bytes(response[4:6], "big")
        if error:
            raise RuntimeError(f"a heartbeat of member {number}: error {error}")


class ConsumerHeartbeats(Heartbeats):
    interval_s = CONSUMER_SECONDS

    def __init__(self, connections: RawConnections) -> None:
        super().__init__(connections)
        self._members = [
            ConsumerMember(f"consumers-{number // MEMBERS}") for number in range(GROUPS * MEMBERS)
        ]

    def join(self) -> None:
        """Send two heartbeats per member. The first joins the group, and the second gets the assignment."""
        for _ in range(2):
            for first in range(0, GROUPS * MEMBERS, GROUPS_AT_ONCE * MEMBERS):
                numbers = range(first, first + GROUPS_AT_ONCE * MEMBERS)
                for number in numbers:
                    self._connections.send(number, self.request(number))
                for number, reader in _receive_all(self._connections, len(numbers)).items():
                    reader.take(1)  # the header's tagged fields
                    self._members[number].on_response(reader)

    def request(self, number: int) -> bytes:
        return self._members[number].heartbeat()

    def on_response(self, number: int, response: bytes) -> None:
        reader = ResponseReader(response)
        reader.take(5)
        self._members[number].on_response(reader)
