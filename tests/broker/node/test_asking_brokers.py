"""What coordinators ask of other brokers: markers, and whether a partition is part of a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kwire.broker.node.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kwire.broker.node.transaction_markers import TransactionMarkerSender
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch, TransactionMarker
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kwire.wire.primitives import TopicPartition

A, B = ("t", 0), ("t", 1)
TIMEOUT_MS = 30_000
MOVED, UNREACHED = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION


class Bench:
    """One broker that asks others, and what it has asked: the test answers."""

    def __init__(self) -> None:
        self.host = VirtualHost(seed=1)
        self.host.peers = self  # which answers when the test does
        self.asked: list[tuple[Any, Any]] = []
        self.leaders: dict[TopicPartition, int] = {A: 2, B: 2}
        self.told: list[Any] = []
        self.markers = TransactionMarkerSender(
            self.host,
            address_of=self.address,
            leader_of=self.leaders.__getitem__,
            timeout_ms=lambda: TIMEOUT_MS,
        )
        self.verification = AddPartitionsToTxnManager(
            self.host, address_of=self.address, timeout_ms=lambda: TIMEOUT_MS
        )

    def address(self, broker_id: int) -> PeerAddress | None:
        return None if broker_id == 9 else PeerAddress(f"b{broker_id}", 9092)

    def send(self, to: PeerAddress, purpose: str, request: Any, **named: Any) -> None:
        assert named["deadline_ms"] == self.host.monotonic_ms() + TIMEOUT_MS
        self.asked.append((request, named["on_response"]))

    def mark(self, producer_id: int, *partitions: TopicPartition, to: int = 2) -> None:
        txn_marker = TransactionMarker("x", producer_id, 0, True, frozenset(partitions), 2)
        self.markers.send(to, partitions, txn_marker, 5, self.hear)

    def hear(self, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        self.told.append(dict(codes))

    def ask(self, name: str, partition: TopicPartition = A, *, epoch: int = 0, to: int = 2) -> None:
        self.verification.verify(
            to, name, ProducerIdAndEpoch(7, epoch), partition, adds=True, callback=self.told.append
        )

    def requests(self) -> list[Any]:
        self.host.run_pending()
        return [request for request, _ in self.asked]

    def answer(self, answer: Any) -> None:
        _, on_response = self.asked.pop(0)
        on_response(answer)
        self.host.run_pending()

    def written(self, codes: dict[int, dict[TopicPartition, int]]) -> None:
        self.answer(
            WriteTxnMarkersResponse(
                markers=[
                    WritableTxnMarkerResult(
                        producer_id=producer_id,
                        topics=[
                            WritableTxnMarkerTopicResult(
                                name=name,
                                partitions=[
                                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                                ],
                            )
                            for (name, index), code in of_producer.items()
                        ],
                    )
                    for producer_id, of_producer in codes.items()
                ]
            )
        )

    def verified(self, *codes: tuple[str, TopicPartition, int]) -> None:
        self.answer(
            AddPartitionsToTxnResponse(
                results_by_transaction=[
                    AddPartitionsToTxnResult(
                        transactional_id=name,
                        topic_results=[
                            AddPartitionsToTxnTopicResult(
                                name=topic,
                                results_by_partition=[
                                    AddPartitionsToTxnPartitionResult(
                                        partition_index=index, partition_error_code=code
                                    )
                                ],
                            )
                        ],
                    )
                    for name, (topic, index), code in codes
                ]
            )
        )


def test_markers_of_one_turn_go_together_and_later_ones_with_the_next_request() -> None:
    bench = Bench()
    bench.mark(1, A, B)
    bench.mark(2, A)
    (first,) = bench.requests()
    assert [(one.producer_id, one.topics[0].partition_indexes) for one in first.markers] == [
        (1, [0, 1]),
        (2, [0]),
    ]
    assert {(one.coordinator_epoch, one.transaction_version) for one in first.markers} == {(5, 2)}
    bench.mark(3, A)
    bench.mark(3, A, to=4)  # another broker is asked meanwhile
    assert len(bench.requests()) == 2
    bench.written({1: {A: 0, B: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, 2: {A: ErrorCode.UNSUPPORTED_VERSION}})
    # Whether a topic is gone, the coordinator knows better than a broker that may not have heard of it.
    assert bench.told == [{A: 0, B: MOVED}, {A: 0}]
    assert [one.producer_id for one in bench.requests()[-1].markers] == [3]


def test_markers_for_who_leads_no_more_are_given_up() -> None:
    bench = Bench()
    bench.mark(1, A, B)
    bench.requests()
    bench.mark(2, A)
    bench.leaders[A] = 3
    bench.markers.leaders_changed()
    assert bench.told == [{A: MOVED}, {A: MOVED}]
    bench.answer(PeerUnreachable("gone"))
    assert bench.told[2:] == [{B: UNREACHED}]
    assert not bench.requests()


def test_a_broker_that_is_not_registered_is_not_reached() -> None:
    bench = Bench()
    bench.mark(1, A, to=9)
    assert not bench.requests()
    assert bench.told == [{A: UNREACHED}]


def test_partitions_of_one_transaction_are_asked_about_together() -> None:
    bench = Bench()
    bench.ask("x", A)
    bench.ask("x", B)
    bench.ask("x", A)
    bench.ask("y", A)
    bench.ask("x", A, epoch=1)  # the same id again, for somebody else
    (first,) = bench.requests()
    assert [(one.transactional_id, one.topics[0].partitions) for one in first.transactions] == [
        ("x", [0, 1]),
        ("y", [0]),
    ]
    assert not any(one.verify_only for one in first.transactions)
    bench.verified(("x", A, 0), ("x", B, 48), ("y", A, 90))
    assert bench.told == [ErrorCode.NONE, 48, ErrorCode.NONE, 90]
    (second,) = bench.requests()
    assert [one.producer_epoch for one in second.transactions] == [1]
    bench.answer(AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert bench.told[4:] == [ErrorCode.INVALID_TXN_STATE]


def test_a_coordinator_that_is_not_reached() -> None:
    bench = Bench()
    bench.ask("x", A)
    bench.requests()
    bench.answer(PeerUnreachable("gone"))
    bench.ask("x", A, to=9)
    assert not bench.requests()
    assert bench.told == [UNREACHED, UNREACHED]
