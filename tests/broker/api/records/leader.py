"""A leader, broker 1, and the fetches of its follower, broker 2."""

from __future__ import annotations

from typing import Any

from kwire.broker.metadata.image import BrokerImage, EndpointImage, PartitionImage
from kwire.broker.replication.partition import Partition
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from kwire.wire.primitives import ZERO_UUID
from tests.node_harness import NodeHarness, produce_request

VERSION = 18
NONE = ErrorCode.NONE
BATCH_BYTES = 73
"""The size of a batch that `NodeHarness.produce` sends."""


class Leader(NodeHarness):
    """Broker 1, the leader of partitions of topic a. Broker 2 is the follower."""

    def __init__(self, partitions: int = 1, **settings: str) -> None:
        super().__init__(None, **settings)
        self.create("a", partitions=partitions)
        self.become_leader_of(*range(partitions))
        self.topic_id = self.node.image.topics["a"].topic_id
        endpoints = {"PLAINTEXT": EndpointImage("PLAINTEXT", "two", 9092)}
        brokers = dict(self.node.image.brokers)
        brokers[2] = BrokerImage(2, 20, ZERO_UUID, endpoints, {}, fenced=False, rack="two")
        self.node.image.brokers = brokers
        self.follower = self.connect()

    def become_leader_of(self, *indexes: int, isr: tuple[int, ...] = (1, 2), epoch: int = 1) -> None:
        image = PartitionImage(replicas=(1, 2), isr=isr, leader=1, leader_epoch=epoch, partition_epoch=epoch)
        for index in indexes:
            self.partition(index).become_leader(image)

    def partition(self, index: int = 0) -> Partition:
        found = self.node.partition("a", index)
        assert found is not None
        return found

    def append(self, index: int = 0) -> None:
        self.call(12, produce_request("a", index, acks=1))

    def fetch(self, offsets: dict[int, int] | None = None, *, replica: int = 2, **fields: Any) -> Any:
        """Fetch, and return the response, or None while the fetch waits."""
        request = follower_request(self, offsets or {}, replica=replica, **fields)
        self.follower.send(VERSION, request)
        return self.received()

    def received(self) -> Any:
        return self.follower.receive(VERSION, FetchRequest)


def follower_request(
    harness: Leader,
    offsets: dict[int, int],
    *,
    replica: int = 2,
    epoch: int = 20,
    partition: dict[str, Any] | None = None,
    forget: tuple[int, ...] = (),
    **fields: Any,
) -> FetchRequest:
    partitions = [
        FetchPartition(
            partition=index,
            fetch_offset=offset,
            **{
                "partition_max_bytes": 1 << 20,
                "current_leader_epoch": 1,
                "log_start_offset": 0,
                **(partition or {}),
            },
        )
        for index, offset in offsets.items()
    ]
    return FetchRequest(
        **{"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **fields},
        replica_state=ReplicaState(replica_id=replica, replica_epoch=epoch),
        topics=[FetchTopic(topic_id=harness.topic_id, partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic_id=harness.topic_id, partitions=list(forget))]
        if forget
        else [],
    )


def parts(response: Any) -> list[Any]:
    return [one for topic in response.responses for one in topic.partitions]


def sizes(response: Any) -> dict[int, int]:
    return {one.partition_index: len(one.records or b"") for one in parts(response)}
