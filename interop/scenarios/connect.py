"""Kafka Connect, distributed, with its file connectors: what goes in at one file comes out at the other."""

# The client's own annotations are partial.
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
    """A worker of Connect, alone in its group, and its REST interface."""

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
            # The tasks of a worker that was killed are given to the next one at once.
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
        """The answer to a GET, or to a PUT of a body; None while the worker does not answer, or refuses."""
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
        """Have a connector, and wait for it and its task to run."""
        given = {key.replace("_", "."): value for key, value in settings.items()}

        def made() -> bool:
            return self.request(f"/connectors/{name}/config", {"tasks.max": "1", **given}) is not None

        self.until(made, f"{name} is made", WAIT_S)
        self.wait_until_running(name)

    def wait_until_running(self, name: str) -> None:
        self.until(
            lambda: connector_states(self.request(f"/connectors/{name}/status")) == ["RUNNING", "RUNNING"],
            f"{name} runs",
            WAIT_S,
        )


def connector_states(status: Any) -> list[str]:
    """Of the connector and of its tasks."""
    if status is None:
        return []
    return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]


class SourceFile:
    """A file that is written part by part, in ASCII: the source counts characters, and skips bytes."""

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
    """The first records of a topic that this isolation level sees; fewer, if there are no more in time."""
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
    """A source and a sink with a topic between, as strings; the worker is restarted in order."""
    topic = "connect-files"
    make_topic(broker, topic)
    with tempfile.TemporaryDirectory(prefix="interop-connect-") as name:
        directory = Path(name)
        given, out = SourceFile(directory / "in"), directory / "out"
        given.add(LINES // 2)
        with Worker(broker, directory, topic) as worker:
            worker.create_connector("source", **source_config(given.path, topic, "strings"))
            worker.create_connector("sink", **sink_config(out, topic, "strings"))
            worker.until(lambda: line_count(out) > 0, "lines come out", WAIT_S)
            given.add(LINES // 4)
            seen: dict[str, Any] = {"ends in order": worker.stop()}
        given.add(LINES - given.count)
        with Worker(broker, directory, topic) as worker:
            worker.wait_until_running("source")
            worker.wait_until_running("sink")
            worker.until(lambda: line_count(out) >= LINES, "all lines come out", WAIT_S)
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
    """Up to which byte of its file the source has committed."""
    return answer["offsets"][0]["offset"]["position"] if answer and answer["offsets"] else None


def sink_offset(answer: Any) -> int | None:
    """The committed offset of the sink's group."""
    return answer["offsets"][0]["offset"]["kafka_offset"] if answer and answer["offsets"] else None


@scenario(seconds=240)
def exactly_once_source(broker: Broker) -> Any:
    """A source that writes its records and its offsets in transactions, as JSON; the worker is killed.

    In few transactions: where its sender is kept from a processor between two looks, Java's producer asks for
    the end of a transaction before it has sent what is in it, and fails for good with any broker (`Sender`
    asks for the next request with what it has found of incomplete batches before).
    """
    topic = "connect-exactly-once"
    make_topic(broker, topic)
    # Offsets are read committed: a worker begins when the transaction of the killed one has timed out.
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
            worker.until(lambda: line_count(out) >= LINES, "all lines come out", WAIT_S)
            worker.stop()
        seen["committed"] = len(committed)
        seen["first and last"] = [committed[0], committed[-1]]
        seen["out is in"] = out.read_bytes() == given.path.read_bytes()
    return seen
