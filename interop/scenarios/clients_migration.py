"""Online migration of a group between the two protocols, with librdkafka and kafka-python."""

# The type annotations of the client libraries are incomplete.
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
from interop.scenarios.clients_consumer_groups import (
    PARTITIONS,
    WAIT_S,
    GroupConsumer,
    evenly_assigned,
    until,
    write,
)
from interop.scenarios.java_tools import TOOLS, tool_output

SETTLING_S = 5.0
CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 6000, "heartbeat.interval.ms": 300}


class LenientConsumer(GroupConsumer):
    """A consumer that ignores failed commits. During a rebalance, it may therefore read a record twice."""

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.read.append((message.value() or b"").decode())
            with contextlib.suppress(KafkaException):
                self.consumer.commit(message=message, asynchronous=False)


class KafkaPythonConsumer(GroupConsumer):
    """A kafka-python consumer, which supports only the classic protocol.

    The consumer polls in a thread of its own. If all members were polled in turn by one thread, a poll that
    ends during a rebalance would be followed by a poll that starts another rebalance, and the group would
    never settle.
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


def group_listing(broker: Broker, group: str) -> list[str]:
    """Return the lines for one group in the output of `kafka-groups`."""
    lines = tool_output(f"{TOOLS}.GroupsCommand", broker, "--list")
    return [line for line in lines if line.startswith(f"{group} ")]


def all_read(values: list[str], members: list[GroupConsumer]) -> bool:
    return {value for consumer in members for value in consumer.read} >= set(values)


def upgrade_and_downgrade(
    broker: Broker, group: str, classic: list[GroupConsumer], new: type[GroupConsumer], **settings: Any
) -> Any:
    """Migrate a group from the classic to the consumer protocol and back, one member at a time.

    The group starts with two classic members. Two members of class `new` with the consumer protocol replace
    them, and one classic member of class `new` with `settings` replaces these. The group and its topic have
    the same name.
    """
    seen: dict[str, Any] = {}
    removed: list[GroupConsumer] = []
    written: list[str] = []

    def run_phase(name: str, *members: GroupConsumer) -> None:
        until(evenly_assigned(PARTITIONS, *members), *members)
        values = [f"{name}{at}" for at in range(24)]
        write(broker, group, values)
        written.extend(values)
        all_members = [*removed, *members]
        until(lambda: all_read(written, all_members), *members)
        seen[name] = [len(consumer.owned) for consumer in members], group_listing(broker, group)

    def close_member(consumer: GroupConsumer) -> None:
        removed.append(consumer)
        consumer.close()

    one, two = classic
    run_phase("classic", one, two)
    consumers = [new(broker, group, group)]
    run_phase("mixed", one, two, *consumers)
    close_member(one)
    consumers.append(new(broker, group, group))
    run_phase("mostly new", two, *consumers)
    close_member(two)
    run_phase("new", *consumers)
    back = new(broker, group, group, **settings)
    run_phase("mixed again", *consumers, back)
    for consumer in consumers:
        close_member(consumer)
    run_phase("classic again", back)
    close_member(back)
    seen["empty"] = group_listing(broker, group)
    return seen


def has_user_data(broker: Broker, group: str) -> bool:
    """Return whether the assignment of any member of a classic group contains user data."""
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
    """Migrate librdkafka consumers with the range assignor, which revokes all partitions in a rebalance."""
    group = "clients-migration-eager"
    make_topic(broker, group, PARTITIONS)
    settings = {**CLASSIC, "partition.assignment.strategy": "range"}
    classic: list[GroupConsumer] = [LenientConsumer(broker, group, group, **settings) for _ in range(2)]
    return upgrade_and_downgrade(broker, group, classic, LenientConsumer, **settings)


@scenario(seconds=240)
def cooperative(broker: Broker) -> Any:
    """Migrate librdkafka consumers with the cooperative assignor, which revokes only moved partitions."""
    group = "clients-migration-cooperative"
    make_topic(broker, group, PARTITIONS)
    settings = {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
    for _ in range(10):
        classic: list[GroupConsumer] = [LenientConsumer(broker, group, group, **settings) for _ in range(2)]
        until(evenly_assigned(PARTITIONS, *classic), *classic)
        # librdkafka may or may not add user data to its assignments, depending on its earlier rebalances.
        # The coordinator does not upgrade a group with user data, because it could not keep the data.
        if not has_user_data(broker, group):
            break
        for consumer in classic:
            consumer.close()
    return upgrade_and_downgrade(broker, group, classic, LenientConsumer, **settings)


def consumer_with_all_partitions(broker: Broker, group: str) -> KafkaPythonConsumer:
    """Return a kafka-python consumer that owns all partitions of its group's topic.

    If a consumer becomes group leader before it has metadata, it assigns no partitions to itself and does not
    rebalance later. The function replaces such a consumer, at most nine times.
    """
    for _ in range(10):
        consumer = KafkaPythonConsumer(broker, group, group)
        everything = evenly_assigned(PARTITIONS, consumer)
        deadline = time.monotonic() + SETTLING_S
        while not everything() and time.monotonic() < deadline:
            consumer.poll()
        if everything():
            break
        consumer.close()
    return consumer


@scenario(seconds=240)
def two_libraries(broker: Broker) -> Any:
    """Migrate a group with one kafka-python member and one librdkafka member."""
    group = "clients-migration-two"
    make_topic(broker, group, PARTITIONS)
    settings = {**CLASSIC, "partition.assignment.strategy": "range,roundrobin"}
    python = consumer_with_all_partitions(broker, group)
    return upgrade_and_downgrade(
        broker,
        group,
        [LenientConsumer(broker, group, group, **settings), python],
        LenientConsumer,
        **settings,
    )
