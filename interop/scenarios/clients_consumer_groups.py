"""Clients of the consumer group protocol (KIP-848): librdkafka, Java's consumer and the group tools."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from interop.brokers import Broker, start_tool
from interop.scenario import scenario
from interop.scenarios.clients_confluent import make_topic, producer_of
from interop.scenarios.java_tools import TOOLS, console_produce, errors_only, tool_output

WAIT_S = 40.0
PARTITIONS = 6


class GroupConsumer:
    """A consumer of a group, with its assignment and the records that it has read."""

    def __init__(self, broker: Broker, group: str, *topics: str, **settings: Any) -> None:
        self.read: list[str] = []
        self.lost = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1000,
                **settings,
            }
        )
        self.consumer.subscribe(list(topics))

    @property
    def owned(self) -> list[list[Any]]:
        return sorted([one.topic, one.partition] for one in self.consumer.assignment())

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.read.append((message.value() or b"").decode())
            self.consumer.commit(message=message, asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


def until(condition: Callable[[], bool], *members: GroupConsumer) -> None:
    """Poll the members until the condition is true. Fail after `WAIT_S` seconds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, [member.owned for member in members]
        for member in members:
            member.poll()


def evenly_assigned(count: int, *members: GroupConsumer) -> Callable[[], bool]:
    """Return a condition: the members own `count` partitions, evenly distributed and without overlap."""

    def holds() -> bool:
        owned = [member.owned for member in members]
        every = [tuple(one) for some in owned for one in some]
        sizes = {len(some) for some in owned}
        return len(every) == len(set(every)) == count and max(sizes) - min(sizes) <= 1

    return holds


def write(broker: Broker, topic: str, values: list[str], partitions: int = PARTITIONS) -> None:
    producer = producer_of(broker)
    for at, value in enumerate(values):
        producer.produce(topic, value, partition=at % partitions)
    assert producer.flush(WAIT_S) == 0


@scenario(seconds=240)
def partition_assignment(broker: Broker) -> Any:
    """Add consumers to a group and remove one consumer. The group must read and commit every record."""
    topic = group = "clients-848-sharing"
    make_topic(broker, topic, PARTITIONS)
    seen: dict[str, Any] = {}
    members = [GroupConsumer(broker, group, topic)]
    until(evenly_assigned(PARTITIONS, *members), *members)
    seen["one"] = [member.owned for member in members]
    members += [GroupConsumer(broker, group, topic), GroupConsumer(broker, group, topic)]
    until(evenly_assigned(PARTITIONS, *members), *members)
    seen["three"] = [len(member.owned) for member in members]
    first = [f"a{at}" for at in range(60)]
    write(broker, topic, first)
    until(lambda: sum(len(member.read) for member in members) >= len(first), *members)
    seen["read by three"] = sorted(value for member in members for value in member.read)
    removed = members.pop(0)
    removed.close()
    until(evenly_assigned(PARTITIONS, *members), *members)
    seen["two"] = [len(member.owned) for member in members]
    second = [f"b{at}" for at in range(60)]
    write(broker, topic, second)
    until(lambda: sum(len(one.read) for one in [removed, *members]) >= len(first + second), *members)
    seen["read in all"] = sorted(value for member in [removed, *members] for value in member.read)
    for member in members:
        member.close()
    last = GroupConsumer(broker, group, topic)
    until(evenly_assigned(PARTITIONS, last), last)
    committed = last.consumer.committed([TopicPartition(topic, at) for at in range(PARTITIONS)], WAIT_S)
    seen["committed"] = [one.offset for one in committed]
    last.close()
    return seen


@scenario(seconds=180)
def regex_subscription(broker: Broker) -> Any:
    """Subscribe with a regular expression, create a topic that matches, and try an invalid expression."""
    prefix = "clients-848-regex"
    make_topic(broker, f"{prefix}-a", 1)
    make_topic(broker, f"{prefix}-b", 2)
    make_topic(broker, f"{prefix}-a-not", 1)
    seen: dict[str, Any] = {}
    member = GroupConsumer(broker, prefix, f"^{prefix}-[a-z]$")
    until(evenly_assigned(3, member), member)
    seen["matched"] = member.owned
    # The coordinator evaluates the expressions of a group again after ten seconds at the earliest.
    time.sleep(10)
    make_topic(broker, f"{prefix}-c", 1)
    until(evenly_assigned(4, member), member)
    seen["a new one"] = member.owned
    member.close()
    broken = GroupConsumer(broker, f"{prefix}-broken", "^a{2000}")  # an expression that only RE2 rejects
    deadline = time.monotonic() + WAIT_S
    error = None
    while error is None and time.monotonic() < deadline:
        message = broken.consumer.poll(0.1)
        if message is not None:
            error = message.error()
    seen["broken"] = error.name() if error is not None else None
    broken.close()
    return seen


