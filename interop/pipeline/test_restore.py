"""Archives that are restored into a data directory, on which kwire and Apache Kafka start without repairs.

Another test checks that the job `archive` reports or skips a corrupt segment.
"""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.brokers import ApacheKafka, Broker, Kwire, run_tool
from interop.pipeline.job_runs import Jobs, kafka, produce_odd, read
from interop.pipeline_kills.reading import Partition, Record
from interop.scenarios.clients_confluent import producer_of

WAIT_S: Final = 30.0
BEGAN_MS: Final = 1_300_000_000_000
"""A timestamp that is much older than the default retention."""
ODD, DENSE, STAMPED = "odd", "dense", "stamped"
TOPICS: Final = {ODD: 3, DENSE: 1, STAMPED: 1}
"""The number of partitions by topic. The last partition of ODD stays empty."""

Log = tuple[tuple[int, int], dict[int, Record]]
"""The start and end offset of a partition, and its records by offset."""


@pytest.fixture
def source(kind: type[Broker]) -> Iterator[Broker]:
    """Start a broker and write all the topics to it."""
    broker = kind({"log.segment.bytes": "1048576"})
    with ExitStack() as stack:
        stack.callback(broker.discard)
        broker.start()
        fill(broker)
        yield broker


def fill(broker: Broker) -> None:
    """Write gaps from transactions and DeleteRecords, records with all fields, and broker timestamps."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {"retention.ms": "-1"}
    stamped = {"message.timestamp.type": "LogAppendTime"}
    new = [
        NewTopic(name, partitions, 1, config=settings | (stamped if name == STAMPED else {}))
        for name, partitions in TOPICS.items()
    ]
    for future in admin.create_topics(new).values():
        future.result(WAIT_S)
    produce_odd(broker, ODD, 2, BEGAN_MS)
    for codec in ("none", "zstd"):
        plain = producer_of(broker, **{"compression.type": codec, "batch.size": 20_000})
        for number in range(4_000):
            plain.produce(DENSE, b"v%d" % number * 9, b"k%d" % (number % 50), 0, timestamp=BEGAN_MS + number)
            if number % 8 == 0:
                plain.produce(STAMPED, b"s%d" % number)
            plain.poll(0)
        assert plain.flush(WAIT_S) == 0
    admin.delete_records([TopicPartition(ODD, 1, 25)])
    deleted = admin.delete_records([TopicPartition(DENSE, 0, 1_000)])
    for future in deleted.values():
        future.result(WAIT_S)


def logs_of(broker: Broker, *topics: str) -> dict[Partition, Log]:
    """Return the log of each partition, as a plain consumer reads it."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "judge"})
    try:
        return {
            place: (consumer.get_watermark_offsets(TopicPartition(*place), WAIT_S), records)
            for place, records in read(broker, *topics).items()
        }
    finally:
        consumer.close()


def of_broker(broker: Broker, **options: Any) -> dict[str, Any]:
    return kafka(broker, *TOPICS, **{"kafka.isolation.level": "read_committed"}, **options)


def input_from_files(directory: Path) -> dict[str, Any]:
    options = {"path": str(directory), "isolationLevel": "read_committed"}
    return {"format": "kwire", "options": {**options, "subscribe": ",".join(TOPICS)}}


def test_brokers_start_on_a_restored_directory(source: Broker, tmp_path: Path) -> None:
    expected = logs_of(source, *TOPICS)
    assert expected[ODD, 0][1].keys() < set(range(*expected[ODD, 0][0])), "there are gaps"
    assert expected[DENSE, 0][0][0] == 1_000
    jobs = Jobs(tmp_path)
    archive, directory = tmp_path / "archive", tmp_path / "data"
    input_ = of_broker(source, maxOffsetsPerTrigger=3_000)
    jobs.run("archive", {"input": input_, "archive": {"directory": str(archive)}})
    assert " files became " in jobs.run("compact", {"compact": {"directory": str(archive)}})
    restore = {
        "directory": str(archive),
        "segment_bytes": 1 << 20,
        "broker": {"properties": str(source.properties_path)},
    }
    jobs.run("restore", {"restore": restore}, "--into-directory", str(directory))
    again = {**restore, "into_directory": str(directory)}
    assert "nothing to do" in jobs.run("restore", {"restore": again})
    said = jobs.run("restore", {"restore": {**again, "suffix": ".other"}}, status=1)
    assert f"kwire pipeline: {directory} is not empty" in said
    assert_tools_accept(directory)
    for kind in (Kwire, ApacheKafka):
        target = kind()
        with ExitStack() as stack:
            stack.callback(target.discard)
            shutil.copytree(directory, target.log_dir)
            target.write_properties()  # without this file, `start` would format the directory
            target.start()
            assert logs_of(target, *TOPICS) == expected
            audit = {
                "audit": {"window": "30 days", "offsets": True},
                "left": {"format": "archive", "directory": str(archive)},
                "right": of_broker(target),
            }
            assert "clean: " in jobs.run("audit", audit)
            assert_unmoved(target)
            assert_goes_on(target, expected)


