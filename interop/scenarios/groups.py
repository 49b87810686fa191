"""A group of three consumers on twelve partitions. A consumer or the broker fails, and no record is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from interop import group_member
from interop.brokers import Broker
from interop.scenario import scenario
from interop.scenarios.clients_confluent import make_topic

PARTITIONS = 12
WAIT_S = 60.0


class MemberProcess:
    """A group member in a process of its own, with the assignments and records that it has reported."""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.assigned: list[int] = []
        self.values: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(Path(group_member.__file__)), broker.bootstrap, group, topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if "assigned" in event:
                self.assigned = event["assigned"]
            else:
                self.values.append(event["value"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self.assigned = []

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class NumberedProducer:
    """A producer that sends numbered records to all partitions until it is stopped."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.acknowledged: set[str] = set()
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.value().decode())
        else:
            self.refused.append(str(error))

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(
                self._topic, str(number), partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
            time.sleep(0.002)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(10)
        assert self._producer.flush(WAIT_S) == 0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def assignment_sizes(members: list[MemberProcess]) -> list[int]:
    return sorted(len(member.assigned) for member in members)


def run_group(
    broker: Broker, name: str, disturb: Callable[[list[MemberProcess]], list[MemberProcess]]
) -> Any:
    """Run the group under load, call `disturb`, and check that every acknowledged record was received.

    `disturb` gets the members and returns the members that must own all partitions afterwards.
    """
    make_topic(broker, name, PARTITIONS)
    members = [MemberProcess(broker, name, name) for _ in range(3)]
    load = NumberedProducer(broker, name)
    everyone = list(members)
    try:
        until(lambda: assignment_sizes(members) == [4, 4, 4], "the members did not get equal shares")
        seen: dict[str, Any] = {"shares": assignment_sizes(members)}
        until(lambda: all(len(member.values) > 100 for member in members), "a member read nothing")
        members = disturb(members)
        left = [PARTITIONS // len(members)] * len(members)
        until(lambda: assignment_sizes(members) == left, "the others never took over")
        seen["shares after"] = assignment_sizes(members)
        mark = [len(member.values) for member in members]
        until(
            lambda: all(len(member.values) > count + 50 for member, count in zip(members, mark, strict=True)),
            "a member stopped reading",
        )
        load.end()

        def missing() -> set[str]:
            return load.acknowledged - {value for member in everyone for value in member.values}

        until(lambda: not missing(), "records are missing")
        seen["lost"] = len(missing())
        seen["refused"] = len(load.refused)
        seen["enough"] = len(load.acknowledged) > 300
        return seen
    finally:
        load.end()
        for member in everyone:
            member.end()


@scenario(seconds=180)
def member_killed(broker: Broker) -> Any:
    def disturb(members: list[MemberProcess]) -> list[MemberProcess]:
        members[0].kill()
        return members[1:]

    return run_group(broker, "groups-member-killed", disturb)


@scenario(seconds=180)
def member_leaves(broker: Broker) -> Any:
    def disturb(members: list[MemberProcess]) -> list[MemberProcess]:
        members[0].end()
        return members[1:]

    return run_group(broker, "groups-member-leaves", disturb)


@scenario(seconds=240)
def broker_restarts(broker: Broker) -> Any:
    """Restart the broker. It must load the group, and members resume from their committed offsets."""

    def disturb(members: list[MemberProcess]) -> list[MemberProcess]:
        broker.restart()
        return members

    return run_group(broker, "groups-broker-restarts", disturb)


@scenario(seconds=240)
def broker_killed(broker: Broker) -> Any:
    def disturb(members: list[MemberProcess]) -> list[MemberProcess]:
        broker.kill()
        broker.start()
        return members

    return run_group(broker, "groups-broker-killed", disturb)
