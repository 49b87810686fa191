"""The job `archive` if topics are recreated, deleted, or no longer subscribed between two runs."""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from interop.brokers import Broker
from interop.pipeline.job_runs import Jobs, kafka
from interop.scenarios.clients_confluent import producer_of

WAIT_S: Final = 30.0
NUMERIC: Final = "007"
"""A topic name that Spark could interpret as a number."""
FORMATS: Final = ("kwire", "kafka")


@pytest.fixture
def broker(kind: type[Broker]) -> Iterator[Broker]:
    broker = kind()
    with ExitStack() as stack:
        stack.callback(broker.discard)
        broker.start()
        yield broker


def create(broker: Broker, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    deadline = time.monotonic() + WAIT_S
    for name in topics:
        while True:
            try:
                admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
                break
            except KafkaException:
                # The broker may still have the topic for a while after DeleteTopics.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def produce(broker: Broker, topic: str, count: int) -> None:
    producer = producer_of(broker)
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(WAIT_S) == 0


def of(broker: Broker, format_: str, *topics: str, **options: str) -> dict[str, Any]:
    if format_ == "kafka":
        return kafka(broker, *topics, **options)
    given = {"path": str(broker.log_dir), "subscribe": ",".join(topics), **options}
    return {"format": "kwire", "options": given}


def offsets_of(archive: Path) -> dict[str, list[tuple[int, int]]]:
    """Return the first and last offset of each file in the manifests, by topic."""
    found: dict[str, list[tuple[int, int]]] = {}
    for path in sorted((archive / "_manifests").glob("*.json")):
        for file in json.loads(path.read_text())["files"]:
            found.setdefault(file["topic"], []).append((file["first_offset"], file["last_offset"]))
    return found


def last_line(output: str) -> str:
    assert "Traceback" not in output, output
    return [line for line in output.splitlines() if line][-1]


@pytest.mark.parametrize("format_", FORMATS)
def test_archive_rejects_a_recreated_topic(broker: Broker, tmp_path: Path, format_: str) -> None:
    create(broker, "rec")
    produce(broker, "rec", 100)
    jobs, directory = Jobs(tmp_path), tmp_path / "archive"
    config = {"input": of(broker, format_, "rec"), "archive": {"directory": str(directory)}}
    assert "100 records" in jobs.run("archive", config)
    [manifest] = (directory / "_manifests").glob("*.json")
    [origin] = json.loads(manifest.read_text())["origins"].values()
    assert origin.keys() == {"cluster", "topic_id"}
    assert "?" not in origin.values()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["rec"])["rec"].result(WAIT_S)
    create(broker, "rec")
    produce(broker, "rec", 150)
    output = last_line(jobs.run("archive", config, status=1))
    assert output.startswith("kwire pipeline: topic rec was deleted and recreated after it was")
    assert offsets_of(directory) == {"rec": [(0, 99)]}


@pytest.mark.parametrize("format_", FORMATS)
def test_archive_resumes_a_topic_after_runs_without_it(broker: Broker, tmp_path: Path, format_: str) -> None:
    create(broker, NUMERIC, "other")
    produce(broker, NUMERIC, 500)
    produce(broker, "other", 20)
    jobs, directory = Jobs(tmp_path), tmp_path / "archive"
    archive = {"directory": str(directory)}
    # Without this option, Spark reports the missing topic as data loss.
    options = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "300"}

    def run(topic: str) -> None:
        jobs.run("archive", {"input": of(broker, format_, topic, **options), "archive": archive})

    run(NUMERIC)
    run("other")
    produce(broker, NUMERIC, 10)
    run(NUMERIC)
    run(NUMERIC)
    found = offsets_of(directory)
    covered = sorted(offset for first, last in found[NUMERIC] for offset in range(first, last + 1))
    assert covered == list(range(510))
    assert found["other"] == [(0, 19)]
