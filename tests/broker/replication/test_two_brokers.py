"""Two brokers on a network, leader and follower: their logs become identical.

The test plays both controllers: each broker has a cluster of its own, and gets the same topic.
"""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.replication.roles import Role
from kwire.broker.storage.log.log import AppendOrigin, Log
from kwire.broker.storage.log.producer_snapshot import encode_snapshot
from kwire.broker.storage.log.producer_state import MarkerContext
from kwire.testing.network import Network, NetworkFaults
from kwire.testing.virtual_host import EventQueue
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.batch import build
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import (
    BrokerEndpoint,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

TOPIC_ID = Uuid(bytes(15) + b"\7")
NOW_MS = 1_700_000_000_000
SETTLED_MS = 5_000


class BrokerPair:
    """Brokers 1 and 2."""

    def __init__(self, seed: int | None = None, partitions: int = 1) -> None:
        self.rng = random.Random(seed)
        faults = NetworkFaults() if seed is None else NetworkFaults(1, 20, slow=0.01, breaks=0.01)
        self.network = Network(EventQueue(), None if seed is None else self.rng, faults)
        self.nodes = {
            broker_id: VirtualNode(
                {
                    "node.id": str(broker_id),
                    "process.roles": "broker,controller",
                    "listeners": f"PLAINTEXT://b{broker_id}:9092,CONTROLLER://b{broker_id}:9093",
                    "controller.listener.names": "CONTROLLER",
                    "controller.quorum.voters": f"{broker_id}@b{broker_id}:9093",
                    "log.dirs": "/d",
                    "log.segment.bytes": "1048576",
                    "log.retention.ms": "-1",
                },
                network=self.network,
                seed=broker_id,
            )
            for broker_id in (1, 2)
        }
        self.leader = 1
        self.partitions = partitions
        self.values = count()
        self.write(
            *(
                RegisterBrokerRecord(
                    broker_id=broker_id,
                    broker_epoch=self.nodes[broker_id].node.lifecycle.broker_epoch,
                    fenced=False,
                    end_points=[BrokerEndpoint(name="PLAINTEXT", host=f"b{broker_id}", port=9092)],
                )
                for broker_id in (1, 2)
            ),
            TopicRecord(name="t", topic_id=TOPIC_ID),
            *(
                PartitionRecord(
                    partition_id=index,
                    topic_id=TOPIC_ID,
                    replicas=[1, 2],
                    isr=[1, 2],
                    leader=1,
                    leader_epoch=0,
                )
                for index in range(partitions)
            ),
        )

    def write(self, *records: Any) -> None:
        """Apply the records on both brokers."""
        for broker in self.nodes.values():
            publisher = broker.node.metadata.publisher
            delta = MetadataDelta(publisher.image)
            delta.replay_all(records)
            publisher.image = delta.apply(publisher.image.offset + len(records), 1)
            broker.node.replica_manager.apply_delta(delta)
            broker.turn()

    def set_leader(self, broker_id: int, *indexes: int) -> None:
        """Make a broker the leader."""
        self.leader = broker_id
        self.write(
            *(
                PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, leader=broker_id, isr=[1, 2])
                for index in indexes or range(self.partitions)
            )
        )

    def log(self, broker_id: int, index: int = 0) -> Log:
        found = self.nodes[broker_id].node.partition("t", index)
        assert found is not None
        return found.log

    def produce(self, *, index: int = 0, to: int | None = None, **batch: Any) -> None:
        """Append a batch without waiting for the response."""
        number = self.rng.randint(1, 3)
        records = build([(NOW_MS, None, b"%d" % next(self.values), []) for _ in range(number)], **batch)
        data = PartitionProduceData(index=index, records=memoryview(records))
        topic = TopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
        self.nodes[to or self.leader].connect().send(12, request)

    def transact(self, *values: bytes, kind: int | None = None, producer_id: int = 7, **batch: Any) -> None:
        """Append records of a transaction, or with `kind` its end marker."""
        broker = self.nodes[self.leader]
        key = None if kind is None else b"\0\0" + kind.to_bytes(2, "big")
        built = build(
            [(NOW_MS, key, value, []) for value in values],
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
            control=kind is not None,
            **batch,
        )
        broker.node.led_partition("t", 0).append(
            memoryview(built),
            now_ms=NOW_MS,
            on_written=lambda error: None,
            origin=AppendOrigin.COORDINATOR,
            marker=None if kind is None else MarkerContext(0, 1),
        )
        broker.turn()

    def settle(self) -> None:
        """Let the replicas converge without faults."""
        self.network.faults = NetworkFaults()
        self.network.heal()
        self.network.events.advance(SETTLED_MS)

    def files(self, broker_id: int, index: int = 0) -> dict[str, bytes]:
        """Return the contents of one replica's files, as a clean shutdown leaves them."""
        log = self.log(broker_id, index)
        log.roll(NOW_MS)
        disk = self.nodes[broker_id].disk
        kept = (".log", ".index", ".timeindex", ".txnindex", "leader-epoch-checkpoint")
        names = [name for name in disk.names(log.directory) if name.endswith(kept)]
        return {name: content for name in names if (content := disk.read(f"{log.directory}/{name}"))}

    def check_identical(self) -> None:
        for index in range(self.partitions):
            one, other = self.log(1, index), self.log(2, index)
            for name in ("log_start_offset", "log_end_offset", "high_watermark", "last_stable_offset"):
                assert getattr(one, name) == getattr(other, name), name
            assert one.high_watermark == one.log_end_offset
            assert epochs(one) == epochs(other)
            assert self.files(1, index) == self.files(2, index)


