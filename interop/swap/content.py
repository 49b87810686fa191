"""The workload of each turn. It continues the workload of the previous turn, which ran on either broker."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import create_topic, produce, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenarios.raw_groups import Member
from interop.swap.clients import LongLived, new_protocol, transact
from interop.swap.log_dir_moves import move_to_the_other
from interop.swap.observation import COMPACTED
from interop.swap.observation import records as read_records
from interop.workload import CODECS, records

MIB = "1048576"
DAY_MS = str(24 * 60 * 60 * 1000)
SMALL = "swap-small"
"""A topic with several small batches between two index entries."""
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "swap-plain": (3, {"segment.bytes": MIB}),
    "swap-rolling": (
        1,
        {"segment.bytes": MIB, "index.interval.bytes": "1024", "segment.index.bytes": "65536"},
    ),
    "swap-times": (1, {"message.timestamp.type": "LogAppendTime"}),
    "swap-idempotent": (2, {"segment.bytes": MIB}),
    "swap-cut": (2, {"segment.bytes": MIB}),
    "swap-kept": (
        2,
        {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.9"},
    ),
    "swap-both": (1, {"cleanup.policy": "compact,delete", "retention.ms": "-1"}),
    "swap-flushed": (1, {"flush.messages": "1", "min.insync.replicas": "1", "max.message.bytes": "2000000"}),
    "swap-delayed": (1, {"file.delete.delay.ms": DAY_MS, "preallocate": "true", "segment.bytes": MIB}),
    **{f"swap-{codec}": (1, {"compression.type": codec}) for codec in ("gzip", "snappy", "lz4", "zstd")},
    COMPACTED: (
        1,
        {
            "cleanup.policy": "compact",
            "segment.bytes": MIB,
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "1000",
        },
    ),
    "swap-uncompressed": (1, {"compression.type": "uncompressed"}),
    SMALL: (1, {"segment.bytes": MIB, "index.interval.bytes": "512"}),
}
MOVED = [SMALL, "swap-rolling", COMPACTED]
"""The topics that move to the other log directory in each turn."""
GROUP = "swap-group"
STABLE = "swap-stable"
ASSIGNMENT = b"\0\0\0\0\0\0\xff\xff\xff\xff"


class Workload:
    """The workload, and the state that it carries from one turn to the next."""

    def __init__(self, log_dirs: list[Path]) -> None:
        self.log_dirs = log_dirs
        self.round = 0
        self.rng = random.Random(4)
        self.producer_ids: list[int] = []
        self.sequences: dict[int, int] = {}
        self.last: dict[int, tuple[bytes, int]] = {}
        """The last batch and its base offset, by partition of swap-idempotent."""
        self.member: tuple[str, int] | None = None
        self.clients: LongLived | None = None
        self.kept: list[Any] | None = None
        """The quotas and credentials, as Apache Kafka described them."""

    def run_turn(self, broker: Broker) -> None:
        """Run one turn of the workload, and check the response to each request."""
        self.round += 1
        with RawClient(broker.bootstrap) as client:
            if self.round == 1:
                for name, (partitions, configs) in TOPICS.items():
                    create_topic(client, name, partitions, configs)
                self.clients = LongLived(broker)
            self.create_and_delete_topics(client)
            self.through_stock_client(broker)
            self.roll(client)
            self.idempotent(client)
            self.delete_records(client)
            self.configure(client)
            if broker.name == "apache":
                self.set_quotas_and_credentials(client)
        self.group(broker)
        assert self.clients is not None
        self.clients.take_turn(broker)
        transact(broker)
        new_protocol(broker)
        wait_until_compacted(broker)
        with RawClient(broker.bootstrap) as client:
            move_to_the_other(client, MOVED, self.log_dirs)

    def set_quotas_and_credentials(self, client: RawClient) -> None:
        """Set quotas and credentials in the first turn. Later, check that they are still the same."""
        if self.kept is not None:
            assert quotas_and_credentials(client) == self.kept, self.kept
            return
        quota = {
            "Entity": [{"EntityType": "user", "EntityName": "ann"}],
            "Ops": [{"Key": "producer_byte_rate", "Value": 1e9, "Remove": False}],
        }
        answer = client.call("AlterClientQuotas", 1, Entries=[quota], ValidateOnly=False)
        assert answer["Entries"][0]["ErrorCode"] == 0, answer
        credential = {
            "Name": "ann",
            "Mechanism": 1,
            "Iterations": 4096,
            "Salt": b"salt" * 4,
            "SaltedPassword": b"password" * 4,
        }
        answer = client.call("AlterUserScramCredentials", 0, Deletions=[], Upsertions=[credential])
        assert answer["Results"][0]["ErrorCode"] == 0, answer
        deadline = time.monotonic() + 10
        while not all(quotas_and_credentials(client)):
            assert time.monotonic() < deadline, "neither quota nor credential"
            time.sleep(0.05)
        self.kept = quotas_and_credentials(client)

    def create_and_delete_topics(self, client: RawClient) -> None:
        """Create a topic for this turn, and delete the topic of the previous turn."""
        name = f"swap-turn-{self.round}"
        create_topic(client, name, 2, {"segment.bytes": MIB})
        accepted(produce(client, name, Batch(base_timestamp=now_ms()).encode(), partition=1))
        if self.round > 1:
            delete_topic(client, f"swap-turn-{self.round - 1}")
            if self.round > 2:
                delete_topic(client, "swap-again")
            # A new topic of the same name has another topic id.
            create_topic(client, "swap-again")
            accepted(produce(client, "swap-again", Batch(base_timestamp=now_ms()).encode()))

    def through_stock_client(self, broker: Broker) -> None:
        """Produce keys, headers and tombstones with each codec. Every second producer is idempotent."""
        for number, codec in enumerate(CODECS):
            producer = Producer(
                {
                    "bootstrap.servers": broker.bootstrap,
                    "compression.type": codec,
                    "log_level": 0,
                    "linger.ms": 5,
                    "enable.idempotence": number % 2 == 0,
                }
            )
            failed: list[Any] = []

            def delivered(error: Any, _: Any, failed: list[Any] = failed) -> None:
                if error is not None:
                    failed.append(error)

            for topic, (partitions, configs) in TOPICS.items():
                if topic in ("swap-idempotent", "swap-rolling", COMPACTED, SMALL):
                    continue
                for index, record in enumerate(records(20)):
                    if record.key is None and "compact" in configs.get("cleanup.policy", ""):
                        continue
                    producer.produce(
                        topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        timestamp=int(time.time() * 1000) - 60_000 + self.round * 100 + index,
                        partition=index % partitions,
                        on_delivery=delivered,
                    )
            assert producer.flush(30) == 0
            assert not failed, failed

    def roll(self, client: RawClient) -> None:
        """Produce enough incompressible data to start a new segment, and many small batches."""
        for index in range(60):
            small = Batch([Record(bytes(index * 3), b"s%d" % index)], base_timestamp=now_ms())
            accepted(produce(client, SMALL, small.encode()))
        for index in range(30):
            value = self.rng.randbytes(40_000 + index)
            batch = Batch([Record(value, b"r%d" % index)], base_timestamp=now_ms(), attributes=index % 2)
            for topic in ("swap-rolling", "swap-delayed"):
                accepted(produce(client, topic, batch.encode()))
            key = self.rng.randrange(8)
            keyed = Record(value + value[:20_000] if key else None, b"k%d" % key)
            accepted(produce(client, COMPACTED, Batch([keyed], base_timestamp=now_ms()).encode()))

    def idempotent(self, client: RawClient) -> None:
        """Send the first producer's last batch again, then continue. Check that producer ids are unique."""
        answer = client.call("InitProducerId", 4, TransactionalId=None, TransactionTimeoutMs=60_000)
        assert answer["ErrorCode"] == 0, answer
        assert answer["ProducerId"] not in self.producer_ids, (answer, self.producer_ids)
        self.producer_ids.append(answer["ProducerId"])
        for partition in range(2):
            if partition in self.last:
                batch, offset = self.last[partition]
                again = accepted(produce(client, "swap-idempotent", batch, partition=partition))
                assert again["BaseOffset"] == offset, (again, offset)
            for _ in range(7):
                sequence = self.sequences.get(partition, 0)
                count = 1 + self.rng.randrange(4)
                batch = self.batch(self.producer_ids[0], sequence, count)
                written = accepted(produce(client, "swap-idempotent", batch, partition=partition))
                self.sequences[partition] = sequence + count
                self.last[partition] = batch, written["BaseOffset"]
            gap = self.batch(self.producer_ids[0], self.sequences[partition] + 5, 1)
            refused = produce(client, "swap-idempotent", gap, partition=partition)
            assert refused["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 45, refused
            if len(self.producer_ids) > 1:
                first = self.batch(self.producer_ids[-1], 0, 2)
                accepted(produce(client, "swap-idempotent", first, partition=partition))

    def batch(self, producer_id: int, sequence: int, count: int) -> bytes:
        return Batch(
            [Record(b"%d" % (sequence + delta), timestamp_delta=delta) for delta in range(count)],
            base_timestamp=now_ms(),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        ).encode()

    def delete_records(self, client: RawClient) -> None:
        """Delete the first records of both partitions of swap-cut, up to a higher offset in each turn."""
        for partition in range(2):
            answer = client.call(
                "DeleteRecords",
                2,
                TimeoutMs=10_000,
                Topics=[
                    {
                        "Name": "swap-cut",
                        "Partitions": [{"PartitionIndex": partition, "Offset": self.round * 30 - partition}],
                    }
                ],
            )
            assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == 0, answer

    def configure(self, client: RawClient) -> None:
        """Change dynamic configs of a topic, of this broker, and of all brokers."""
        changes = [
            (2, "swap-plain", "retention.ms", f"{self.round}00000000"),
            (2, "swap-times", "max.message.bytes", f"{1_000_000 + self.round}"),
            (4, "1", "log.cleaner.backoff.ms", f"{1000 + self.round}"),
            (4, "", "log.retention.ms", f"{self.round}000000000"),
        ]
        answer = client.call(
            "IncrementalAlterConfigs",
            1,
            ValidateOnly=False,
            Resources=[
                {
                    "ResourceType": kind,
                    "ResourceName": name,
                    "Configs": [{"Name": key, "ConfigOperation": 0, "Value": value}],
                }
                for kind, name, key, value in changes
            ],
        )
        assert not any(result["ErrorCode"] for result in answer["Responses"]), answer

    def group(self, broker: Broker) -> None:
        """Commit in two groups: one has the same member in all turns, one a new member in each turn."""
        with Member(broker, STABLE) as member:
            wait_for_coordinator(member.client, STABLE)
            if self.member is None:
                member.join(SessionTimeoutMs=500_000)
                member.sync({member.member_id: ASSIGNMENT})
                self.member = member.member_id, member.generation
            member.member_id, member.generation = self.member
            assert member.heartbeat() == 0
            committed(member.commit("swap-plain", self.round * 10, partition=self.round % 3))
        with Member(broker, GROUP) as member:
            member.join()
            member.sync({member.member_id: ASSIGNMENT})
            for topic in ("swap-plain", "swap-cut", f"swap-turn-{self.round}"):
                committed(member.commit(topic, self.round))
            member.leave()


def quotas_and_credentials(client: RawClient) -> list[Any]:
    users = {"EntityType": "user", "MatchType": 2, "Match": None}
    quotas = client.call("DescribeClientQuotas", 1, Components=[users], Strict=False)
    return [quotas["Entries"], client.call("DescribeUserScramCredentials", 0, Users=None)["Results"]]


def wait_until_compacted(broker: Broker) -> None:
    """Wait until compaction has removed records of swap-compacted."""
    deadline = time.monotonic() + 30
    while True:
        read = read_records(broker, {COMPACTED: 1})[f"{COMPACTED}-0"]
        offsets = [record[0] for record in read]
        if offsets[-1] - offsets[0] + 1 > len(offsets):
            return
        assert time.monotonic() < deadline, "never compacted"
        time.sleep(0.3)


def committed(answer: Any) -> None:
    assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == 0, answer


def accepted(answer: Any) -> Any:
    """Return the partition in a Produce response, after checking that it has no error."""
    one = answer["Responses"][0]["PartitionResponses"][0]
    assert one["ErrorCode"] == 0, answer
    return one


def delete_topic(client: RawClient, name: str) -> None:
    answer = client.call("DeleteTopics", 5, TopicNames=[name], TimeoutMs=10_000)
    assert answer["Responses"][0]["ErrorCode"] == 0, answer
    deadline = time.monotonic() + 10
    partitions = [{"PartitionIndex": 0, "Timestamp": -2}]
    while True:
        found = client.call("ListOffsets", 1, ReplicaId=-1, Topics=[{"Name": name, "Partitions": partitions}])
        if found["Topics"][0]["Partitions"][0]["ErrorCode"] == 3:
            return
        assert time.monotonic() < deadline, f"{name} is still there"
        time.sleep(0.05)


def now_ms() -> int:
    return int(time.time() * 1000)
