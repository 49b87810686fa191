"""Groups: what 10,000 members cost by their heartbeats, and how long a group of 200 takes to rebalance.

Heartbeats: 1,000 groups of 10 members, each with a connection of its own. As Kafka's defaults are, they come
every 3 s in the classic protocol and every 5 s in the consumer protocol (KIP-848). Measured is the broker's
processor time for each second, as a share of one core.

Rebalance: a member joins a group of 200, and leaves it again, on a topic of 400 partitions. All members act
at once, so that what is measured is the broker, not how often clients ask: in the classic protocol from the
first JoinGroup to the last SyncGroup, in the consumer protocol from the first heartbeat of the one to when
every member has its partitions and has said so.
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
from bench.peers import Peers, Reader, blob, compact, request, text, unsigned

GROUPS, MEMBERS = 1000, 10
GROUPS_AT_ONCE = 100
LARGE_GROUP = 200
TOPIC, PARTITIONS = "shared", 400
CLASSIC_SECONDS, CONSUMER_SECONDS = 3.0, 5.0
"""`heartbeat.interval.ms`, and `group.consumer.heartbeat.interval.ms`."""
READY_SECONDS = 60.0
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 300_000, 300_000
ASSIGNMENT_BYTES = 100
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = (11, 3), (12, 1), (13, 1), (14, 1)
FIND_COORDINATOR, CONSUMER_GROUP_HEARTBEAT = (10, 2), (68, 0)
REBALANCE_IN_PROGRESS = 27
PROPERTIES = {
    # So that a group's first members come together, instead of each making a generation.
    "group.initial.rebalance.delay.ms": "1000",
    "group.max.session.timeout.ms": "600000",
    # 10,000 members connect faster than a broker on a busy machine gets to accept them.
    "socket.listen.backlog.size": "4096",
}
MARGIN_SECONDS = 1.0


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """`rounds` times ten rebalances of each kind, and heartbeats for three times `seconds`."""
    figures: dict[str, Figure] = {}

    def add(name: str, unit: str, broker: str, *values: float) -> None:
        figures.setdefault(name, Figure(name, unit)).add(broker, *values)

    for name in names:
        broker = BROKERS[name](PROPERTIES)
        try:
            broker.start()
            _prepare(broker)
            for _ in range(rounds):
                for kind, group in (("classic", Classic), ("consumer", Consumer)):
                    for joined, left in group(broker).rebalances(10):
                        add(f"one joins {LARGE_GROUP}, {kind}", "ms", name, joined * 1000)
                        add(f"one leaves, {kind}", "ms", name, left * 1000)
            for kind, beats in (("classic", ClassicBeats), ("consumer", ConsumerBeats)):
                with Peers(broker, GROUPS * MEMBERS) as peers:
                    members = beats(peers)
                    members.join()
                    # Unmeasured: what joining has left, and the first time that a member says the least.
                    members.beat(3 * beats.interval_s)
                    idle = broker.cpu_seconds()
                    count, took = members.beat(3 * seconds)
                    used = broker.cpu_seconds() - idle
                add(f"heartbeats of {GROUPS * MEMBERS:,}, {kind}", "/s", name, count / took)
                add(f"the same, {kind}, broker's CPU", "% of a core", name, used / took * 100)
        finally:
            broker.discard()
    return list(figures.values())


def _prepare(broker: Broker) -> None:
    """The topic, and coordinators for every group."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result(30)
    deadline = time.perf_counter() + READY_SECONDS
    with Peers(broker, 1) as peers:
        for number in range(GROUPS):
            find = request(*FIND_COORDINATOR, text(f"group-{number}") + b"\0")
            beat = request(*HEARTBEAT, text(f"group-{number}") + struct.pack(">i", 1) + text("nobody"))
            while _ask(peers, find).take(6)[4:] != b"\0\0" or _ask(peers, beat).take(6)[4:] == b"\0\x0f":
                if time.perf_counter() > deadline:
                    raise RuntimeError(f"{broker.name} has no coordinator for group {number}")
                time.sleep(0.05)
    time.sleep(MARGIN_SECONDS)


