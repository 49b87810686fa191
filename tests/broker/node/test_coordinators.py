"""Coordinators on brokers of one cluster: transactions and groups whose partitions are led elsewhere."""

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
from tests.broker.node.test_cluster import CONTROLLER, SESSION_MS, Cluster, broker

NAMES = {2: "two", 3: "three", 4: "four"}
INTERNAL = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
TOPIC, TIMEOUT_MS = "t", 60_000


class Clients:
    """Clients of three brokers, each of which asks whoever is the right one."""

    def __init__(self) -> None:
        brokers = [broker(node_id, name) | INTERNAL for node_id, name in NAMES.items()]
        self.cluster = Cluster(CONTROLLER, *brokers)
        self.cluster.events.advance(1_000)
        assert self.cluster.create(TOPIC, by="two", replicas=3).error_code == ErrorCode.NONE
        self.alive = set(NAMES)
        self.topic = TOPIC

    @property
    def image(self) -> Any:
        return self.cluster.nodes[min(self.alive)].node.image

    def ask(self, node_id: int, version: int, request: Any, within_ms: int = 1_000) -> Any:
        return self.cluster.ask(NAMES[node_id], version, request, within_ms=within_ms)

    def die(self, node_id: int) -> None:
        self.cluster.nodes[node_id].die()
        self.alive.discard(node_id)

    def leader(self, index: int, topic: str | None = None) -> int:
        return int(self.image.topics[topic or self.topic].partitions[index].leader)

    def coordinator(self, kind: int, key: str) -> int:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        for _ in range(10):
            (found,) = self.ask(min(self.alive), 4, request).coordinators
            if found.error_code == ErrorCode.NONE:
                assert (found.host, found.port) == (NAMES[found.node_id], 9092)
                return int(found.node_id)
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        raise AssertionError("nobody coordinates it")

    def name_at(self, kind: int, node_id: int) -> str:
        """A group or transactional id that this broker coordinates."""
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
        answer = self.ask(self.leader(index), version, request)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def offset(self, index: int, isolation: int) -> int:
        partition = ListOffsetsPartition(partition_index=index, timestamp=-1)
        topic = ListOffsetsTopic(name=self.topic, partitions=[partition])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic])
        return int(self.ask(self.leader(index), 5, request).topics[0].partitions[0].offset)

    def stable(self, index: int) -> bool:
        """Whether no transaction is open in a partition."""
        return self.offset(index, 1) == self.offset(index, 0)

    def offset_of(self, group: str) -> int:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
        (found,) = self.ask(self.coordinator(GROUP, group), 8, request).groups
        assert found.error_code == ErrorCode.NONE
        return next((one.partitions[0].committed_offset for one in found.topics), -1)

    def init(self, name: str) -> Any:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)
        for _ in range(10):
            answer = self.ask(self.coordinator(TRANSACTION, name), 5, request)
            if answer.error_code == ErrorCode.NONE:
                return answer
            assert answer.error_code in (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.CONCURRENT_TRANSACTIONS,
            )
        raise AssertionError("there is no producer id")

    def end(self, name: str, producer: Any, *, version: int = 5, commit: bool = True) -> bool:
        """End a transaction; whether that is decided."""
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
        )
        for _ in range(3):
            answer = self.ask(self.coordinator(TRANSACTION, name), version, request, within_ms=6_000)
            if answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                # What was slow to be replicated is decided, too: only its markers are not there yet.
                return answer.error_code in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
        return False


@pytest.fixture
def clients() -> Clients:
    return Clients()


def elsewhere(clients: Clients, node_id: int) -> Iterator[int]:
    """The partitions of the topic that other brokers lead."""
    return (index for index in range(2) if clients.leader(index) != node_id)


def test_internal_topics_have_their_replicas_and_are_found_by_each_broker(clients: Clients) -> None:
    for kind, topic in ((GROUP, GROUP_METADATA_TOPIC), (TRANSACTION, TRANSACTION_STATE_TOPIC)):
        node_id = clients.coordinator(kind, "x")
        partitions = clients.image.topics[topic].partitions
        assert [len(partition.replicas) for partition in partitions] == [3, 3]
        for asked in NAMES:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["x"])
            assert clients.ask(asked, 4, request).coordinators[0].node_id == node_id
    other = next(iter(set(NAMES) - {node_id}))
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=TIMEOUT_MS)
    assert clients.ask(other, 5, request).error_code == ErrorCode.NOT_COORDINATOR


