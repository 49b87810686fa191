"""Clients that speak the protocol of KIP-848: consumers of librdkafka and Java, and the tools for groups."""

# The client's own annotations are partial.
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
from interop.scenarios.java_tools import TOOLS, errors_only, feed, said

WAIT_S = 40.0
PARTITIONS = 6


class Sharer:
    """A consumer in a group, and what it was given and read so far."""

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


def until(condition: Callable[[], bool], *sharers: Sharer) -> None:
    """Poll them all until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, [sharer.owned for sharer in sharers]
        for sharer in sharers:
            sharer.poll()


def even(count: int, *sharers: Sharer) -> Callable[[], bool]:
    """Whether they share that many partitions evenly, and each partition has one of them."""

    def holds() -> bool:
        owned = [sharer.owned for sharer in sharers]
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
def sharing(broker: Broker) -> Any:
    """Consumers come and go; each record is read, and committed by one of them."""
    topic = group = "clients-848-sharing"
    make_topic(broker, topic, PARTITIONS)
    seen: dict[str, Any] = {}
    sharers = [Sharer(broker, group, topic)]
    until(even(PARTITIONS, *sharers), *sharers)
    seen["one"] = [sharer.owned for sharer in sharers]
    sharers += [Sharer(broker, group, topic), Sharer(broker, group, topic)]
    until(even(PARTITIONS, *sharers), *sharers)
    seen["three"] = [len(sharer.owned) for sharer in sharers]
    first = [f"a{at}" for at in range(60)]
    write(broker, topic, first)
    until(lambda: sum(len(sharer.read) for sharer in sharers) >= len(first), *sharers)
    seen["read by three"] = sorted(value for sharer in sharers for value in sharer.read)
    gone = sharers.pop(0)
    gone.close()
    until(even(PARTITIONS, *sharers), *sharers)
    seen["two"] = [len(sharer.owned) for sharer in sharers]
    second = [f"b{at}" for at in range(60)]
    write(broker, topic, second)
    until(lambda: sum(len(one.read) for one in [gone, *sharers]) >= len(first + second), *sharers)
    seen["read in all"] = sorted(value for sharer in [gone, *sharers] for value in sharer.read)
    for sharer in sharers:
        sharer.close()
    last = Sharer(broker, group, topic)
    until(even(PARTITIONS, last), last)
    committed = last.consumer.committed([TopicPartition(topic, at) for at in range(PARTITIONS)], WAIT_S)
    seen["committed"] = [one.offset for one in committed]
    last.close()
    return seen


@scenario(seconds=180)
def expressions(broker: Broker) -> Any:
    """A subscription by a regular expression, which the coordinator matches, and new topics for it."""
    prefix = "clients-848-regex"
    make_topic(broker, f"{prefix}-a", 1)
    make_topic(broker, f"{prefix}-b", 2)
    make_topic(broker, f"{prefix}-a-not", 1)
    seen: dict[str, Any] = {}
    sharer = Sharer(broker, prefix, f"^{prefix}-[a-z]$")
    until(even(3, sharer), sharer)
    seen["matched"] = sharer.owned
    # A group's expressions are matched anew ten seconds after the last time at the earliest.
    time.sleep(10)
    make_topic(broker, f"{prefix}-c", 1)
    until(even(4, sharer), sharer)
    seen["a new one"] = sharer.owned
    sharer.close()
    broken = Sharer(broker, f"{prefix}-broken", "^a{2000}")  # librdkafka takes it, RE2 does not
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
    """A consumer with an instance id comes back to its partitions; nobody else got them meanwhile."""
    topic = group = "clients-848-static"
    make_topic(broker, topic, PARTITIONS)
    one = Sharer(broker, group, topic, **{"group.instance.id": "one"})
    two = Sharer(broker, group, topic, **{"group.instance.id": "two"})
    until(even(PARTITIONS, one, two), one, two)
    before = one.owned
    one.close()
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        two.poll()
    seen: dict[str, Any] = {"two while one is away": len(two.owned)}
    one = Sharer(broker, group, topic, **{"group.instance.id": "one"})
    until(even(PARTITIONS, one, two), one, two)
    seen["the same as before"] = one.owned == before
    fenced = Sharer(broker, group, topic, **{"group.instance.id": "one"})
    message, deadline = None, time.monotonic() + WAIT_S
    while message is None and time.monotonic() < deadline:
        message = fenced.consumer.poll(0.2)
        one.poll()
        two.poll()
    error = None if message is None else message.error()
    seen["the instance id is taken"] = None if error is None else error.name()
    for sharer in (fenced, one, two):
        try:
            sharer.close()
        except KafkaException as error:
            seen["closing"] = error.args[0].name()
    return seen


@scenario(seconds=300)
def java(broker: Broker) -> Any:
    """The Java console consumer in a group of the protocol, and what the tools tell of the group."""
    topic = group = "clients-848-java"
    tool = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    said(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "1")
    feed(broker, topic, ["one", "two", "three"])
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
            state = said(tool, broker, "--describe", "--group", group, "--state", "--verbose")
            lag = said(tool, broker, "--describe", "--group", group)
            if any("Stable" in line for line in state) and len(lag) > 3:
                rows = [line.split() for line in lag if line.startswith(group)]
                if rows and all(row[5] == "0" for row in rows if row[3] != "-"):
                    break
        seen["state"] = state
        seen["lag"] = sorted(said(tool, broker, "--describe", "--group", group, "--verbose"))
        seen["members"] = said(tool, broker, "--describe", "--group", group, "--members", "--verbose")
        for filters in (("--state",), ("--type",), ("--type", "consumer"), ("--state", "stable")):
            listed = said(tool, broker, "--list", *filters)
            seen[f"list {filters}"] = [line for line in listed if group in line or line.startswith("exit")]
        groups = said(f"{TOOLS}.GroupsCommand", broker, "--list", "--group-type", "consumer")
        seen["groups"] = [line for line in groups if group in line or line.startswith("GROUP")]
        seen["delete"] = errors_only(said(tool, broker, "--delete", "--group", group))
        seen["delete offsets"] = sorted(
            said(tool, broker, "--delete-offsets", "--group", group, "--topic", topic)
        )
        reset = said(
            tool, broker, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
        )
        seen["reset"] = [line for line in reset if "Assignments can only" in line or line.startswith("exit")]
    finally:
        consumer.send_signal(signal.SIGTERM)
        output = consumer.communicate(timeout=30)[0]
    seen["consumed"] = sorted(output.decode().split())
    seen["reset when empty"] = sorted(
        said(
            tool, broker, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
        )
    )
    again = said(
        f"{TOOLS}.consumer.ConsoleConsumer",
        broker,
        *("--topic", topic, "--group", group, "--max-messages", "3", *protocol),
    )
    seen["consumed again"] = sorted(again)
    seen["state when empty"] = said(tool, broker, "--describe", "--group", group, "--state")
    seen["deleted"] = said(tool, broker, "--delete", "--group", group)
    return seen