def _ask(peers: Peers, sent: bytes, number: int = 0) -> Reader:
    peers.send(number, sent)
    while True:
        for _, answer in peers.answers(READY_SECONDS):
            return Reader(answer)


def _gather(peers: Peers, count: int) -> dict[int, Reader]:
    """The answers of so many peers, each behind its throttle time."""
    found: dict[int, Reader] = {}
    deadline = time.perf_counter() + READY_SECONDS
    while len(found) < count:
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{len(found)} of {count} answers came")
        for number, answer in peers.answers(1.0):
            found[number] = Reader(answer)
            found[number].int32()
    return found


def _expect_no_error(reader: Reader, what: str) -> None:
    error = reader.int16()
    if error:
        raise RuntimeError(f"{what}: error {error}")


# --- the classic protocol


def _join(group: str, member_id: str) -> bytes:
    protocols = struct.pack(">i", 1) + text("range") + blob(bytes(ASSIGNMENT_BYTES))
    timeouts = struct.pack(">ii", SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS)
    return request(*JOIN_GROUP, text(group) + timeouts + text(member_id) + text("consumer") + protocols)


def _sync(group: str, generation: int, member_id: str, members: list[str]) -> bytes:
    """With what each member gets, if this is the leader's."""
    shares = b"".join(text(member) + blob(bytes(ASSIGNMENT_BYTES)) for member in members)
    head = text(group) + struct.pack(">i", generation) + text(member_id)
    return request(*SYNC_GROUP, head + struct.pack(">i", len(members)) + shares)


def _beat(group: str, generation: int, member_id: str) -> bytes:
    return request(*HEARTBEAT, text(group) + struct.pack(">i", generation) + text(member_id))


class Joined:
    """What a JoinGroup answer says."""

    def __init__(self, reader: Reader) -> None:
        _expect_no_error(reader, "JoinGroup")
        self.generation = reader.int32()
        reader.text()
        leader = reader.text()
        self.member_id = reader.text()
        self.members: list[str] = []
        """Of the leader's answer: all of them."""
        for _ in range(reader.int32()):
            self.members.append(reader.text())
            reader.take(reader.int32())
        assert (leader == self.member_id) == bool(self.members)


