"""Consumers of both protocols in one group, which is upgraded and downgraded: librdkafka and kafka-python."""

# The clients' own annotations are partial.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from confluent_kafka import KafkaException
from kafka import KafkaConsumer
from kafka.errors import KafkaError

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.clients_confluent import make_topic
from interop.scenarios.clients_consumer_groups import PARTITIONS, WAIT_S, Sharer, even, until, write
from interop.scenarios.java_tools import TOOLS, said

SETTLING_S = 5.0
CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 6000, "heartbeat.interval.ms": 300}


class Patient(Sharer):
    """A consumer whose commit may come in the middle of a rebalance; the record is then read again."""

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.read.append((message.value() or b"").decode())
            with contextlib.suppress(KafkaException):
                self.consumer.commit(message=message, asynchronous=False)


class PythonSharer(Sharer):
    """The same with kafka-python, which speaks the classic protocol alone.

    It polls in a thread of its own: a poll that ends in the middle of a rebalance is followed by one that
    begins another, and polled in turn with the other members it would not come to an end.
    """

    consumer: Any

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.read = []
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
        )
        self._owned: list[list[Any]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            for records in self.consumer.poll(1000).values():
                self.read += (record.value.decode() for record in records)
                with contextlib.suppress(KafkaError):
                    self.consumer.commit()
            self._owned = sorted([one.topic, one.partition] for one in self.consumer.assignment())
        self.consumer.close()

    @property
    def owned(self) -> list[list[Any]]:
        return self._owned

    def poll(self) -> None:
        time.sleep(0.02)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(WAIT_S)


def kind(broker: Broker, group: str) -> list[str]:
    """What `kafka-groups` says of a group."""
    lines = said(f"{TOOLS}.GroupsCommand", broker, "--list")
    return [line for line in lines if line.startswith(f"{group} ")]


def all_read(values: list[str], sharers: list[Sharer]) -> bool:
    return {value for sharer in sharers for value in sharer.read} >= set(values)


def roll(broker: Broker, group: str, classic: list[Sharer], new: type[Sharer], **settings: Any) -> Any:
    """Replace the members of a classic group by ones of the new protocol, and those by classic ones."""
    seen: dict[str, Any] = {}
    gone: list[Sharer] = []
    written: list[str] = []

    def round_of(name: str, *sharers: Sharer) -> None:
        until(even(PARTITIONS, *sharers), *sharers)
        values = [f"{name}{at}" for at in range(24)]
        write(broker, group, values)
        written.extend(values)
        everybody = [*gone, *sharers]
        until(lambda: all_read(written, everybody), *sharers)
        seen[name] = [len(sharer.owned) for sharer in sharers], kind(broker, group)

    def leave(sharer: Sharer) -> None:
        gone.append(sharer)
        sharer.close()

    one, two = classic
    round_of("classic", one, two)
    modern = [new(broker, group, group)]
    round_of("mixed", one, two, *modern)
    leave(one)
    modern.append(new(broker, group, group))
    round_of("mostly new", two, *modern)
    leave(two)
    round_of("new", *modern)
    back = new(broker, group, group, **settings)
    round_of("mixed again", *modern, back)
    for sharer in modern:
        leave(sharer)
    round_of("classic again", back)
    leave(back)
    seen["empty"] = kind(broker, group)
    return seen


def has_user_data(broker: Broker, group: str) -> bool:
    """Whether some assignment in a classic group holds more than partitions."""
    with RawClient(broker.bootstrap) as client:
        described = client.call("DescribeGroups", 5, Groups=[group])["Groups"][0]
    for member in described["Members"]:
        data = bytes(member["MemberAssignment"])
        at = 6
        for _ in range(int.from_bytes(data[2:6])):
            at += 2 + int.from_bytes(data[at : at + 2])
            at += 4 + 4 * int.from_bytes(data[at : at + 4])
        if int.from_bytes(data[at : at + 4], signed=True) > 0:
            return True
    return False


@scenario(seconds=240)
def eager(broker: Broker) -> Any:
    """librdkafka with the range assignor, whose consumers give all up at each rebalance."""
    group = "clients-migration-eager"
    make_topic(broker, group, PARTITIONS)
    settings = {**CLASSIC, "partition.assignment.strategy": "range"}
    classic: list[Sharer] = [Patient(broker, group, group, **settings) for _ in range(2)]
    return roll(broker, group, classic, Patient, **settings)


@scenario(seconds=240)
def cooperative(broker: Broker) -> Any:
    """librdkafka with the cooperative assignor, whose consumers give up only what others get."""
    group = "clients-migration-cooperative"
    make_topic(broker, group, PARTITIONS)
    settings = {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
    for _ in range(10):
        classic: list[Sharer] = [Patient(broker, group, group, **settings) for _ in range(2)]
        until(even(PARTITIONS, *classic), *classic)
        # By how its rebalances went librdkafka puts user data into its assignments, or does not. With it a
        # group is not upgraded: the server could not keep it.
        if not has_user_data(broker, group):
            break
        for sharer in classic:
            sharer.close()
    return roll(broker, group, classic, Patient, **settings)


def settled(broker: Broker, group: str) -> PythonSharer:
    """A consumer of kafka-python that has all partitions of its group's topic.

    By chance it joins before it knows of any, as leader gives itself none, and does not look again.
    """
    for _ in range(10):
        sharer = PythonSharer(broker, group, group)
        everything = even(PARTITIONS, sharer)
        deadline = time.monotonic() + SETTLING_S
        while not everything() and time.monotonic() < deadline:
            sharer.poll()
        if everything():
            break
        sharer.close()
    return sharer


@scenario(seconds=240)
def two_libraries(broker: Broker) -> Any:
    """kafka-python and librdkafka in one group."""
    group = "clients-migration-two"
    make_topic(broker, group, PARTITIONS)
    settings = {**CLASSIC, "partition.assignment.strategy": "range,roundrobin"}
    python = settled(broker, group)
    return roll(broker, group, [Patient(broker, group, group, **settings), python], Patient, **settings)