def assert_unmoved(broker: Broker) -> None:
    """Check that the broker logged no warning about its logs: no recovery, truncation or election."""
    lines = broker.log_text().splitlines()
    assert not [line for line in lines if " ERROR " in line]
    assert not [line for line in lines if "WARN" in line and any(f"{topic}-" in line for topic in TOPICS)]


def assert_goes_on(broker: Broker, before: Mapping[Partition, Log]) -> None:
    """Check that the broker appends new records at the end, and that all records survive a restart."""
    delivered: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(
        ODD,
        b"new",
        partition=0,
        timestamp=BEGAN_MS,
        on_delivery=lambda _, sent: delivered.append(sent.offset()),
    )
    assert producer.flush(WAIT_S) == 0
    (start, end), records = before[ODD, 0]
    assert delivered == [end]
    broker.restart()
    after = logs_of(broker, *TOPICS)
    ends, found = after[ODD, 0]
    assert ends == (start, end + 1)
    assert found.pop(end).value == b"new"
    assert found == records
    assert after[DENSE, 0] == before[DENSE, 0]


def assert_tools_accept(directory: Path) -> None:
    """Check that Kafka's kafka-dump-log accepts logs and indexes."""
    tool = "org.apache.kafka.tools.DumpLogSegments"
    logs = sorted(path for path in directory.glob("*/*.log") if path.stat().st_size)
    assert len(logs) >= 3
    dumped = run_tool(tool, "--deep-iteration", "--files", ",".join(map(str, logs)), check=True)
    assert "isvalid: true" in dumped.stdout
    assert "isvalid: false" not in dumped.stdout
    indexes = sorted(str(path) for path in directory.glob("*/*.*index") if path.stat().st_size)
    checked = run_tool(tool, "--index-sanity-check", "--files", ",".join(indexes), check=True)
    assert checked.stdout.count("passed sanity check") == len(indexes), checked.stdout


def test_corrupt_segment_is_reported_or_skipped(source: Broker, tmp_path: Path) -> None:
    (start, end), records = logs_of(source, DENSE)[DENSE, 0]
    source.stop()
    copy = tmp_path / "copy"
    shutil.copytree(source.log_dir, copy)
    path = max((copy / f"{DENSE}-0").glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    jobs = Jobs(tmp_path)
    archive = tmp_path / "archive"
    config = {"input": input_from_files(copy), "archive": {"directory": str(archive)}}
    lines = jobs.run("archive", config, status=1).splitlines()
    # Skip the lines in which the JVM reports its options.
    [said] = [line for line in lines if not line.startswith(("NOTE: ", "WARNING: Using incubator"))]
    assert said.startswith(f"kwire pipeline: {path} is corrupt at byte ")
    jobs.run("archive", config, "--on-corrupt", "skip")
    [manifest] = (archive / "_manifests").glob("*.json")
    [skipped] = json.loads(manifest.read_text())["skipped"]
    assert (skipped["topic"], skipped["partition"], skipped["file"]) == (DENSE, 0, str(path))
    gone = range(skipped["start_offset"], skipped["end_offset"])
    assert start <= gone.start < gone.stop <= end
    assert len(gone) < len(records) // 2
    directory = tmp_path / "data"
    restore = {"directory": str(archive), "into_directory": str(directory), "topics": DENSE}
    broker = {"properties": str(source.properties_path)}
    jobs.run("restore", {"restore": {**restore, "broker": broker}})
    shutil.rmtree(source.log_dir)
    shutil.copytree(directory, source.log_dir)
    source.start()
    ends, found = logs_of(source, DENSE)[DENSE, 0]
    assert ends == (start, end)
    assert found == {offset: record for offset, record in records.items() if offset not in gone}
