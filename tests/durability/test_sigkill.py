"""Fifty kills of a real broker under load: acknowledged records, offsets and topics survive.

Some kills hit the recovery. After each restart the test compares the new records of every log. At the end it
reads all records, with kwire's client and with librdkafka.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.wire.batch import BatchHeader, CorruptBatch, Record, batches, records
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kwire.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.durability.child import BrokerProcess, Connection, Connections, Failed
from tests.durability.load import (
    TOPIC_RESOURCE,
    AcksAllProducer,
    Batch,
    Committer,
    IdempotentProducer,
    PartitionId,
    Producer,
    TopicAdmin,
    TopicState,
    Written,
    new_record,
    read_key,
)

KILLS = 50
MAX_KILLS = 2 * KILLS
"""A slow machine does less between two kills, so the test adds kills until the load was sufficient."""
SEED = 20_240_607
LONGEST_LOAD_SECONDS = 0.25
AN_HOUR_MS = 3600 * 1000
LATEST, EARLIEST = -1, -2
ANY_SECONDS = 20
FETCHED_BYTES = 1 << 18
SETTINGS = {
    # Background files are written constantly, so that many kills interrupt a write.
    "log.flush.offset.checkpoint.interval.ms": "40",
    "log.flush.start.offset.checkpoint.interval.ms": "40",
    "replica.high.watermark.checkpoint.interval.ms": "40",
    "log.segment.delete.delay.ms": "100",
    "offsets.topic.num.partitions": "4",
    "auto.create.topics.enable": "false",
}
TOPICS = {
    # Full indexes cause many rolls. Each segment still holds more batches of a producer than are in flight,
    # because recovery reads the producer state of the segment before the first unflushed one.
    "orders": (4, {"segment.index.bytes": "720", "index.interval.bytes": "512"}),
    "clicks": (3, {"segment.index.bytes": "1200", "index.interval.bytes": "0", "flush.messages": "100"}),
    "audit": (
        1,
        {
            "message.timestamp.type": "LogAppendTime",
            "segment.index.bytes": "480",
            "index.interval.bytes": "512",
        },
    ),
}
PARTITIONS: list[PartitionId] = [
    (topic, index) for topic, (count, _) in TOPICS.items() for index in range(count)
]
COMMITTED: list[PartitionId] = [partition for partition in PARTITIONS if partition[0] == "orders"]


class PartitionLedger:
    """The expected and the observed records of one partition."""

    def __init__(self, partition: PartitionId) -> None:
        self.partition = partition
        self.acked: dict[int, Written] = {}
        self.acked_end = 0
        self.reset()

    def reset(self) -> None:
        """Forget the observed records, to read all of them again."""
        self.seen_end = 0
        self.last_numbers: dict[str, int] = {}
        self.timestamps: list[int] = []

    def acknowledge(self, producer: Producer, batch: Batch) -> None:
        assert batch.acked_at is not None
        for position in range(batch.count):
            offset = batch.acked_at + position
            if offset in self.acked:
                raise Failed(f"{self.partition} gave offset {offset} to two records")
            self.acked[offset] = Written(producer.name, batch.first + position)
        self.acked_end = max(self.acked_end, batch.acked_at + batch.count)

    def check_record(self, record: Record, producers: dict[str, Producer]) -> None:
        """Check the next record of the log, or raise Failed."""
        where = f"{self.partition} offset {record.offset}"
        if record.offset != self.seen_end:
            raise Failed(f"{where} follows on {self.seen_end - 1}")
        found = read_key(record.key, self.partition)
        if self.acked.get(record.offset, found) != found:
            raise Failed(f"{where} holds {found}, not {self.acked[record.offset]}")
        producer = producers[found.producer]
        last = self.last_numbers.get(found.producer, -1)
        exactly_once = isinstance(producer, IdempotentProducer)
        if found.number <= last or found.number >= producer.numbers[self.partition]:
            raise Failed(f"{where} holds {found} after number {last}")
        if exactly_once and found.number != last + 1:
            raise Failed(f"{where} holds {found}: {last + 1} was lost")
        timestamp, key, value, headers = new_record(
            found.producer, self.partition, found.number, producer.start_ms
        )
        if self.partition[0] == "audit":
            timestamp = record.timestamp  # the broker's timestamp
        if record != Record(record.offset, timestamp, key, value, list(headers)):
            raise Failed(f"{where} is {record}")
        self.last_numbers[found.producer] = found.number
        self.timestamps.append(record.timestamp)
        self.seen_end += 1

    def check_complete(self) -> None:
        """Check that every acknowledged record was observed."""
        if self.seen_end < self.acked_end:
            raise Failed(f"{self.partition} ends at {self.seen_end}, {self.acked_end} was acknowledged")

    def first_at(self, timestamp: int) -> int:
        """Return the first offset with this timestamp or a later one, or -1."""
        return next((offset for offset, one in enumerate(self.timestamps) if one >= timestamp), -1)


class SigkillHarness:
    """A broker that is killed repeatedly, and its clients."""

    def __init__(self, directory: Path) -> None:
        self.rng = random.Random(SEED)
        self.directory = directory
        self.data = directory / "data"
        self.child = BrokerProcess(self.data, directory / "broker.log", SETTINGS)
        self.connections = Connections(self.child.address)
        self.admin_connection: Connection
        self.ledgers = {partition: PartitionLedger(partition) for partition in PARTITIONS}
        start_ms = int(time.time() * 1000) - AN_HOUR_MS
        chance = (random.Random(f"{SEED} {number}") for number in range(10))
        self.idempotent = [
            IdempotentProducer("exact", PARTITIONS, next(chance), start_ms),
            IdempotentProducer("exact-orders", COMMITTED, next(chance), start_ms + 1000),
        ]
        self.producers: dict[str, Producer] = {
            one.name: one
            for one in (
                Producer("plain", PARTITIONS, next(chance), start_ms + 500),
                AcksAllProducer("plain-all", PARTITIONS[2:], next(chance), start_ms - 500),
                *self.idempotent,
            )
        }
        self.committer = Committer("billing", COMMITTED, next(chance))
        self.topic_admin = TopicAdmin(next(chance))
        self.producer_ids: set[int] = set()

    # --- one life

    def open(self) -> None:
        if not self.child.wait_until_it_serves():
            raise Failed(f"the broker does not start:\n{self.child.log_end()}")
        self.connections = Connections(self.child.address)
        self.admin_connection = self.connections.connect("admin_connection")

    def request(self, version: int, request: Any) -> Any:
        return self.connections.request(self.admin_connection, version, request)

    def prepare(self) -> None:
        """Create topics, producer ids and the group's coordinator."""
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=count,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            for name, (count, configs) in TOPICS.items()
        ]
        answer = self.request(7, CreateTopicsRequest(topics=topics))
        assert [topic.error_code for topic in answer.topics] == [0, 0, 0]
        for producer in self.idempotent:
            producer.producer_id = self.new_producer_id()
        found = self.request_until_ready(
            4, FindCoordinatorRequest(coordinator_keys=["billing"]), lambda r: r.coordinators[0].error_code
        )
        assert found.coordinators[0].port == self.child.address[1]

    def request_until_ready(self, version: int, request: Any, code: Any) -> Any:
        """Repeat a request until the coordinator is loaded."""
        deadline = time.monotonic() + ANY_SECONDS
        while True:
            answer = self.request(version, request)
            if code(answer) == 0:
                return answer
            known = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            if code(answer) not in known or time.monotonic() > deadline:
                raise Failed(f"the coordinator answers {ErrorCode(code(answer)).name}")
            self.connections.turn(0.01)

    def new_producer_id(self) -> int:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        answer = self.request_until_ready(4, request, lambda r: r.error_code)
        if answer.producer_id in self.producer_ids:
            raise Failed(f"producer id {answer.producer_id} was given before")
        self.producer_ids.add(answer.producer_id)
        return int(answer.producer_id)

    def run_load_until_killed(self) -> None:
        """Run all clients until the broker is killed at a random time."""
        workers: list[Producer | Committer | TopicAdmin] = [
            *self.producers.values(),
            self.committer,
            self.topic_admin,
        ]
        for worker in workers:
            worker.begin(self.connections.connect(type(worker).__name__))
        before = sum(producer.acks_counted for producer in self.producers.values())
        wanted = int(10 ** self.rng.uniform(0, 2.5)) if self.rng.random() < 0.5 else 1 << 30
        deadline = time.monotonic() + self.rng.uniform(0.01, LONGEST_LOAD_SECONDS)
        while time.monotonic() < deadline:
            for worker in workers:
                worker.send_more()
            self.connections.turn(deadline - time.monotonic())
            if sum(producer.acks_counted for producer in self.producers.values()) - before >= wanted:
                break
        self.child.kill()
        self.connections.drain()
        self.connections.close()
        for worker in workers:
            worker.broker_killed()
        for producer in self.producers.values():
            for batch in producer.acked:
                self.ledgers[batch.partition].acknowledge(producer, batch)
            producer.acked.clear()

    # --- the accounts

    def check(self) -> None:
        """Check new records, offsets, the group and the topics."""
        ends = self.offsets_at(dict.fromkeys(PARTITIONS, LATEST))
        starts = self.offsets_at(dict.fromkeys(PARTITIONS, EARLIEST))
        assert set(starts.values()) == {0}
        for partition, ledger in self.ledgers.items():
            for record in self.read(partition, ledger.seen_end, ends[partition]):
                ledger.check_record(record, self.producers)
            assert ledger.seen_end == ends[partition]
            ledger.check_complete()
        self.check_times()
        self.check_group()
        self.topic_admin.check(self.topics())
        self.new_producer_id()

    def offsets_at(self, wanted: dict[PartitionId, int]) -> dict[PartitionId, int]:
        topics = [
            ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsPartition(partition_index=index, timestamp=timestamp)]
            )
            for (topic, index), timestamp in wanted.items()
        ]
        answer = self.request(7, ListOffsetsRequest(replica_id=-1, topics=topics))
        found = {}
        for topic in answer.topics:
            for one in topic.partitions:
                assert one.error_code == 0
                found[(topic.name, one.partition_index)] = one.offset
        return found

    def read(self, partition: PartitionId, start: int, end: int) -> Iterator[Record]:
        offset = start
        while offset < end:
            wanted = FetchPartition(
                partition=partition[1], fetch_offset=offset, partition_max_bytes=FETCHED_BYTES
            )
            topic = FetchTopic(topic=partition[0], partitions=[wanted])
            answer = self.request(11, FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic]))
            data = answer.responses[0].partitions[0]
            if data.error_code or data.high_watermark != end or not data.records:
                raise Failed(f"{partition}, offset {offset} of {end}: {data}")
            for position, header in whole_batches(data.records):
                for record in records(data.records, position, header):
                    if record.offset >= start:
                        yield record
                offset = header.next_offset

    def check_times(self) -> None:
        """Check ListOffsets by timestamp against the expected records."""
        wanted: dict[PartitionId, int] = {}
        for partition, ledger in self.ledgers.items():
            if ledger.timestamps:
                recent = ledger.timestamps[-60:] if self.rng.random() < 0.5 else ledger.timestamps
                wanted[partition] = self.rng.choice(recent) + self.rng.randint(-1, 1)
        for partition, offset in self.offsets_at(wanted).items():
            expected = self.ledgers[partition].first_at(wanted[partition])
            if offset != expected:
                raise Failed(f"{partition} has {offset}, not {expected}, at timestamp {wanted[partition]}")

    def check_group(self) -> None:
        topics = [
            OffsetFetchRequestTopic(name=topic, partition_indexes=[index]) for topic, index in COMMITTED
        ]
        request = OffsetFetchRequest(group_id=self.committer.group, topics=topics)
        answer = self.request_until_ready(5, request, lambda response: response.error_code)
        for topic in answer.topics:
            for one in topic.partitions:
                assert one.error_code == 0
                partition = (topic.name, one.partition_index)
                self.committer.check(partition, one.committed_offset, one.metadata)

    def topics(self) -> dict[str, TopicState]:
        """Return the topics of the topic administrator."""
        found = {}
        for topic in self.request(12, MetadataRequest(topics=None)).topics:
            assert topic.error_code == 0
            assert [one.error_code for one in topic.partitions] == [0] * len(topic.partitions)
            if topic.name.startswith("made-"):
                found[topic.name] = TopicState(0, len(topic.partitions), topic.topic_id)
        resources = [
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=["retention.ms"]
            )
            for name in found
        ]
        for result in self.request(4, DescribeConfigsRequest(resources=resources)).results:
            assert result.error_code == 0
            (config,) = result.configs
            found[result.resource_name].retention_ms = int(config.value)
        return found


