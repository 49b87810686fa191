"""Transaction and group coordinators whose partitions have leaders on other brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kwire.wire.messages.end_txn import EndTxnRequest
from kwire.wire.messages.find_coordinator import GROUP, TRANSACTION, FindCoordinatorRequest
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.node.test_cluster import CONTROLLER, SESSION_MS, VirtualCluster, broker

NAMES = {2: "two", 3: "three", 4: "four"}
INTERNAL = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
TOPIC, TIMEOUT_MS = "t", 60_000


class ClusterClients:
    """Clients of three brokers that find the coordinator or leader themselves."""

    def __init__(self) -> None:
        brokers = [broker(node_id, name) | INTERNAL for node_id, name in NAMES.items()]
        self.cluster = VirtualCluster(CONTROLLER, *brokers)
        self.cluster.events.advance(1_000)
        assert self.cluster.create(TOPIC, by="two", replicas=3).error_code == ErrorCode.NONE
        self.alive = set(NAMES)
        self.topic = TOPIC

    @property
    def image(self) -> Any:
        return self.cluster.nodes[min(self.alive)].node.image

    def request(self, node_id: int, version: int, request: Any, within_ms: int = 1_000) -> Any:
        return self.cluster.request(NAMES[node_id], version, request, within_ms=within_ms)

    def kill(self, node_id: int) -> None:
        self.cluster.nodes[node_id].die()
        self.alive.discard(node_id)

    def leader(self, index: int, topic: str | None = None) -> int:
        return int(self.image.topics[topic or self.topic].partitions[index].leader)

    def coordinator(self, kind: int, key: str) -> int:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        for _ in range(10):
            (found,) = self.request(min(self.alive), 4, request).coordinators
            if found.error_code == ErrorCode.NONE:
                assert (found.host, found.port) == (NAMES[found.node_id], 9092)
                return int(found.node_id)
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        raise AssertionError("nobody coordinates it")

    def name_coordinated_by(self, kind: int, node_id: int) -> str:
        """Return a group or transactional id that this broker coordinates."""
        return next(name for name in map("{}".format, range(50)) if self.coordinator(kind, name) == node_id)

    def produce(self, name: str, producer: Any, index: int, sequence: int, version: int) -> ErrorCode:
        records = build(
            [(0, None, b"v", [])],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        topic = TopicProduceData(
            name=self.topic, partition_data=[PartitionProduceData(index=index, records=memoryview(records))]
        )
        request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=5_000, topic_data=[topic])
        answer = self.request(self.leader(index), version, request)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def offset(self, index: int, isolation: int) -> int:
        partition = ListOffsetsPartition(partition_index=index, timestamp=-1)
        topic = ListOffsetsTopic(name=self.topic, partitions=[partition])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic])
        return int(self.request(self.leader(index), 5, request).topics[0].partitions[0].offset)

    def is_stable(self, index: int) -> bool:
        """Return whether a partition has no open transaction."""
        return self.offset(index, 1) == self.offset(index, 0)

    def offset_of(self, group: str) -> int:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
        (found,) = self.request(self.coordinator(GROUP, group), 8, request).groups
        assert found.error_code == ErrorCode.NONE
        return next((one.partitions[0].committed_offset for one in found.topics), -1)

    def init_producer(self, name: str) -> Any:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)
        for _ in range(10):
            answer = self.request(self.coordinator(TRANSACTION, name), 5, request)
            if answer.error_code == ErrorCode.NONE:
                return answer
            assert answer.error_code in (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.CONCURRENT_TRANSACTIONS,
            )
        raise AssertionError("there is no producer id")

    def end(self, name: str, producer: Any, *, version: int = 5, commit: bool = True) -> bool:
        """End a transaction and return whether the outcome is decided."""
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
        )
        for _ in range(3):
            answer = self.request(self.coordinator(TRANSACTION, name), version, request, within_ms=6_000)
            if answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                # The transaction is decided although its markers are not written yet.
                return answer.error_code in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
        return False


@pytest.fixture
def clients() -> ClusterClients:
    return ClusterClients()


def partitions_led_elsewhere(clients: ClusterClients, node_id: int) -> Iterator[int]:
    """Yield the partitions of topic t whose leader is a broker other than `node_id`."""
    return (index for index in range(2) if clients.leader(index) != node_id)


def test_internal_topics_are_replicated_and_every_broker_finds_coordinators(clients: ClusterClients) -> None:
    for kind, topic in ((GROUP, GROUP_METADATA_TOPIC), (TRANSACTION, TRANSACTION_STATE_TOPIC)):
        node_id = clients.coordinator(kind, "x")
        partitions = clients.image.topics[topic].partitions
        assert [len(partition.replicas) for partition in partitions] == [3, 3]
        for asked in NAMES:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["x"])
            assert clients.request(asked, 4, request).coordinators[0].node_id == node_id
    other = next(iter(set(NAMES) - {node_id}))
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=TIMEOUT_MS)  # type: ignore[assignment]
    assert clients.request(other, 5, request).error_code == ErrorCode.NOT_COORDINATOR


def test_too_few_brokers_for_an_internal_topic(caplog: pytest.LogCaptureFixture) -> None:
    cluster = VirtualCluster(CONTROLLER, broker(2, "two") | INTERNAL)
    cluster.events.advance(1_000)
    for _ in range(2):
        answer = cluster.request("two", 4, FindCoordinatorRequest(key_type=GROUP, coordinator_keys=["x"]))
        assert answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not cluster.nodes[2].node.image.topics
    assert caplog.text.count("Cannot create topic __consumer_offsets: INVALID_REPLICATION_FACTOR") == 1


@pytest.mark.parametrize("version", [11, 12], ids=["verified", "added"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_transaction_over_partitions_of_all_brokers(
    clients: ClusterClients, version: int, commit: bool
) -> None:
    producer = clients.init_producer("x")
    if version < 12:
        clients_request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 1])],
        )
        clients.request(clients.coordinator(TRANSACTION, "x"), 3, clients_request)
    for index in range(2):
        assert clients.produce("x", producer, index, 0, version) == ErrorCode.NONE
        assert not clients.is_stable(index)
    assert clients.end("x", producer, version=5 if version == 12 else 4, commit=commit)
    assert [clients.is_stable(index) for index in range(2)] == [True, True]
    assert [clients.offset(index, 0) for index in range(2)] == [2, 2]
    again = clients.init_producer("x")
    assert again.producer_epoch > producer.producer_epoch


def test_produce_outside_a_transaction_is_rejected_by_every_broker(clients: ClusterClients) -> None:
    producer = clients.init_producer("x")
    for index in range(2):
        assert clients.produce("x", producer, index, 0, 11) == ErrorCode.TRANSACTION_ABORTABLE
        assert clients.produce("x", producer, index, 0, 10) == ErrorCode.INVALID_TXN_STATE
        assert clients.offset(index, 0) == 0


def test_unreachable_coordinator_is_retried(clients: ClusterClients) -> None:
    producer = clients.init_producer("x")
    node_id = clients.coordinator(TRANSACTION, "x")
    index = next(partitions_led_elsewhere(clients, node_id))
    clients.kill(node_id)
    assert clients.produce("x", producer, index, 0, 12) == ErrorCode.NOT_ENOUGH_REPLICAS
    clients.cluster.events.advance(SESSION_MS + 2_000)
    assert clients.produce("x", producer, index, 0, 12) == ErrorCode.NONE
    assert clients.end("x", producer)
    assert clients.is_stable(index)


def test_new_coordinator_completes_a_decided_transaction(clients: ClusterClients) -> None:
    """First the leader of a partition without other replicas dies, then the coordinator."""
    clients.topic = "alone"
    assert clients.cluster.create("alone", by="two", replicas=1).error_code == ErrorCode.NONE
    producer = clients.init_producer("x")
    coordinator = clients.coordinator(TRANSACTION, "x")
    index = next(partitions_led_elsewhere(clients, coordinator))
    assert clients.produce("x", producer, index, 0, 12) == ErrorCode.NONE
    leader = clients.leader(index)
    clients.kill(leader)
    assert clients.end("x", producer)
    clients.kill(coordinator)
    clients.cluster.nodes[leader].start()
    clients.alive.add(leader)
    clients.cluster.events.advance(2 * SESSION_MS)
    assert clients.coordinator(TRANSACTION, "x") != coordinator
    assert (clients.is_stable(index), clients.offset(index, 0)) == (True, 2)
    assert clients.init_producer("x").producer_epoch > producer.producer_epoch


def test_marker_is_sent_to_the_new_leader_of_its_partition(clients: ClusterClients) -> None:
    producer = clients.init_producer("x")
    index = next(partitions_led_elsewhere(clients, clients.coordinator(TRANSACTION, "x")))
    assert clients.produce("x", producer, index, 0, 12) == ErrorCode.NONE
    leader = clients.leader(index)
    clients.kill(leader)
    assert clients.end("x", producer)
    clients.cluster.events.advance(SESSION_MS + 2_000)
    assert clients.leader(index) != leader
    assert clients.is_stable(index)
    assert clients.init_producer("x").producer_epoch > producer.producer_epoch


def test_transactional_offset_commit_with_coordinators_on_two_brokers(clients: ClusterClients) -> None:
    producer = clients.init_producer("x")
    coordinator = clients.coordinator(TRANSACTION, "x")
    clients.coordinator(GROUP, "g")
    leaders = {clients.leader(index, GROUP_METADATA_TOPIC) for index in range(2)}
    group = clients.name_coordinated_by(GROUP, next(iter(leaders - {coordinator} or leaders)))
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    home = clients.coordinator(GROUP, group)
    for asked in NAMES:
        answer = clients.request(asked, 5, request).topics[0].partitions[0].error_code
        assert answer == (ErrorCode.NONE if asked == home else ErrorCode.NOT_COORDINATOR)
    assert clients.offset_of(group) == -1
    assert clients.end("x", producer)
    assert clients.offset_of(group) == 7


def test_committed_offsets_survive_the_death_of_the_coordinator(clients: ClusterClients) -> None:
    group = "g"
    for offset in (5, 6):
        coordinator = clients.coordinator(GROUP, group)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
        request = OffsetCommitRequest(group_id=group, topics=[topic])
        answer = clients.request(coordinator, 8, request)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        if offset == 5:
            clients.kill(coordinator)
            clients.cluster.events.advance(SESSION_MS + 2_000)
            assert clients.coordinator(GROUP, group) != coordinator
        assert clients.offset_of(group) == offset
