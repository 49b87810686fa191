"""Kafka Connect in distributed mode: lines go from a file through a topic to another file, unchanged."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition

from interop.brokers import Broker, Served, free_port
from interop.java_programs import JavaProgram
from interop.scenario import scenario
from interop.scenarios.clients_confluent import consume, consumer_of, make_topic

LINES = 3000
WAIT_S = 90.0
CONVERTERS = {
    "strings": "org.apache.kafka.connect.storage.StringConverter",
    "json": "org.apache.kafka.connect.json.JsonConverter",
}


class Worker(JavaProgram):
    """A Connect worker with its REST interface. It is the only worker of its group."""

    def __init__(self, broker: Served, directory: Path, name: str, **settings: str) -> None:
        self.port = free_port()
        properties = directory / "worker.properties"
        given = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": name,
            "listeners": f"http://127.0.0.1:{self.port}",
            "key.converter": CONVERTERS["strings"],
            "value.converter": CONVERTERS["strings"],
            "plugin.discovery": "service_load",
            "offset.flush.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            # With a delay of 0, the next worker gets the tasks of a killed worker immediately.
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.storage.partitions": "3",
            "status.storage.partitions": "2",
            **{f"{kind}.storage.topic": f"{name}-{kind}s" for kind in ("config", "offset", "status")},
            **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
            **settings,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        super().__init__(
            "org.apache.kafka.connect.cli.ConnectDistributed", str(properties), log=directory / "worker.log"
        )

    def request(self, path: str, body: dict[str, str] | None = None) -> Any:
        """Send GET, or PUT if there is a body. Return the decoded JSON response, or None after an error."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="GET" if body is None else "PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.loads(response.read())
        except (urllib.error.URLError, OSError):
            return None

    def create_connector(self, name: str, **settings: str) -> None:
        """Create a connector, and wait until the connector and its task run.

        `settings` are connector configurations, with underscores instead of dots.
        """
        given = {key.replace("_", "."): value for key, value in settings.items()}

        def created() -> bool:
            return self.request(f"/connectors/{name}/config", {"tasks.max": "1", **given}) is not None

        self.until(created, f"{name} is made", WAIT_S)
        self.wait_until_running(name)

    def wait_until_running(self, name: str) -> None:
        self.until(
            lambda: connector_states(self.request(f"/connectors/{name}/status")) == ["RUNNING", "RUNNING"],
            f"{name} runs",
            WAIT_S,
        )


def connector_states(status: Any) -> list[str]:
    """Return the state of the connector, followed by the states of its tasks."""
    if status is None:
        return []
    return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]


