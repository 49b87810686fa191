"""A transactional copy program in Java, run in three instances that are killed at random.

Meanwhile a producer, which is not killed, writes the source topic. At the end, each partition of the copy
must equal the same partition of the source.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from interop.brokers import Broker
from interop.exactly_once.clients import READERS
from interop.java_programs import JavaProgram, compiled
from interop.raw import create_topic
from interop.raw_client import RawClient
from kwire.wire.plural import plural

SOURCE, COPY, GROUP = "copy-source", "copy-target", "copiers"
PARTITIONS = 4
INSTANCES = 3
PROGRAM = "ExactlyOnceCopy"
SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
COPIER = (
    "transaction.timeout.ms=8000",
    "consumer.session.timeout.ms=3000",
    "consumer.heartbeat.interval.ms=500",
    "consumer.max.poll.records=100",
)
CATCH_UP_S = 90.0


@dataclass
class CopyResult:
    """The final content of both topics by partition, and the number of kills."""

    source: dict[int, list[bytes]]
    copy: dict[int, list[bytes]]
    killed_instances: int
    killed_brokers: int

    @property
    def records(self) -> int:
        return sum(len(values) for values in self.source.values())

    def wrong(self) -> list[str]:
        """Return the differences between source and copy."""
        found = []
        for partition, wanted in self.source.items():
            got = self.copy[partition]
            if got == wanted:
                continue
            at = next(
                (at for at, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), -1
            )
            missing, extra = len(set(wanted) - set(got)), len(got) - len(set(got))
            found.append(
                f"partition {partition}: {plural(len(got), 'record')} for {len(wanted)}, {missing} missing, "
                f"{extra} twice, the first difference is at {at}"
            )
        return found


@dataclass
class Instances:
    """The running instances of the copy program. Each instance has its own transactional id."""

    bootstrap: str
    directory: Path
    """The directory of the instances' log files."""
    programs: dict[int, JavaProgram] = field(default_factory=dict)

    def start(self, number: int) -> None:
        self.programs[number] = JavaProgram(
            PROGRAM,
            *(self.bootstrap, GROUP, SOURCE, COPY, f"copier-{number}", *COPIER),
            log=self.directory / f"copier-{number}.log",
            classes=compiled(PROGRAM),
            heap="-Xmx96m",
        )

    def kill(self, number: int) -> None:
        self.programs.pop(number).kill()

    def replace(self, number: int) -> None:
        """Kill an instance and start a new instance with the same transactional id."""
        self.kill(number)
        self.start(number)

    def discard(self) -> None:
        for number in list(self.programs):
            self.kill(number)


class RecordFeed:
    """A thread that writes `records_per_second` records to a topic, until `end` is called.

    `value` returns the value of a record, whose number is the argument.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        value: Callable[[int], bytes] = lambda number: b"%d" % number,
        records_per_second: int = 400,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._value = value
        self._at_once = records_per_second // 20
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                # With more requests in flight, librdkafka may send a record twice, the second time under a
                # new producer epoch: see `cluster.load.ConfluentWriter`.
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 20,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written = 0
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            for _ in range(self._at_once):
                partition = self.written % self._partitions
                self._producer.produce(self._topic, self._value(self.written), partition=partition)
                self.written += 1
            self._producer.poll(0)

    def end(self) -> int:
        """Stop the thread, and return the number of written records, all of which are acknowledged."""
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(60) == 0, "the source could not be written"
        return self.written


def copy_under_kills(broker: Broker, seconds: float, seed: int = 1) -> CopyResult:
    """Copy under kills for this time, then wait until the copy is complete.

    Instances of the copy program are killed, and sometimes the broker.
    """
    rng = random.Random(seed)
    broker.start()
    with RawClient(broker.bootstrap) as client:
        for topic in (SOURCE, COPY):
            create_topic(client, topic, PARTITIONS)
    instances = Instances(broker.bootstrap, broker.directory)
    feeding = RecordFeed(broker.bootstrap, SOURCE, PARTITIONS)
    killed_instances = killed_brokers = 0
    try:
        for number in range(INSTANCES):
            instances.start(number)
        until = time.monotonic() + seconds
        time.sleep(4)
        while time.monotonic() < until:
            time.sleep(rng.uniform(1, 8))
            if rng.random() < 0.25:
                broker.kill()
                broker.start()
                killed_brokers += 1
                continue
            number = rng.randrange(INSTANCES)
            instances.kill(number)
            killed_instances += 1
            time.sleep(rng.uniform(0, 2))
            instances.start(number)
        written = feeding.end()
        copy = read(broker.bootstrap, COPY, written)
        return CopyResult(read(broker.bootstrap, SOURCE, written), copy, killed_instances, killed_brokers)
    finally:
        instances.discard()


def read(bootstrap: str, topic: str, count: int, partitions: int = PARTITIONS) -> dict[int, list[bytes]]:
    """Return the committed records by partition: at least `count`, or fewer after a time limit."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    reader = READERS["confluent"](bootstrap, topic, dict.fromkeys(found, 0))
    deadline = time.monotonic() + CATCH_UP_S
    quiet = 0
    try:
        while quiet < 20 and time.monotonic() < deadline:
            records = reader.poll()
            for partition, _, value in records:
                found[partition].append(value)
            complete = sum(len(values) for values in found.values()) >= count
            quiet = quiet + 1 if complete and not records else 0
    finally:
        reader.close()
    return found
