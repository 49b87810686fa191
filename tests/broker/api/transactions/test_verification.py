"""Verification that a batch belongs to an open transaction. KIP-890."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kwire.broker.metadata.topic_names import TRANSACTION_STATE_TOPIC
from kwire.broker.storage.log.transaction_verification import Verifications
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_topics import DeleteTopicsRequest
from kwire.wire.messages.produce import ProduceRequest
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.node_harness import PRODUCE_VERSION, NodeHarness, produce_request


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


def test_a_transactional_batch_needs_a_coordinator(harness: NodeHarness) -> None:
    harness.create("a")
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    response = harness.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
    assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "COORDINATOR_NOT_AVAILABLE" in response.error_message
    assert harness.latest_offset("a").offset == 0


def test_an_old_producer_epoch_is_refused_before_verification(
    harness: NodeHarness,
) -> None:
    harness.create("a")
    topics = [WritableTxnMarkerTopic(name="a", partition_indexes=[0])]
    later = WritableTxnMarker(producer_id=1, producer_epoch=5, transaction_result=True, topics=topics)
    harness.call(1, WriteTxnMarkersRequest(markers=[later]))
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    response = harness.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
    assert response.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert harness.latest_offset("a").offset == 1


def test_batches_wait_for_the_verification_of_earlier_batches() -> None:
    """A producer sends three batches at once. The coordinator responds after the third."""
    verifications = Verifications()
    order: list[str] = []
    for name in ("first", "second", "third"):
        verifications.run_in_turn(1, partial(order.append, name))
        if name == "first":
            verifications.run_in_turn(2, partial(order.append, "of another"))
    assert order == ["first", "of another"]
    verifications.end_turn(1)
    assert order[2:] == ["second"]
    assert verifications.is_verifying(1)
    verifications.end_turn(1)
    verifications.end_turn(1)
    assert order[3:] == ["third"]
    assert not verifications.is_verifying(1)


def test_transactional_batches_are_appended_in_order(harness: NodeHarness) -> None:
    """The third batch finds the transaction open while the verification of the second is pending."""
    harness.create("a", TRANSACTION_STATE_TOPIC)
    callbacks: list[Callable[[ErrorCode], None]] = []
    harness.node.add_or_verify_partition = lambda *_, callback, **__: callbacks.append(callback)
    clients = [harness.connect() for _ in range(3)]

    def send(sequence: int) -> None:
        request = produce_request(
            "a", producer_id=1, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        request.transactional_id = "t"
        clients[sequence].send(11, request)

    send(0)
    send(1)
    callbacks.pop()(ErrorCode.NONE)
    send(2)
    while callbacks:
        callbacks.pop()(ErrorCode.NONE)
    harness.turn()
    for sequence, client in enumerate(clients):
        response = client.receive(11, ProduceRequest).responses[0].partition_responses[0]
        assert (response.error_code, response.base_offset) == (0, sequence)


def send_unverified_batch(
    harness: NodeHarness, version: int
) -> tuple[VirtualClient, Callable[[ErrorCode], None]]:
    """Send a transactional batch to a new topic; return the client and the verification callback."""
    harness.create("a", TRANSACTION_STATE_TOPIC)
    callbacks: list[Callable[[ErrorCode], None]] = []
    harness.node.add_or_verify_partition = lambda *_, callback, **__: callbacks.append(callback)
    client = harness.connect()
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    request.topic_data[0].topic_id = harness.node.image.topics["a"].topic_id
    client.send(version, request)
    return client, callbacks.pop()


def end_transaction(harness: NodeHarness) -> None:
    """Write an abort marker."""
    topics = [WritableTxnMarkerTopic(name="a", partition_indexes=[0])]
    marker = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=False, topics=topics)
    harness.call(1, WriteTxnMarkersRequest(markers=[marker]))


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_batch_is_refused_if_its_transaction_ends_during_verification(
    harness: NodeHarness, *, is_leader: bool
) -> None:
    """A former leader returns NOT_LEADER_OR_FOLLOWER, so that the producer retries at the new leader."""
    client, complete_verification = send_unverified_batch(harness, 11)
    end_transaction(harness)
    if not is_leader:
        image = harness.node.image.topics["a"].partitions[0]
        harness.node.led_partition("a", 0).become_follower(
            image._replace(leader=2, leader_epoch=image.leader_epoch + 1)
        )
    complete_verification(ErrorCode.NONE)
    harness.turn()
    response = client.receive(11, ProduceRequest).responses[0].partition_responses[0]
    assert response.error_code == (
        ErrorCode.INVALID_TXN_STATE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


@pytest.mark.parametrize("version", [11, 12, 13])
@pytest.mark.parametrize("topic_state", ["gone", "anew", "anew and ended"])
def test_a_batch_is_refused_if_its_topic_is_deleted_during_verification(
    harness: NodeHarness, version: int, topic_state: str
) -> None:
    """The coordinator has verified the deleted topic. It would not write a marker to the recreated topic."""
    client, complete_verification = send_unverified_batch(harness, version)
    harness.call(5, DeleteTopicsRequest(topic_names=["a"], timeout_ms=1_000))
    if topic_state != "gone":
        harness.create("a")
    if topic_state == "anew and ended":
        end_transaction(harness)
    complete_verification(ErrorCode.NONE)
    harness.turn()
    response = client.receive(version, ProduceRequest).responses[0].partition_responses[0]
    expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_state == "gone" else ErrorCode.UNKNOWN_TOPIC_ID
    assert (response.error_code, response.base_offset) == (expected, -1)
    if topic_state != "gone":
        log = harness.node.led_partition("a", 0).log
        assert log.last_stable_offset == log.log_end_offset


def test_many_verifications_completed_at_once_do_not_recurse() -> None:
    verifications = Verifications()
    order: list[int] = []

    def go(number: int) -> None:
        order.append(number)
        verifications.end_turn(1)

    verifications.run_in_turn(1, lambda: None)
    for number in range(3_000):
        verifications.run_in_turn(1, partial(go, number))
    verifications.end_turn(1)
    assert order == list(range(3_000))
    assert not verifications.is_verifying(1)


def test_a_failing_batch_does_not_block_later_batches() -> None:
    verifications = Verifications()
    order: list[str] = []

    def fail() -> None:
        verifications.end_turn(1)
        raise AssertionError("a fault of ours")

    def go() -> None:
        order.append("behind it")
        verifications.end_turn(1)

    verifications.run_in_turn(1, lambda: None)
    verifications.run_in_turn(1, fail)
    verifications.run_in_turn(1, go)
    with pytest.raises(AssertionError, match="a fault of ours"):
        verifications.end_turn(1)
    assert order == ["behind it"]
    assert not verifications.is_verifying(1)