def test_too_few_brokers_for_an_internal_topic(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(CONTROLLER, broker(2, "two") | INTERNAL)
    cluster.events.advance(1_000)
    for _ in range(2):
        answer = cluster.ask("two", 4, FindCoordinatorRequest(key_type=GROUP, coordinator_keys=["x"]))
        assert answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not cluster.nodes[2].node.image.topics
    assert caplog.text.count("Cannot create topic __consumer_offsets: INVALID_REPLICATION_FACTOR") == 1


@pytest.mark.parametrize("version", [11, 12], ids=["verified", "added"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_over_partitions_of_all_brokers(clients: Clients, version: int, commit: bool) -> None:
    producer = clients.init("x")
    if version < 12:
        clients_request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 1])],
        )
        clients.ask(clients.coordinator(TRANSACTION, "x"), 3, clients_request)
    for index in range(2):
        assert clients.produce("x", producer, index, 0, version) == ErrorCode.NONE
        assert not clients.stable(index)
    assert clients.end("x", producer, version=5 if version == 12 else 4, commit=commit)
    assert [clients.stable(index) for index in range(2)] == [True, True]
    assert [clients.offset(index, 0) for index in range(2)] == [2, 2]
    again = clients.init("x")
    assert again.producer_epoch > producer.producer_epoch


def test_what_is_in_no_transaction_is_refused_wherever_its_coordinator_is(clients: Clients) -> None:
    producer = clients.init("x")
    for index in range(2):
        assert clients.produce("x", producer, index, 0, 11) == ErrorCode.TRANSACTION_ABORTABLE
        assert clients.produce("x", producer, index, 0, 10) == ErrorCode.INVALID_TXN_STATE
        assert clients.offset(index, 0) == 0


def test_a_coordinator_that_is_not_reached_is_asked_again(clients: Clients) -> None:
    producer = clients.init("x")
    node_id = clients.coordinator(TRANSACTION, "x")
    index = next(elsewhere(clients, node_id))
    clients.die(node_id)
    assert clients.produce("x", producer, index, 0, 12) == ErrorCode.NOT_ENOUGH_REPLICAS
    clients.cluster.events.advance(SESSION_MS + 2_000)
    assert clients.produce("x", producer, index, 0, 12) == ErrorCode.NONE
    assert clients.end("x", producer)
    assert clients.stable(index)


def test_who_takes_over_ends_what_was_decided(clients: Clients) -> None:
    """The leader of a partition dies, which has no other replica, then the coordinator."""
    clients.topic = "alone"
    assert clients.cluster.create("alone", by="two", replicas=1).error_code == ErrorCode.NONE
    producer = clients.init("x")
    coordinator = clients.coordinator(TRANSACTION, "x")
    index = next(elsewhere(clients, coordinator))
    assert clients.produce("x", producer, index, 0, 12) == ErrorCode.NONE
    leader = clients.leader(index)
    clients.die(leader)
    assert clients.end("x", producer)
    clients.die(coordinator)
    clients.cluster.nodes[leader].start()
    clients.alive.add(leader)
    clients.cluster.events.advance(2 * SESSION_MS)
    assert clients.coordinator(TRANSACTION, "x") != coordinator
    assert (clients.stable(index), clients.offset(index, 0)) == (True, 2)
    assert clients.init("x").producer_epoch > producer.producer_epoch


def test_a_marker_finds_the_next_leader_of_its_partition(clients: Clients) -> None:
    producer = clients.init("x")
    index = next(elsewhere(clients, clients.coordinator(TRANSACTION, "x")))
    assert clients.produce("x", producer, index, 0, 12) == ErrorCode.NONE
    leader = clients.leader(index)
    clients.die(leader)
    assert clients.end("x", producer)
    clients.cluster.events.advance(SESSION_MS + 2_000)
    assert clients.leader(index) != leader
    assert clients.stable(index)
    assert clients.init("x").producer_epoch > producer.producer_epoch


def test_offsets_in_a_transaction_of_another_broker(clients: Clients) -> None:
    producer = clients.init("x")
    coordinator = clients.coordinator(TRANSACTION, "x")
    clients.coordinator(GROUP, "g")
    leaders = {clients.leader(index, GROUP_METADATA_TOPIC) for index in range(2)}
    group = clients.name_at(GROUP, next(iter(leaders - {coordinator} or leaders)))
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
        answer = clients.ask(asked, 5, request).topics[0].partitions[0].error_code
        assert answer == (ErrorCode.NONE if asked == home else ErrorCode.NOT_COORDINATOR)
    assert clients.offset_of(group) == -1
    assert clients.end("x", producer)
    assert clients.offset_of(group) == 7


def test_what_a_group_has_committed_is_there_after_its_coordinator_has_died(clients: Clients) -> None:
    group = "g"
    for offset in (5, 6):
        coordinator = clients.coordinator(GROUP, group)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
        request = OffsetCommitRequest(group_id=group, topics=[topic])
        answer = clients.ask(coordinator, 8, request)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        if offset == 5:
            clients.die(coordinator)
            clients.cluster.events.advance(SESSION_MS + 2_000)
            assert clients.coordinator(GROUP, group) != coordinator
        assert clients.offset_of(group) == offset
