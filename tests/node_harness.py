"""One broker in memory: a `VirtualNode` with two log directories and common requests."""

from __future__ import annotations

from typing import Any

from kwire.broker.metadata.image import BrokerImage, EndpointImage, PartitionImage, TopicImage
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.batch import build
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import ZERO_UUID, Uuid

PRODUCE_VERSION, FETCH_VERSION = 12, 12


class NodeHarness(VirtualNode):
    """A node with two log directories that may fail."""

    disk: MemoryDisk

    def __init__(self, disk: MemoryDisk | None = None, **settings: str) -> None:
        super().__init__(
            {"log.dirs": "/d1,/d2", "log.segment.bytes": "1048576", **settings}, disk=disk or MemoryDisk()
        )

    def create(self, *names: str, partitions: int = 1) -> None:
        topics = [
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
        ]
        answer = self.call(7, CreateTopicsRequest(topics=topics, timeout_ms=1000))
        assert [topic.error_code for topic in answer.topics] == [0] * len(names)

    def add_broker(self, broker_id: int, *, listener: str = "PLAINTEXT", fenced: bool = False) -> None:
        """Add an invented broker to the metadata."""
        endpoints = {listener: EndpointImage(listener, f"b{broker_id}", 9092)}
        made_up = BrokerImage(broker_id, 0, ZERO_UUID, endpoints, {}, rack=f"r{broker_id}", fenced=fenced)
        image = self.node.image
        image.brokers = {**image.brokers, broker_id: made_up}

    def add_topic(self, name: str, *partitions: PartitionImage) -> Uuid:
        """Add an invented topic to the metadata, without replicas on this broker."""
        topic = TopicImage(name, Uuid(name.encode().ljust(16)), partitions)
        image = self.node.image
        image.topics = {**image.topics, name: topic}
        image.topics_by_id = {**image.topics_by_id, topic.topic_id: topic}
        return topic.topic_id

    def directory_of(self, topic: str, index: int = 0) -> str:
        log = self.node.log_manager.get(topic, index)
        assert log is not None
        return log.directory

    def produce(self, topic: str, index: int = 0) -> Any:
        answer = self.call(PRODUCE_VERSION, produce_request(topic, index))
        return None if answer is None else answer.responses[0].partition_responses[0]

    def latest_offset(self, topic: str) -> Any:
        partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
        )
        return self.call(5, request).topics[0].partitions[0]


def produce_request(topic: str, index: int = 0, *, acks: int = -1, **batch: Any) -> ProduceRequest:
    records = memoryview(build([(1_700_000_000_000, None, b"value", [])], **batch))
    data = PartitionProduceData(index=index, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch_request(topic: str) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