@scenario(seconds=180)
def static_members(broker: Broker) -> Any:
    """Restart a static member, which must get its partitions back. Start another with its instance id."""
    topic = group = "clients-848-static"
    make_topic(broker, topic, PARTITIONS)
    one = GroupConsumer(broker, group, topic, **{"group.instance.id": "one"})
    two = GroupConsumer(broker, group, topic, **{"group.instance.id": "two"})
    until(evenly_assigned(PARTITIONS, one, two), one, two)
    before = one.owned
    one.close()
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        two.poll()
    seen: dict[str, Any] = {"two while one is away": len(two.owned)}
    one = GroupConsumer(broker, group, topic, **{"group.instance.id": "one"})
    until(evenly_assigned(PARTITIONS, one, two), one, two)
    seen["the same as before"] = one.owned == before
    fenced = GroupConsumer(broker, group, topic, **{"group.instance.id": "one"})
    message, deadline = None, time.monotonic() + WAIT_S
    while message is None and time.monotonic() < deadline:
        message = fenced.consumer.poll(0.2)
        one.poll()
        two.poll()
    error = None if message is None else message.error()
    seen["the instance id is in use"] = None if error is None else error.name()
    for member in (fenced, one, two):
        try:
            member.close()
        except KafkaException as error:
            seen["closing"] = error.args[0].name()
    return seen


@scenario(seconds=300)
def java(broker: Broker) -> Any:
    """Run the Java console consumer with the consumer protocol, and the tools for consumer groups."""
    topic = group = "clients-848-java"
    tool = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    tool_output(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "1")
    console_produce(broker, topic, ["one", "two", "three"])
    protocol = ("--command-property", "group.protocol=consumer")
    consumer = start_tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group, "--from-beginning"),
        *("--command-property", "auto.commit.interval.ms=100", *protocol),
    )
    seen: dict[str, Any] = {}
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            state = tool_output(tool, broker, "--describe", "--group", group, "--state", "--verbose")
            lag = tool_output(tool, broker, "--describe", "--group", group)
            if any("Stable" in line for line in state) and len(lag) > 3:
                rows = [line.split() for line in lag if line.startswith(group)]
                if rows and all(row[5] == "0" for row in rows if row[3] != "-"):
                    break
        seen["state"] = state
        seen["lag"] = sorted(tool_output(tool, broker, "--describe", "--group", group, "--verbose"))
        seen["members"] = tool_output(tool, broker, "--describe", "--group", group, "--members", "--verbose")
        for filters in (("--state",), ("--type",), ("--type", "consumer"), ("--state", "stable")):
            listed = tool_output(tool, broker, "--list", *filters)
            seen[f"list {filters}"] = [line for line in listed if group in line or line.startswith("exit")]
        groups = tool_output(f"{TOOLS}.GroupsCommand", broker, "--list", "--group-type", "consumer")
        seen["groups"] = [line for line in groups if group in line or line.startswith("GROUP")]
        seen["delete"] = errors_only(tool_output(tool, broker, "--delete", "--group", group))
        seen["delete offsets"] = sorted(
            tool_output(tool, broker, "--delete-offsets", "--group", group, "--topic", topic)
        )
        reset = tool_output(
            tool, broker, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
        )
        seen["reset"] = [line for line in reset if "Assignments can only" in line or line.startswith("exit")]
    finally:
        consumer.send_signal(signal.SIGTERM)
        output = consumer.communicate(timeout=30)[0]
    seen["consumed"] = sorted(output.decode().split())
    seen["reset when empty"] = sorted(
        tool_output(
            tool, broker, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
        )
    )
    again = tool_output(
        f"{TOOLS}.consumer.ConsoleConsumer",
        broker,
        *("--topic", topic, "--group", group, "--max-messages", "3", *protocol),
    )
    seen["consumed again"] = sorted(again)
    seen["state when empty"] = tool_output(tool, broker, "--describe", "--group", group, "--state")
    seen["deleted"] = tool_output(tool, broker, "--delete", "--group", group)
    return seen
