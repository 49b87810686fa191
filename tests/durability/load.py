"""Clients that record what was acknowledged: producers, a committing consumer, a topic administrator.

The outcome of a request without a response is uncertain when the broker dies. The content of a record follows
from its key, so every record can be checked at any offset.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kwire.wire.batch import NewRecord, build
from kwire.wire.compression import Codec
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kwire.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import Uuid
from tests.durability.child import Connection, Failed

PRODUCE_VERSION = 9
IN_FLIGHT = 5
"""The number of batches per producer and partition that the broker remembers."""

PartitionId = tuple[str, int]
"""Topic and partition index."""

TOPIC_RESOURCE = 2
SET = 0


class Written(NamedTuple):
    """A producer and the number of its record."""

    producer: str
    number: int


def new_record(name: str, partition: PartitionId, number: int, start_ms: int) -> NewRecord:
    """Build the record of this number; it depends only on its arguments."""
    key = f"{name}/{partition[0]}-{partition[1]}/{number}".encode()
    digest = hashlib.blake2b(key).digest()
    value = None if digest[0] == 0 else (digest * 4)[: digest[0]]
    headers = [("digest", digest[:8]), ("nothing", None)] if digest[1] < 64 else []
    return start_ms + 3 * number + digest[2] % 50, key, value, headers


def read_key(key: bytes | None, partition: PartitionId) -> Written:
    """Parse a record key, or raise Failed for a key of another partition or origin."""
    name, where, number = (key or b"").decode("utf-8", "replace").rsplit("/", 2)
    if where != f"{partition[0]}-{partition[1]}":
        raise Failed(f"{partition} holds a record with key {key!r}")
    return Written(name, int(number))


@dataclass
class Batch:
    """Records of one producer for one partition, with their acknowledged offset."""

    partition: PartitionId
    first: int
    count: int
    data: bytes
    acked_at: int | None = None


class Producer:
    """A producer that numbers its records per partition."""

    acks = 1

    def __init__(self, name: str, partitions: list[PartitionId], rng: random.Random, start_ms: int) -> None:
        self.name = name
        self.partitions = partitions
        self.rng = rng
        self.start_ms = start_ms
        self.numbers = dict.fromkeys(partitions, 0)
        self.acked: list[Batch] = []
        """Acknowledged batches that were not collected yet."""
        self.acks_counted = 0
        self.connection: Connection | None = None

    def begin(self, connection: Connection) -> None:
        """Start to use a restarted broker."""
        self.connection = connection

    def send_more(self) -> None:
        """Send as many requests as may be in flight."""
        assert self.connection is not None
        while len(self.connection.waiting) < IN_FLIGHT:
            self.send(self.new_batches())

    def broker_killed(self) -> None:
        """Drop the connection; requests without a response stay uncertain."""
        self.connection = None

    def new_batches(self) -> list[Batch]:
        chosen = self.rng.sample(self.partitions, self.rng.randint(1, min(3, len(self.partitions))))
        return [self.new_batch(partition) for partition in sorted(chosen)]

    def new_batch(self, partition: PartitionId) -> Batch:
        count = self.rng.randint(1, 8)
        first = self.numbers[partition]
        self.numbers[partition] += count
        return Batch(partition, first, count, self.built(partition, first, count))

    def built(self, partition: PartitionId, first: int, count: int) -> bytes:
        return bytes(
            build(self.new_records(partition, first, count), codec=self.rng.choice((Codec.NONE, *Codec)))
        )

    def new_records(self, partition: PartitionId, first: int, count: int) -> Iterator[NewRecord]:
        for number in range(first, first + count):
            yield new_record(self.name, partition, number, self.start_ms)

    def send(self, batches: list[Batch]) -> None:
        assert self.connection is not None
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            topic, index = batch.partition
            data = topics.setdefault(topic, TopicProduceData(name=topic, partition_data=[]))
            data.partition_data.append(PartitionProduceData(index=index, records=memoryview(batch.data)))
        request = ProduceRequest(acks=self.acks, timeout_ms=30_000, topic_data=list(topics.values()))
        self.connection.send(
            PRODUCE_VERSION, request, lambda response: self.handle_response(batches, response)
        )

    def handle_response(self, batches: list[Batch], response: Any) -> None:
        answers = {
            (topic.name, answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }
        if answers.keys() != {batch.partition for batch in batches}:
            raise Failed(f"{self.name} asked for other partitions than {sorted(answers)}")
        for batch in batches:
            answer = answers[batch.partition]
            if answer.error_code:
                raise Failed(f"{self.name}, {batch.partition}: {ErrorCode(answer.error_code).name}")
            if batch.acked_at not in (None, answer.base_offset):
                raise Failed(f"{self.name}: {batch.partition} {batch.acked_at} is now {answer.base_offset}")
            if batch.acked_at is None:
                batch.acked_at = answer.base_offset
                self.acked.append(batch)
        self.acks_counted += 1


class AcksAllProducer(Producer):
    """A producer with acks=all."""

    acks = -1


class IdempotentProducer(AcksAllProducer):
    """A producer that resends batches without a response, and some with one, as if the response was lost."""

    def __init__(self, name: str, partitions: list[PartitionId], rng: random.Random, start_ms: int) -> None:
        super().__init__(name, partitions, rng, start_ms)
        self.producer_id = -1
        self.epoch = 0
        self.sequences = dict.fromkeys(partitions, 0)
        self.unanswered: deque[list[Batch]] = deque()
        self.answered_last: deque[list[Batch]] = deque(maxlen=IN_FLIGHT)
        self.sent_again = 0

    def begin(self, connection: Connection) -> None:
        super().begin(connection)
        if not self.unanswered and self.rng.random() < 0.3:
            # KIP-360: a restarted producer raises its own epoch.
            self.epoch += 1
            self.sequences = dict.fromkeys(self.partitions, 0)
            self.answered_last.clear()
        while self.answered_last and len(self.unanswered) < IN_FLIGHT and self.rng.random() < 0.6:
            self.unanswered.appendleft(self.answered_last.pop())
        self.answered_last.clear()
        for batches in self.unanswered:
            self.sent_again += 1
            super().send(batches)

    def send(self, batches: list[Batch]) -> None:
        self.unanswered.append(batches)
        super().send(batches)

    def handle_response(self, batches: list[Batch], response: Any) -> None:
        super().handle_response(batches, response)
        first = self.unanswered.popleft()
        assert first is batches
        self.answered_last.append(batches)

    def built(self, partition: PartitionId, first: int, count: int) -> bytes:
        sequence = self.sequences[partition]
        self.sequences[partition] += count
        return bytes(
            build(
                self.new_records(partition, first, count),
                codec=self.rng.choice((Codec.NONE, Codec.LZ4)),
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
            )
        )


class Committer:
    """A consumer that commits increasing offsets, one request at a time."""

    def __init__(self, group: str, partitions: list[PartitionId], rng: random.Random) -> None:
        self.group = group
        self.partitions = partitions
        self.rng = rng
        self.acked: dict[PartitionId, int] = {}
        self.pending: dict[PartitionId, int] = {}
        self.connection: Connection | None = None
        self._next = 0

    def begin(self, connection: Connection) -> None:
        self.connection = connection

    def broker_killed(self) -> None:
        self.connection = None

    def send_more(self) -> None:
        assert self.connection is not None
        if self.connection.waiting:
            return
        offsets = {}
        for partition in sorted(self.rng.sample(self.partitions, 2)):
            self._next += 1
            offsets[partition] = self._next
        self.pending = offsets
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=f"number {offset}"
                    )
                ],
            )
            for (topic, index), offset in offsets.items()
        ]
        request = OffsetCommitRequest(group_id=self.group, topics=topics)
        self.connection.send(7, request, self.handle_response)

    def handle_response(self, response: Any) -> None:
        for topic in response.topics:
            for answer in topic.partitions:
                if answer.error_code:
                    raise Failed(f"{self.group}: {ErrorCode(answer.error_code).name}")
        self.acked.update(self.pending)
        self.pending = {}

    def check(self, partition: PartitionId, offset: int, metadata: str | None) -> None:
        """Check the committed offset after a restart, or raise Failed."""
        known = self.acked.get(partition, -1)
        if offset not in (known, self.pending.get(partition, known)):
            raise Failed(f"{self.group} committed {known} for {partition}, and is told {offset}")
        if offset >= 0:
            if metadata != f"number {offset}":
                raise Failed(f"{self.group}: offset {offset} has metadata {metadata!r}")
            self.acked[partition] = offset


@dataclass
class TopicState:
    """The partitions and retention of a topic."""

    retention_ms: int
    partitions: int
    topic_id: Uuid | None = None


@dataclass
class TopicAdmin:
    """A client that creates, alters and deletes topics, one request at a time."""

    rng: random.Random
    made: dict[str, TopicState] = field(default_factory=dict)
    pending_topic: str = ""
    """The topic of the pending request."""
    pending_state: TopicState | None = None
    """The state of that topic after the request; None for a deletion."""
    connection: Connection | None = None
    counted: int = 0

    MOST = 6

    def begin(self, connection: Connection) -> None:
        self.connection = connection

    def broker_killed(self) -> None:
        self.connection = None

    def send_more(self) -> None:
        assert self.connection is not None
        if self.connection.waiting:
            return
        self.counted += 1
        if len(self.made) >= self.MOST:
            self.mark_pending(self.rng.choice(list(self.made)), None)
            states = [DeleteTopicState(name=self.pending_topic)]
            self.connection.send(
                6,
                DeleteTopicsRequest(topics=states, timeout_ms=30_000),
                self.response_handler(lambda r: r.responses),
            )
        elif self.made and self.rng.random() < 0.6:
            name = self.rng.choice(list(self.made))
            before = self.made[name]
            self.mark_pending(name, TopicState(3_600_000 + self.counted, before.partitions, before.topic_id))
            self.connection.send(1, self.alteration(), self.response_handler(lambda r: r.responses))
        else:
            self.mark_pending(
                f"made-{self.counted}", TopicState(7_200_000 + self.counted, self.rng.randint(1, 3))
            )
            self.connection.send(7, self.creation(), self.response_handler(lambda r: r.topics))

    def mark_pending(self, name: str, expected_state: TopicState | None) -> None:
        self.pending_topic, self.pending_state = name, expected_state

    def creation(self) -> CreateTopicsRequest:
        assert self.pending_state is not None
        return CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=self.pending_topic,
                    num_partitions=self.pending_state.partitions,
                    replication_factor=1,
                    configs=[
                        CreatableTopicConfig(name="retention.ms", value=str(self.pending_state.retention_ms))
                    ],
                )
            ]
        )

    def alteration(self) -> IncrementalAlterConfigsRequest:
        assert self.pending_state is not None
        config = AlterableConfig(
            name="retention.ms", config_operation=SET, value=str(self.pending_state.retention_ms)
        )
        resource = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=self.pending_topic, configs=[config]
        )
        return IncrementalAlterConfigsRequest(resources=[resource])

    def response_handler(self, results: Callable[[Any], list[Any]]) -> Callable[[Any], None]:
        def handle_response(response: Any) -> None:
            (result,) = results(response)
            if result.error_code:
                raise Failed(
                    f"{self.pending_topic}: {ErrorCode(result.error_code).name} {result.error_message}"
                )
            if self.pending_state is None:
                del self.made[self.pending_topic]
            else:
                if self.pending_state.topic_id is None:
                    self.pending_state.topic_id = result.topic_id
                self.made[self.pending_topic] = self.pending_state
            self.pending_topic = ""

        return handle_response

    def check(self, known: dict[str, TopicState]) -> None:
        """Check the topics after a restart, or raise Failed if an acknowledged change is missing."""
        for name in {*known, *self.made, self.pending_topic} - {""}:
            there, expected = known.get(name), self.made.get(name)
            if there != expected and (name != self.pending_topic or not same(there, self.pending_state)):
                raise Failed(f"{name} should be {expected}, pending {self.pending_state}, and is {there}")
        self.made = known
        self.pending_topic = ""


def same(there: TopicState | None, expected_state: TopicState | None) -> bool:
    """Return whether a topic has the expected state; an unknown topic id matches any."""
    if there is None or expected_state is None:
        return there is expected_state
    return (there.retention_ms, there.partitions) == (
        expected_state.retention_ms,
        expected_state.partitions,
    ) and (expected_state.topic_id in (None, there.topic_id))
