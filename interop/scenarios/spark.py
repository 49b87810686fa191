"""Spark's format("kafka"): batch and streaming, by offsets and times, killed and resumed.

The Spark programs are in interop/spark_jobs and run in PySpark's own environment.
"""

# The client's own annotations are partial.
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

from confluent_kafka.admin import AdminClient, NewTopic

from interop.brokers import Broker
from interop.reference import HERE, spark_jars, spark_python
from interop.scenario import scenario
from interop.scenarios.clients_confluent import make_topic, producer_of
from interop.workload import records

JOB_S = 200.0


class Job:
    """A Spark program that is ended, JVM and all, when the scenario is done with it."""

    def __init__(self, program: str, broker: Broker, directory: Path, **settings: Any) -> None:
        self.deadline = time.monotonic() + JOB_S
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

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def event(self) -> dict[str, Any]:
        """The next thing that the program tells."""
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, self.deadline - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"Spark is not done after {JOB_S:.0f} s: {self.tail()}") from None
            if line is None:
                raise RuntimeError(f"Spark ended early: {self.tail()}")
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found

    def expect(self, name: str) -> Any:
        event = self.event()
        assert name in event, event
        return event[name]

    def go_on(self) -> None:
        """Answer what the program asked."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL to the driver: to Python and to its JVM, which is in the same group of processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def produce(broker: Broker, topic: str, partition: int, values: list[tuple[str, int]]) -> None:
    """Values with their times, to one partition."""
    producer = producer_of(broker)
    for value, timestamp_ms in values:
        producer.produce(topic, value=value.encode(), partition=partition, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


@scenario(seconds=240, needs="spark")
def batch(broker: Broker) -> Any:
    """Batch write then read: counts, keys, values, headers, partitions, types of timestamps, codecs."""
    make_topic(broker, "spark-batch", 4)
    make_topic(broker, "spark-keyed", 6)
    make_topic(broker, "spark-from-client", 2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    append_time = NewTopic("spark-append-time", 1, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin.create_topics([append_time])["spark-append-time"].result(30)
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
        Job("batch", broker, Path(directory)) as job,
    ):
        return job.expect("seen")