class Classic:
    """A group of 200 in the classic protocol."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._group = f"large-classic-{uuid.uuid4()}"
        self._joined: dict[int, Joined] = {}

    def rebalances(self, count: int) -> list[tuple[float, float]]:
        """Seconds until all are in a new generation: after a member has joined, and after it has left."""
        found: list[tuple[float, float]] = []
        with Peers(self._broker, LARGE_GROUP + 1) as peers:
            _ask(peers, request(*FIND_COORDINATOR, text(self._group) + b"\0"))
            for number in range(LARGE_GROUP):
                peers.send(number, _join(self._group, ""))
            self._share(peers, LARGE_GROUP)
            for _ in range(count):
                begun = time.perf_counter()
                peers.send(LARGE_GROUP, _join(self._group, ""))
                self._join_again(peers)
                self._share(peers, LARGE_GROUP + 1)
                joined = time.perf_counter() - begun
                begun = time.perf_counter()
                newest = self._joined.pop(LARGE_GROUP)
                leave = request(*LEAVE_GROUP, text(self._group) + text(newest.member_id))
                _expect_no_error(Reader(_ask(peers, leave, LARGE_GROUP).take(6)[4:]), "LeaveGroup")
                self._join_again(peers)
                self._share(peers, LARGE_GROUP)
                found.append((joined, time.perf_counter() - begun))
        return found

    def _join_again(self, peers: Peers) -> None:
        """The 200 learn of the rebalance by a heartbeat."""
        waiting: set[int] = set()
        for number in range(LARGE_GROUP):
            joined = self._joined[number]
            peers.send(number, _beat(self._group, joined.generation, joined.member_id))
            waiting.add(number)
        while waiting:
            for number, answer in peers.answers(READY_SECONDS):
                joined = self._joined[number]
                if int.from_bytes(answer[4:6], "big") == REBALANCE_IN_PROGRESS:
                    waiting.discard(number)
                    peers.send(number, _join(self._group, joined.member_id))
                else:
                    peers.send(number, _beat(self._group, joined.generation, joined.member_id))

    def _share(self, peers: Peers, count: int) -> None:
        """All get their JoinGroup answers, and go on to SyncGroup."""
        for number, reader in _gather(peers, count).items():
            joined = self._joined[number] = Joined(reader)
            peers.send(number, _sync(self._group, joined.generation, joined.member_id, joined.members))
        for reader in _gather(peers, count).values():
            _expect_no_error(reader, "SyncGroup")


# --- the consumer protocol


class Owner:
    """A member of a consumer group: its epoch and its partitions, and what it says of them."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.member_id = ""
        self.epoch = 0
        self.partitions: list[int] = []
        self.topic_id = bytes(16)
        self._news = True

    def heartbeat(self, *, leaving: bool = False) -> bytes:
        """With all that there is to say when the member is new or has other partitions, else with nothing."""
        who = compact(self._group) + compact(self.member_id)
        epoch = struct.pack(">i", -1 if leaving else self.epoch)
        nothing = b"\0\0"  # no instance id, no rack
        if not self._news or leaving:
            said = struct.pack(">i", -1) + b"\0\0\0"
        else:
            owned = unsigned(1)
            if self.partitions:
                numbers = b"".join(struct.pack(">i", number) for number in self.partitions)
                owned = unsigned(2) + self.topic_id + unsigned(len(self.partitions) + 1) + numbers + b"\0"
            topics = unsigned(2) + compact(TOPIC) if not self.epoch else b"\0"
            said = struct.pack(">i", REBALANCE_TIMEOUT_MS) + topics + b"\0" + owned
        self._news = False
        return request(*CONSUMER_GROUP_HEARTBEAT, who + epoch + nothing + said + b"\0", flexible=True)

    def told(self, reader: Reader) -> None:
        """Take in an answer that starts behind its throttle time."""
        _expect_no_error(reader, "ConsumerGroupHeartbeat")
        reader.compact()
        self.member_id = reader.compact() or self.member_id
        self.epoch = reader.int32()
        reader.int32()
        if int.from_bytes(reader.take(1), "big", signed=True) < 0:
            return
        partitions: list[int] = []
        for _ in range(max(0, reader.unsigned() - 1)):
            self.topic_id = reader.take(16)
            partitions += [reader.int32() for _ in range(reader.unsigned() - 1)]
            reader.unsigned()
        self._news = partitions != self.partitions
        self.partitions = partitions