def epochs(log: Log) -> list[tuple[int, int]]:
    """Return the leader epochs that have records, each with its start offset."""
    return [(epoch, offset) for epoch, offset in log.leader_epochs if offset < log.log_end_offset]


def test_follower_becomes_identical_to_its_leader_and_then_leads() -> None:
    pair = BrokerPair(partitions=3)
    for index in (0, 1, 2, 0):
        pair.produce(index=index)
    pair.settle()
    pair.check_identical()
    assert pair.nodes[2].node.replica_manager.role("t", 0) is Role.FOLLOWER
    pair.set_leader(2)
    for index in (0, 2, 2):
        pair.produce(index=index)
    pair.settle()
    pair.check_identical()
    assert pair.log(1).leader_epochs[-1][0] == 1


def test_follower_has_the_producer_state_of_its_leader() -> None:
    pair = BrokerPair()
    for sequence, kind in enumerate((0, 1, 0)):
        pair.transact(b"a", b"b", base_sequence=sequence * 2)
        pair.transact(bytes(6), kind=kind)
    pair.settle()
    pair.transact(b"c", producer_id=9, base_sequence=0)
    pair.settle()
    leader, follower = pair.log(1), pair.log(2)
    assert leader.last_stable_offset == follower.last_stable_offset == 9
    assert leader.high_watermark == follower.high_watermark == 10
    assert encode_snapshot(leader.producers.producers) == encode_snapshot(follower.producers.producers)
    pair.transact(bytes(6), kind=1, producer_id=9)
    pair.settle()
    pair.check_identical()
    assert any(name.endswith(".txnindex") for name in pair.files(2))


def test_delete_records_applies_to_the_follower() -> None:
    pair = BrokerPair()
    for _ in range(5):
        pair.produce()
    pair.settle()
    delete = DeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsTopic(name="t", partitions=[delete])
    pair.nodes[1].connect().send(2, DeleteRecordsRequest(topics=[topic], timeout_ms=1000))
    pair.settle()
    assert pair.log(2).log_start_offset == 3
    pair.check_identical()


def test_delayed_fetch_completes_within_a_round_trip_of_the_append() -> None:
    pair = BrokerPair()
    pair.settle()
    pair.produce()
    pair.network.events.advance(4)
    assert pair.log(2).log_end_offset == pair.log(1).log_end_offset
    assert pair.log(1).high_watermark == pair.log(1).log_end_offset


@pytest.mark.parametrize("seed", range(25))
def test_replicas_converge_after_random_faults_and_elections(seed: int) -> None:
    pair = BrokerPair(seed)
    rng = pair.rng
    for _ in range(60):
        match rng.randrange(10):
            case 0:
                pair.set_leader(3 - pair.leader)
            case 1:
                pair.network.cut("node 1", "node 2", both_ways=rng.random() < 0.5)
            case 2:
                pair.network.heal()
            case 3:
                pair.network.break_some(0.5)
            case 4:
                pair.network.events.advance(rng.randrange(2_000))
            case _:
                pair.produce()
        pair.network.events.advance(rng.randrange(50))
    pair.settle()
    pair.settle()
    pair.check_identical()
