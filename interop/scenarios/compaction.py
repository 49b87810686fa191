"""Log compaction: both brokers get the same input, and the batches that remain after cleaning are compared.

While a topic is written, it has cleanup.policy=delete, so that nothing is cleaned early. Then the topic is
set to compact, so that the cleaner processes all segments in one round. The second phase shows what happens
to tombstones, and to a log that was cleaned before. Record timestamps determine where segments roll, so both
brokers have the same segments.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from typing import Any

import lz4.frame
import snappy
import zstandard
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from interop.batches import BASE_TIMESTAMP, Batch, Record, encode_record, walk
from interop.brokers import Broker
from interop.raw import create_topic, fetch, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_produce import init_producer

HOUR_MS = 3_600_000
WAIT_S = 60.0
TOPIC_RESOURCE = 2
CHECKPOINT = "cleaner-offset-checkpoint"
COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: lambda data: gzip.compress(data, mtime=0),
    2: lambda data: b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + sized(snappy.compress(data)),
    3: lambda data: lz4.frame.compress(data, block_linked=False, store_size=False),
    4: zstandard.compress,
}
DELETE_HORIZON = 0x40

CLEANER_SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "16777216",
}
CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.ms": str(HOUR_MS),
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "message.timestamp.before.max.ms": str(1 << 62),
}


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class CompactedLog:
    """A topic with one partition, which a scenario writes batch by batch and then cleans."""

    def __init__(self, broker: Broker, client: RawClient, topic: str, configs: dict[str, str]) -> None:
        self.broker = broker
        self.client = client
        self.topic = topic
        self.producer = init_producer(client)["ProducerId"]
        self.sequence = 0
        self.timestamp = BASE_TIMESTAMP
        create_topic(client, topic, 1, {**CONFIGS, **configs})

    def write(self, records: list[Record], codec: int = 0, *, idempotent: bool = False) -> None:
        for index, record in enumerate(records):
            record.timestamp_delta = index
        batch = Batch(records, attributes=codec, base_timestamp=self.timestamp)
        if codec:
            plain = b"".join(encode_record(record, index) for index, record in enumerate(records))
            batch.payload = COMPRESS[codec](plain)
        if idempotent:
            batch.producer_id, batch.producer_epoch = self.producer, 0
            batch.base_sequence = self.sequence
            self.sequence += len(records)
        response = produce(self.client, self.topic, batch.encode())
        assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, response
        self.timestamp += 1000

    def roll(self) -> None:
        """Make the next batch start a new segment."""
        self.timestamp += 2 * HOUR_MS

    def set_policy(self, policy: str) -> None:
        response = self.client.call(
            "IncrementalAlterConfigs",
            1,
            Resources=[
                {
                    "ResourceType": TOPIC_RESOURCE,
                    "ResourceName": self.topic,
                    "Configs": [{"Name": "cleanup.policy", "ConfigOperation": 0, "Value": policy}],
                }
            ],
            ValidateOnly=False,
        )
        assert response["Responses"][0]["ErrorCode"] == 0, response

    def clean(self, policy: str = "compact") -> None:
        """Use this cleanup policy until the cleaner has cleaned all but the active segment, then `delete`."""
        self.set_policy(policy)
        deadline = time.monotonic() + WAIT_S
        while self.cleaned_offset() != self.active_segment_base_offset():
            assert time.monotonic() < deadline, (self.cleaned_offset(), self.active_segment_base_offset())
            time.sleep(0.05)
        self.set_policy("delete")

    def cleaned_offset(self) -> int:
        path = self.broker.log_dir / CHECKPOINT
        for line in path.read_text().splitlines()[2:] if path.exists() else []:
            topic, _, offset = line.split()
            if topic == self.topic:
                return int(offset)
        return -1

    def active_segment_base_offset(self) -> int:
        return max(int(path.stem) for path in (self.broker.log_dir / f"{self.topic}-0").glob("*.log"))

    def observe(self) -> dict[str, Any]:
        return {
            "records": self.records(),
            "batches": self.batches(),
            "segments": sorted(path.name for path in (self.broker.log_dir / f"{self.topic}-0").glob("*.log")),
        }

    def records(self) -> list[Any]:
        """Return the start offset, the end offset and all records of the topic.

        A record is its offset, key, abbreviated value, and timestamp relative to BASE_TIMESTAMP.
        """
        where = TopicPartition(self.topic, 0)
        consumer = KafkaConsumer(bootstrap_servers=self.broker.bootstrap, enable_auto_commit=False)
        try:
            consumer.assign([where])
            start, end = consumer.beginning_offsets([where])[where], consumer.end_offsets([where])[where]
            consumer.seek(where, start)
            found: list[Any] = []
            deadline = time.monotonic() + WAIT_S
            while consumer.position(where) < end:
                assert time.monotonic() < deadline
                for message in consumer.poll(timeout_ms=200).get(where, []):
                    value = message.value
                    shown = None if value is None else value[:8] + b"%d" % len(value)
                    found.append([message.offset, message.key, shown, message.timestamp - BASE_TIMESTAMP])
            return [start, end, found]
        finally:
            consumer.close()

    def batches(self) -> list[Any]:
        """Return the batch headers, without values that may differ between brokers.

        These are base timestamps, producer ids and the lengths of compressed batches.
        """
        headers: list[Any] = []
        offset = self.client.call(
            "ListOffsets",
            1,
            ReplicaId=-1,
            Topics=[{"Name": self.topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": -2}]}],
        )["Topics"][0]["Partitions"][0]["Offset"]
        while True:
            data = fetch(self.client, self.topic, offset)["Responses"][0]["Partitions"][0]["Records"]
            found = walk(data or b"")
            if not found:
                return headers
            for header in found:
                offset = header["base_offset"] + header["last_offset_delta"] + 1
                header["producer_id"] = min(header["producer_id"], 0)
                header["has_delete_horizon"] = bool(header["attributes"] & DELETE_HORIZON)
                header.pop("base_timestamp")
                if header["attributes"] & 7:
                    header.pop("length")
                headers.append(header)


def key(number: int) -> bytes:
    """Return the key with this number. Some keys are short, some long, and one is empty."""
    return b"" if number == 0 else b"key-%d" % number * (1 if number % 3 else 30)


def value(number: int) -> bytes:
    return b"%d " % number + b"v" * (number * 37 % 400)


def first_phase(log: CompactedLog) -> None:
    """Write the same keys to several segments.

    The batches use all codecs and have one to five records. Some keys and values are null.
    """
    number = 0
    for segment in range(4):
        for batch in range(24):
            records = []
            for _ in range(1 + batch % 5):
                number += 1
                kind = number * 7 % 23
                record = Record(value(number), key(number * 13 % 50 + segment))
                if kind == 5:
                    record.value = None
                elif kind == 11:
                    record.key = None
                elif kind == 17:
                    record.headers = [("h", b"1"), ("n", None)]
                records.append(record)
            log.write(records, batch % 5, idempotent=batch % 6 == 0)
        log.roll()
    # Compaction removes the only record of this producer's last batch.
    log.write([Record(b"sent", key(7))], idempotent=True)
    log.write([Record(b"superseded", key(7))])
    for number in range(40):  # this segment rolls because of its size, not its age
        log.write([Record(b"big" * 15_000, b"big-%d" % (number % 7))])
    log.roll()
    log.write([Record(b"active", key(1)), Record(None, key(2))])


def second_phase(log: CompactedLog) -> None:
    """Write new keys, existing keys and tombstones. Continue the sequence of the idempotent producer."""
    for number in range(30):
        log.write([Record(value(number), key(number)), Record(None, key(60 + number % 4))], number % 5)
    log.write([Record(b"again", key(3))], idempotent=True)
    log.write([Record(b"the end of a round", None)])
    log.roll()
    log.write([Record(b"active", key(4))])


def run_two_phases(broker: Broker, configs: dict[str, str], policy: str = "compact") -> Any:
    own = type(broker)(CLEANER_SETTINGS)
    own.start()
    try:
        with RawClient(own.bootstrap) as client:
            log = CompactedLog(own, client, "compacted", configs)
            first_phase(log)
            seen = {"before": log.observe()["segments"]}
            log.clean(policy)
            seen["first"] = log.observe()
            second_phase(log)
            log.clean(policy)
            seen["second"] = log.observe()
            own.restart()
        with RawClient(own.bootstrap) as client:
            log.client = client
            seen["after a restart"] = log.observe()
        return seen
    finally:
        own.discard()


@scenario(seconds=240)
def tombstones_retained(broker: Broker) -> Any:
    """Clean with a delete.retention.ms of one day. A key's last tombstone remains, with a delete horizon."""
    return run_two_phases(broker, {})


@scenario(seconds=240)
def tombstones_deleted(broker: Broker) -> Any:
    """Clean with a delete.retention.ms of 0. A tombstone remains after one round, but not after two."""
    return run_two_phases(broker, {"delete.retention.ms": "0"})


@scenario(seconds=240)
def larger_segments(broker: Broker) -> Any:
    """Clean a topic with compact,delete. The cleaner may merge segments up to the size of segment.bytes."""
    return run_two_phases(broker, {"segment.bytes": "4194304"}, "compact,delete")