class SourceFile:
    """An input file that grows. It is ASCII, because the connector counts characters but skips bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def add(self, count: int) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            for number in range(self.count, self.count + count):
                file.write(f'{number} "y" {"x" * (number % 50)}\n')
        self.count += count


def line_count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def read_topic(broker: Broker, topic: str, isolation: str, count: int, seconds: float = 30.0) -> list[bytes]:
    """Return the values of the first `count` records of partition 0, or fewer after `seconds`."""
    consumer = consumer_of(broker, f"{topic}-{isolation}", **{"isolation.level": isolation})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [message.value() for message in consume(consumer, count, seconds)]
    consumer.close()
    return found


def source_config(path: Path, topic: str, converter: str) -> dict[str, str]:
    return {
        "connector_class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(path),
        "topic": topic,
        "batch_size": "20",
        "value_converter": CONVERTERS[converter],
    }


def sink_config(path: Path, topic: str, converter: str) -> dict[str, str]:
    return {
        "connector_class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "file": str(path),
        "topics": topic,
        "value_converter": CONVERTERS[converter],
        "consumer_override_isolation_level": "read_committed",
    }


@scenario(seconds=240)
def file_connectors(broker: Broker) -> Any:
    """Copy lines through a topic as strings, with a clean restart of the worker in between."""
    topic = "connect-files"
    make_topic(broker, topic)
    with tempfile.TemporaryDirectory(prefix="interop-connect-") as name:
        directory = Path(name)
        given, out = SourceFile(directory / "in"), directory / "out"
        given.add(LINES // 2)
        with Worker(broker, directory, topic) as worker:
            worker.create_connector("source", **source_config(given.path, topic, "strings"))
            worker.create_connector("sink", **sink_config(out, topic, "strings"))
            worker.until(lambda: line_count(out) > 0, "lines in the output file", WAIT_S)
            given.add(LINES // 4)
            seen: dict[str, Any] = {"ends in order": worker.stop()}
        given.add(LINES - given.count)
        with Worker(broker, directory, topic) as worker:
            worker.wait_until_running("source")
            worker.wait_until_running("sink")
            worker.until(lambda: line_count(out) >= LINES, "all lines in the output file", WAIT_S)
            worker.until(
                lambda: (
                    source_position(worker.request("/connectors/source/offsets")) == given.path.stat().st_size
                ),
                "the source commits its end",
                WAIT_S,
            )
            worker.until(
                lambda: sink_offset(worker.request("/connectors/sink/offsets")) == LINES,
                "the sink commits its end",
                WAIT_S,
            )
            seen["connectors"] = sorted(worker.request("/connectors"))
            seen["version"] = worker.request("/")["version"]
            worker.stop()
        seen["out is in"] = out.read_bytes() == given.path.read_bytes()
    return seen


def source_position(answer: Any) -> int | None:
    """Return the byte position that the source connector has committed, or None before its first commit."""
    return answer["offsets"][0]["offset"]["position"] if answer and answer["offsets"] else None


def sink_offset(answer: Any) -> int | None:
    """Return the offset that the sink connector's group has committed, or None before its first commit."""
    return answer["offsets"][0]["offset"]["kafka_offset"] if answer and answer["offsets"] else None


@scenario(seconds=240)
def exactly_once_source(broker: Broker) -> Any:
    """Kill a worker with an exactly-once source, which writes JSON in transactions.

    There are few transactions, because Java's producer has a race condition (with any broker). `Sender`
    checks for incomplete batches before it takes the next request. If its thread is descheduled in between,
    it may send EndTxn before the records of the transaction, and the producer fails permanently.
    """
    topic = "connect-exactly-once"
    make_topic(broker, topic)
    # A worker reads offsets with read_committed, so it starts only after the killed worker's transaction has
    # timed out.
    settings = {"exactly.once.source.support": "enabled", "producer.transaction.timeout.ms": "5000"}
    with tempfile.TemporaryDirectory(prefix="interop-connect-") as name:
        directory = Path(name)
        given, out = SourceFile(directory / "in"), directory / "out"
        given.add(LINES // 3)
        with Worker(broker, directory, topic, **settings) as worker:
            worker.create_connector(
                "source", **source_config(given.path, topic, "json") | {"batch_size": "100"}
            )
            first = read_topic(broker, topic, "read_committed", LINES // 3, WAIT_S)
            given.add(LINES // 3)
            more = read_topic(broker, topic, "read_uncommitted", LINES // 3 + 50, WAIT_S)
            worker.kill()
        seen: dict[str, Any] = {"before the kill": len(first), "more": len(more)}
        given.add(LINES - given.count)
        with Worker(broker, directory, topic, **settings) as worker:
            worker.wait_until_running("source")
            committed = read_topic(broker, topic, "read_committed", LINES, WAIT_S)
            worker.create_connector("sink", **sink_config(out, topic, "json"))
            worker.until(lambda: line_count(out) >= LINES, "all lines in the output file", WAIT_S)
            worker.stop()
        seen["committed"] = len(committed)
        seen["first and last"] = [committed[0], committed[-1]]
        seen["out is in"] = out.read_bytes() == given.path.read_bytes()
    return seen
