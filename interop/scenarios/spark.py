"""Spark's Kafka source and sink: batches and streams, offsets and timestamps, and failures.

The Spark programs are in interop/spark_jobs. They run in the Python that has PySpark.
"""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from interop.brokers import Broker, Served
from interop.reference import HERE, spark_jars, spark_python
from interop.scenario import scenario
from interop.scenarios.clients_confluent import consume, consumer_of, producer_of, wait_for_partitions
from interop.workload import BASE_TIMESTAMP, records

JOB_S = 150.0


class SparkJob:
    """A running Spark program. It is killed with its JVM at the end of the with block."""

    def __init__(
        self, program: str, broker: Served, directory: Path, *, seconds: float = JOB_S, **settings: Any
    ) -> None:
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.log = directory / f"{program}.log"
        given = {
            "bootstrap": broker.bootstrap,
            "jars": [str(jar) for jar in spark_jars()],
            "directory": str(directory),
            **settings,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [spark_python(), "-m", f"interop.spark_jobs.{program}", json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=HERE.parent,
                env={**os.environ, "PYTHONPATH": str(HERE.parent)},
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def __enter__(self) -> SparkJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def next_event(self) -> dict[str, Any]:
        """Return the next event that the program prints.

        Raises RuntimeError if the program ends or exceeds its time limit first.
        """
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, self.deadline - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"Spark is not done after {self.seconds:.0f} s: {self.tail()}") from None
            if line is None:
                raise RuntimeError(f"Spark ended early: {self.tail()}")
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found

    def expect(self, name: str) -> Any:
        event = self.next_event()
        assert name in event, event
        return event[name]

    def resume(self) -> None:
        """Let the program continue, after the action that its last event requested."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL to the process group of the driver, which contains Python and its JVM."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def create_retained_topic(broker: Broker, name: str, partitions: int, **config: str) -> None:
    """Create a topic whose records do not expire, because the records have old timestamps."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
    wait_for_partitions(admin, name, partitions)


def produce(broker: Broker, topic: str, partition: int, values: list[tuple[str, int]]) -> None:
    """Produce values with their timestamps to one partition."""
    producer = producer_of(broker)
    for value, timestamp_ms in values:
        producer.produce(topic, value=value.encode(), partition=partition, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


@scenario(seconds=240, needs="spark")
def batch_read_and_write(broker: Broker) -> Any:
    """Write and read batches, and compare counts, keys, values, headers, timestamp types and codecs."""
    create_retained_topic(broker, "spark-batch", 4)
    create_retained_topic(broker, "spark-keyed", 6)
    create_retained_topic(broker, "spark-from-client", 2)
    create_retained_topic(broker, "spark-append-time", 1, message_timestamp_type="LogAppendTime")
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = producer_of(broker, **{"compression.type": codec})
        for index, sent in enumerate(records(100)):
            producer.produce(
                "spark-from-client",
                key=sent.key,
                value=sent.value,
                headers=sent.headers,
                timestamp=sent.timestamp_ms + number,
                partition=index % 2,
            )
        assert producer.flush(30) == 0
    with (
        tempfile.TemporaryDirectory(prefix="interop-spark-") as directory,
        SparkJob("batch", broker, Path(directory)) as job,
    ):
        return job.expect("seen")


@scenario(seconds=300, needs="spark")
def offset_ranges(broker: Broker) -> Any:
    """Read ranges of offsets, by time and by topic pattern, with size limits and after deletions."""
    topic = "spark-times"
    create_retained_topic(broker, topic, 3)
    for partition in range(3):
        numbered = [(f"{partition}-{index}", BASE_TIMESTAMP + index * 1000) for index in range(100)]
        produce(broker, topic, partition, numbered)
    for name, partitions in (("spark-pattern-a", 2), ("spark-pattern-b", 1), ("spark-loss", 2)):
        create_retained_topic(broker, name, partitions)
        for partition in range(partitions):
            produce(broker, name, partition, [(f"{name} {index}", 1000 + index) for index in range(30)])
    with_headers = producer_of(broker)
    for index in range(10):
        headers = [("h", str(index).encode()), ("empty", b""), ("none", None)]
        with_headers.produce("spark-pattern-a", value=b"h", partition=0, timestamp=5000, headers=headers)
    assert with_headers.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with (
        tempfile.TemporaryDirectory(prefix="interop-spark-") as directory,
        SparkJob("offsets", broker, Path(directory), start=BASE_TIMESTAMP) as job,
    ):
        assert job.expect("ask") == "more"
        create_retained_topic(broker, "spark-pattern-c", 1)
        produce(broker, "spark-pattern-c", 0, [(f"c {index}", 1000) for index in range(7)])
        admin.create_partitions([NewPartitions("spark-pattern-b", 2)])["spark-pattern-b"].result(30)
        wait_for_partitions(admin, "spark-pattern-b", 2)
        produce(broker, "spark-pattern-b", 1, [("of a new partition", 1000)])
        produce(broker, topic, 1, [(f"more {index}", BASE_TIMESTAMP) for index in range(5)])
        job.resume()
        assert job.expect("ask") == "delete"
        for partition in range(2):
            produce(broker, "spark-loss", partition, [(f"lost {index}", 2000) for index in range(20)])
        deleted = admin.delete_records([TopicPartition("spark-loss", 0, 45)])
        for future in deleted.values():
            future.result(30)
        job.resume()
        assert job.expect("ask") == "recreate"
        admin.delete_topics(["spark-loss"])["spark-loss"].result(30)
        wait_until_gone(admin, "spark-loss")
        create_retained_topic(broker, "spark-loss", 2)
        produce(broker, "spark-loss", 0, [(f"anew {index}", 3000) for index in range(4)])
        job.resume()
        return job.expect("seen")


@scenario(seconds=300, needs="spark")
def options(broker: Broker) -> Any:
    """Use the remaining documented options of source and sink, and invalid options."""
    create_retained_topic(broker, "spark-options", 4)
    for partition in range(4):
        numbered = [(f"{partition}-{index}", BASE_TIMESTAMP + index) for index in range(100)]
        produce(broker, "spark-options", partition, numbered)
    for number in range(9):
        create_retained_topic(broker, f"spark-sink-{number}", 2)
    for name in ("1", "update", "complete", "wrong"):
        create_retained_topic(broker, f"spark-streamed-{name}", 4 if name == "1" else 1)
    with (
        tempfile.TemporaryDirectory(prefix="interop-spark-") as directory,
        SparkJob("options", broker, Path(directory)) as job,
    ):
        return job.expect("seen")


def wait_until_gone(admin: AdminClient, topic: str) -> None:
    deadline = time.monotonic() + 30
    while topic in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline, f"{topic} is not gone"
        time.sleep(0.05)


@scenario(seconds=330, needs="spark")
def copy_killed_and_resumed(broker: Broker) -> Any:
    """Copy a topic with a stream. First the driver is killed, then the broker: delivery is at least once."""
    source, target = "spark-copy-from", "spark-copy-to"
    create_retained_topic(broker, source, 2)
    create_retained_topic(broker, target, 2)
    for partition in range(2):
        produce(broker, source, partition, [(f"{partition}-{index}", 1000) for index in range(600)])
    seen: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="interop-spark-") as name:
        directory = Path(name)
        checkpoint = directory / "checkpoint"
        settings = {"source": source, "target": target, "batch": 40, "checkpoint": str(checkpoint)}
        with SparkJob("stream_copy", broker, directory, **settings) as job:
            seen["first batches"] = [job.next_event() for _ in range(5)]
            job.kill()
        planned, committed = batches(checkpoint / "offsets"), batches(checkpoint / "commits")
        ends = [sum(offsets_of(checkpoint, number)[source].values()) for number in planned]
        seen["killed midway"] = ends[-1] < 1200
        seen["forty a batch"] = ends == [40 * (number + 1) for number in planned]
        seen["committed at most one batch less"] = planned[-1] - committed[-1] in (0, 1)
        arrived = copied_values(broker, target)
        done = offsets_of(checkpoint, committed[-1])[source]
        seen["committed batches are in the copy"] = all(
            f"{partition}-{index}" in arrived
            for partition in range(2)
            for index in range(done[str(partition)])
        )
        with SparkJob("stream_copy", broker, directory, **settings) as job:
            first = job.next_event()
            seen["resumed after the last commit"] = first["batch"] == committed[-1] + 1
            broker.kill()
            broker.start()
            for partition in range(2):
                produce(
                    broker, source, partition, [(f"{partition}-{index}", 1000) for index in range(600, 700)]
                )
            end = first["end"]
            while end != {source: {"0": 700, "1": 700}}:
                end = job.next_event()["end"]
            job.kill()
        planned = batches(checkpoint / "offsets")
        seen["batches without a gap"] = planned == list(range(len(planned)))
        seen["offsets at the end"] = offsets_of(checkpoint, planned[-1])
    arrived = copied_values(broker, target)
    wanted = {f"{partition}-{index}" for partition in range(2) for index in range(700)}
    seen["missing"] = sorted(wanted - set(arrived))
    seen["strange"] = sorted(set(arrived) - wanted)
    seen["at most one batch twice"] = len(arrived) - len(wanted) <= 40
    return seen


def batches(directory: Path) -> list[int]:
    """Return the numbers of the micro-batches that have a file in this directory of a checkpoint."""
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def offsets_of(checkpoint: Path, batch_number: int) -> Any:
    """Return the end offsets of a micro-batch, as the checkpoint has them."""
    return json.loads((checkpoint / "offsets" / str(batch_number)).read_text().splitlines()[-1])


def copied_values(broker: Broker, topic: str) -> list[str]:
    """Return the values in a topic with two partitions, including duplicates."""
    consumer = consumer_of(broker, f"{topic}-reader")
    places = [TopicPartition(topic, partition, 0) for partition in range(2)]
    count = sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
    consumer.assign(places)
    values = [message.value().decode() for message in consume(consumer, count)]
    consumer.close()
    return values