def whole_batches(data: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the complete batches of a response."""
    try:
        yield from batches(data)
    except CorruptBatch:
        if len(data) < FETCHED_BYTES:
            raise


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SigkillHarness]:
    made = SigkillHarness(tmp_path)
    made.child.start()
    try:
        yield made
    finally:
        made.child.kill()
        made.connections.close()


def test_acknowledged_records_survive_fifty_sigkills(harness: SigkillHarness) -> None:
    harness.open()
    harness.prepare()
    for kill in range(MAX_KILLS):
        if kill >= KILLS and not missing_coverage(harness):
            break
        if kill and harness.rng.random() < 0.15:
            # The kill hits the recovery, or the time around it.
            harness.child.wait_until_it_serves(harness.rng.uniform(0, 0.6))
            harness.child.kill()
        else:
            if kill:
                harness.open()
                harness.check()
            harness.run_load_until_killed()
        harness.child.start()
    harness.open()
    harness.check()
    check_all_records(harness)
    assert not missing_coverage(harness)

    harness.connections.close()
    harness.child.stop()
    harness.child.start()
    harness.open()
    check_all_records(harness)
    assert harness.child.logged_errors() == []


def check_all_records(harness: SigkillHarness) -> None:
    """Read all records from the start, with kwire's client and with librdkafka."""
    for ledger in harness.ledgers.values():
        ledger.reset()
    harness.check()
    seen_by_librdkafka = records_seen_by_librdkafka(harness)
    for partition, ledger in harness.ledgers.items():
        assert len(seen_by_librdkafka[partition]) == ledger.seen_end
        for offset, (found, key) in enumerate(seen_by_librdkafka[partition]):
            assert found == offset
            assert ledger.acked.get(offset) in (None, read_key(key, partition))


def records_seen_by_librdkafka(harness: SigkillHarness) -> dict[PartitionId, list[tuple[int, bytes]]]:
    """Return offset and key of every record, in order, as librdkafka reads them."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    found: dict[PartitionId, list[tuple[int, bytes]]] = {partition: [] for partition in PARTITIONS}
    host, port = harness.child.address
    consumer = Consumer(
        {
            "bootstrap.servers": f"{host}:{port}",
            "group.id": "stranger",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, 0) for topic, index in PARTITIONS])
        unread = set(PARTITIONS)
        deadline = time.monotonic() + ANY_SECONDS
        while unread and time.monotonic() < deadline:
            for message in consumer.consume(1000, 1):
                partition = (str(message.topic()), int(message.partition() or 0))
                error = message.error()
                if error is None:
                    key = message.key()
                    assert isinstance(key, bytes)
                    found[partition].append((int(message.offset() or 0), key))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(partition)
                else:
                    raise Failed(f"{partition}: {error}")
    finally:
        consumer.close()
    assert not unread
    return found


def missing_coverage(harness: SigkillHarness) -> list[str]:
    """Return the kinds of load that have not occurred often enough."""
    found = [
        f"{topic}-{index} was never rolled"
        for topic, index in PARTITIONS
        if len(list((harness.data / f"{topic}-{index}").glob("*.log"))) < 2
    ]
    if any(producer.sent_again <= 10 for producer in harness.idempotent):
        found.append("few batches were sent twice")
    if any(len(ledger.acked) <= 100 for ledger in harness.ledgers.values()):
        found.append("few records were acknowledged")
    if harness.topic_admin.counted <= 10 or not harness.committer.acked:
        found.append("few topics were made, or no offsets committed")
    return found