class Consumer:
    """A group of 200 in the consumer protocol."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._group = f"large-consumer-{uuid.uuid4()}"

    def rebalances(self, count: int) -> list[tuple[float, float]]:
        """Seconds until all have their partitions: after a member has joined, and after it has left."""
        found: list[tuple[float, float]] = []
        with Peers(self._broker, LARGE_GROUP + 1) as peers:
            owners = {number: Owner(self._group) for number in range(LARGE_GROUP)}
            self._settle(peers, owners)
            for _ in range(count):
                begun = time.perf_counter()
                owners[LARGE_GROUP] = Owner(self._group)
                self._settle(peers, owners)
                joined = time.perf_counter() - begun
                begun = time.perf_counter()
                reader = _ask(peers, owners.pop(LARGE_GROUP).heartbeat(leaving=True), LARGE_GROUP)
                reader.take(5)
                _expect_no_error(reader, "a member leaves")
                self._settle(peers, owners)
                found.append((joined, time.perf_counter() - begun))
        return found

    @staticmethod
    def _settle(peers: Peers, owners: dict[int, Owner]) -> None:
        """Heartbeats until each partition has an owner that has said so, and all are in one epoch."""
        deadline = time.perf_counter() + READY_SECONDS
        # The newest first: it is why the others have to move.
        for number in sorted(owners, reverse=True):
            peers.send(number, owners[number].heartbeat())
        under_way = set(owners)
        done = False
        quiet: set[int] = set()
        while under_way:
            if time.perf_counter() > deadline:
                epochs = {owner.epoch for owner in owners.values()}
                raise RuntimeError(f"the group does not settle: epochs {epochs}")
            for number, answer in peers.answers(1.0):
                owner = owners[number]
                reader = Reader(answer)
                reader.take(5)  # the header's tags, throttle time
                before = (owner.epoch, owner.partitions)
                owner.told(reader)
                if before == (owner.epoch, owner.partitions):
                    quiet.add(number)
                else:
                    quiet.discard(number)
                done = done or (len(quiet) == len(owners) and _shared(owners))
                if done:
                    under_way.discard(number)
                else:
                    peers.send(number, owner.heartbeat())


def _shared(owners: dict[int, Owner]) -> bool:
    """Whether all partitions are owned, each once, by members of one epoch."""
    owned = [number for owner in owners.values() for number in owner.partitions]
    one_epoch = len({owner.epoch for owner in owners.values()}) == 1
    return one_epoch and len(owned) == PARTITIONS == len(set(owned))


# --- heartbeats


class Beats(ABC):
    """10,000 members, each of which sends a heartbeat at its interval."""

    interval_s: float

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._due: list[tuple[float, int]] = []

    @abstractmethod
    def join(self) -> None:
        """Have all groups stable."""

    @abstractmethod
    def request(self, number: int) -> bytes:
        """The next heartbeat of this member."""

    @abstractmethod
    def answered(self, number: int, answer: bytes) -> None:
        """Take what this member was told. RuntimeError for an error."""

    def beat(self, seconds: float) -> tuple[int, float]:
        """How many heartbeats were answered, and in how many seconds; the members are spread over time."""
        if not self._due:
            now = time.perf_counter()
            total = GROUPS * MEMBERS
            self._due = [(now + number * self.interval_s / total, number) for number in range(total)]
        due, peers = self._due, self._peers
        begun = time.perf_counter()
        count = 0
        while (now := time.perf_counter()) - begun < seconds:
            while due[0][0] <= now:
                at, number = due[0]
                heapq.heapreplace(due, (at + self.interval_s, number))
                peers.send(number, self.request(number))
            for number, answer in peers.answers(max(0.0, min(0.01, due[0][0] - now))):
                self.answered(number, answer)
                count += 1
        return count, now - begun


class ClassicBeats(Beats):
    interval_s = CLASSIC_SECONDS

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self._beats: dict[int, bytes] = {}

    def join(self) -> None:
        for first in range(0, GROUPS, GROUPS_AT_ONCE):
            numbers = range(first * MEMBERS, (first + GROUPS_AT_ONCE) * MEMBERS)
            for number in numbers:
                self._peers.send(number, _join(f"group-{number // MEMBERS}", ""))
            for number, reader in _gather(self._peers, len(numbers)).items():
                joined, group = Joined(reader), f"group-{number // MEMBERS}"
                self._beats[number] = _beat(group, joined.generation, joined.member_id)
                sync = _sync(group, joined.generation, joined.member_id, joined.members)
                self._peers.send(number, sync)
            for reader in _gather(self._peers, len(numbers)).values():
                _expect_no_error(reader, "SyncGroup")

    def request(self, number: int) -> bytes:
        return self._beats[number]

    def answered(self, number: int, answer: bytes) -> None:
        error = int.from_bytes(answer[4:6], "big")
        if error:
            raise RuntimeError(f"a heartbeat of member {number}: error {error}")


class ConsumerBeats(Beats):
    interval_s = CONSUMER_SECONDS

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self._owners = [Owner(f"consumers-{number // MEMBERS}") for number in range(GROUPS * MEMBERS)]

    def join(self) -> None:
        """Two rounds of all: they join, and then they learn what they get."""
        for _ in range(2):
            for first in range(0, GROUPS * MEMBERS, GROUPS_AT_ONCE * MEMBERS):
                numbers = range(first, first + GROUPS_AT_ONCE * MEMBERS)
                for number in numbers:
                    self._peers.send(number, self.request(number))
                for number, reader in _gather(self._peers, len(numbers)).items():
                    reader.take(1)  # the header's tags came first
                    self._owners[number].told(reader)

    def request(self, number: int) -> bytes:
        return self._owners[number].heartbeat()

    def answered(self, number: int, answer: bytes) -> None:
        reader = Reader(answer)
        reader.take(5)
        self._owners[number].told(reader)
