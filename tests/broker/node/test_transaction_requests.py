"""Requests of coordinators to other brokers: transaction markers and verification of partitions."""

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
MOVED, UNREACHABLE = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION


class RequestHarness:
    """One broker that sends requests; the test gives the responses."""

    def __init__(self) -> None:
        self.host = VirtualHost(seed=1)
        self.host.peers = self  # type: ignore[assignment]  # the test responds
        self.pending: list[tuple[Any, Any]] = []
        self.leaders: dict[TopicPartition, int] = {A: 2, B: 2}
        self.results: list[Any] = []
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
        self.pending.append((request, named["on_response"]))

    def send_marker(self, producer_id: int, *partitions: TopicPartition, to: int = 2) -> None:
        txn_marker = TransactionMarker("x", producer_id, 0, True, frozenset(partitions), 2)
        self.markers.send(to, partitions, txn_marker, 5, self.record)

    def record(self, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        self.results.append(dict(codes))

    def verify(self, name: str, partition: TopicPartition = A, *, epoch: int = 0, to: int = 2) -> None:
        self.verification.verify(
            to, name, ProducerIdAndEpoch(7, epoch), partition, adds=True, callback=self.results.append
        )

    def requests(self) -> list[Any]:
        self.host.run_pending()
        return [request for request, _ in self.pending]

    def respond(self, response: Any) -> None:
        _, on_response = self.pending.pop(0)
        on_response(response)
        self.host.run_pending()

    def respond_markers(self, codes: dict[int, dict[TopicPartition, int]]) -> None:
        self.respond(
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

    def respond_verification(self, *codes: tuple[str, TopicPartition, int]) -> None:
        self.respond(
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


def test_markers_of_one_turn_share_a_request_and_later_ones_wait() -> None:
    harness = RequestHarness()
    harness.send_marker(1, A, B)
    harness.send_marker(2, A)
    (first,) = harness.requests()
    assert [(one.producer_id, one.topics[0].partition_indexes) for one in first.markers] == [
        (1, [0, 1]),
        (2, [0]),
    ]
    assert {(one.coordinator_epoch, one.transaction_version) for one in first.markers} == {(5, 2)}
    harness.send_marker(3, A)
    harness.send_marker(3, A, to=4)  # another broker has its own request
    assert len(harness.requests()) == 2
    harness.respond_markers(
        {1: {A: 0, B: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, 2: {A: ErrorCode.UNSUPPORTED_VERSION}}
    )
    # The target's metadata may be behind, so the coordinator looks up the leader again.
    assert harness.results == [{A: 0, B: MOVED}, {A: 0}]
    assert [one.producer_id for one in harness.requests()[-1].markers] == [3]


def test_markers_to_a_former_leader_fail() -> None:
    harness = RequestHarness()
    harness.send_marker(1, A, B)
    harness.requests()
    harness.send_marker(2, A)
    harness.leaders[A] = 3
    harness.markers.leaders_changed()
    assert harness.results == [{A: MOVED}, {A: MOVED}]
    harness.respond(PeerUnreachable("gone"))
    assert harness.results[2:] == [{B: UNREACHABLE}]
    assert not harness.requests()


def test_marker_to_an_unregistered_broker_fails() -> None:
    harness = RequestHarness()
    harness.send_marker(1, A, to=9)
    assert not harness.requests()
    assert harness.results == [{A: UNREACHABLE}]


def test_verifications_of_one_transaction_share_a_request() -> None:
    harness = RequestHarness()
    harness.verify("x", A)
    harness.verify("x", B)
    harness.verify("x", A)
    harness.verify("y", A)
    harness.verify("x", A, epoch=1)  # another producer epoch
    (first,) = harness.requests()
    assert [(one.transactional_id, one.topics[0].partitions) for one in first.transactions] == [
        ("x", [0, 1]),
        ("y", [0]),
    ]
    assert not any(one.verify_only for one in first.transactions)
    harness.respond_verification(("x", A, 0), ("x", B, 48), ("y", A, 90))
    assert harness.results == [ErrorCode.NONE, 48, ErrorCode.NONE, 90]
    (second,) = harness.requests()
    assert [one.producer_epoch for one in second.transactions] == [1]
    harness.respond(AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert harness.results[4:] == [ErrorCode.INVALID_TXN_STATE]


def test_verification_by_an_unreachable_coordinator_fails() -> None:
    harness = RequestHarness()
    harness.verify("x", A)
    harness.requests()
    harness.respond(PeerUnreachable("gone"))
    harness.verify("x", A, to=9)
    assert not harness.requests()
    assert harness.results == [UNREACHABLE, UNREACHABLE]
