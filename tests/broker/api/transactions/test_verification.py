"""Whether a batch may be written in a transaction. KIP-890."""

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


def test_a_batch_of_a_transaction_is_refused_while_nobody_can_end_it(harness: NodeHarness) -> None:
    harness.create("a")
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    answer = harness.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "COORDINATOR_NOT_AVAILABLE" in answer.error_message
    assert harness.latest_offset("a").offset == 0


def test_an_epoch_that_is_over_is_refused_by_its_name_though_nobody_can_end_its_transaction(
    harness: NodeHarness,
) -> None:
    harness.create("a")
    topics = [WritableTxnMarkerTopic(name="a", partition_indexes=[0])]
    later = WritableTxnMarker(producer_id=1, producer_epoch=5, transaction_result=True, topics=topics)
    harness.call(1, WriteTxnMarkersRequest(markers=[later]))
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    answer = harness.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert harness.latest_offset("a").offset == 1


def test_no_batch_overtakes_one_that_is_being_verified() -> None:
    """A producer sends three at once. The coordinator's answers to the first two come after the third."""
    verifications = Verifications()
    went: list[str] = []
    for name in ("first", "second", "third"):
        verifications.run_in_turn(1, partial(went.append, name))
        if name == "first":
            verifications.run_in_turn(2, partial(went.append, "of another"))
    assert went == ["first", "of another"]
    verifications.end_turn(1)
    assert went[2:] == ["second"]
    assert verifications.is_verifying(1)
    verifications.end_turn(1)
    verifications.end_turn(1)
    assert went[3:] == ["third"]
    assert not verifications.is_verifying(1)


def test_batches_of_a_transaction_are_written_in_the_order_in_which_they_came(harness: NodeHarness) -> None:
    """The third finds the transaction open, while the coordinator is still asked for the second."""
    harness.create("a", TRANSACTION_STATE_TOPIC)
    asked: list[Callable[[ErrorCode], None]] = []
    harness.node.add_or_verify_partition = lambda *_, callback, **__: asked.append(callback)
    clients = [harness.connect() for _ in range(3)]

    def send(sequence: int) -> None:
        request = produce_request(
            "a", producer_id=1, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        request.transactional_id = "t"
        clients[sequence].send(11, request)

    send(0)
    send(1)
    asked.pop()(ErrorCode.NONE)
    send(2)
    while asked:
        asked.pop()(ErrorCode.NONE)
    harness.turn()
    for sequence, client in enumerate(clients):
        answer = client.receive(11, ProduceRequest).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, sequence)


def asked_about(harness: NodeHarness, version: int) -> tuple[VirtualClient, Callable[[ErrorCode], None]]:
    """Who has sent a batch of a transaction to a new topic, and what tells the coordinator's word on it."""
    harness.create("a", TRANSACTION_STATE_TOPIC)
    asked: list[Callable[[ErrorCode], None]] = []
    harness.node.add_or_verify_partition = lambda *_, callback, **__: asked.append(callback)
    client = harness.connect()
    request = produce_request("a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request.transactional_id = "t"
    request.topic_data[0].topic_id = harness.node.image.topics["a"].topic_id
    client.send(version, request)
    return client, asked.pop()


def end_transaction(harness: NodeHarness) -> None:
    """Its marker comes: aborted."""
    topics = [WritableTxnMarkerTopic(name="a", partition_indexes=[0])]
    marker = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=False, topics=topics)
    harness.call(1, WriteTxnMarkersRequest(markers=[marker]))


@pytest.mark.parametrize("leads", [True, False])
def test_a_batch_whose_transaction_ends_here_while_the_coordinator_is_asked_is_refused(
    harness: NodeHarness, *, leads: bool
) -> None:
    """Who does not lead any more has the marker from the next leader, to which the producer is to go."""
    client, consent = asked_about(harness, 11)
    end_transaction(harness)
    if not leads:
        image = harness.node.image.topics["a"].partitions[0]
        harness.node.led_partition("a", 0).become_follower(
            image._replace(leader=2, leader_epoch=image.leader_epoch + 1)
        )
    consent(ErrorCode.NONE)
    harness.turn()
    answer = client.receive(11, ProduceRequest).responses[0].partition_responses[0]
    assert answer.error_code == (ErrorCode.INVALID_TXN_STATE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize("version", [11, 12, 13])
@pytest.mark.parametrize("then", ["gone", "anew", "anew and ended"])
def test_a_batch_whose_topic_is_deleted_while_the_coordinator_is_asked_is_in_no_other(
    harness: NodeHarness, version: int, then: str
) -> None:
    """A topic of the same name is not what was asked about: nobody would end the transaction there."""
    client, consent = asked_about(harness, version)
    harness.call(5, DeleteTopicsRequest(topic_names=["a"], timeout_ms=1_000))
    if then != "gone":
        harness.create("a")
    if then == "anew and ended":
        end_transaction(harness)
    consent(ErrorCode.NONE)
    harness.turn()
    answer = client.receive(version, ProduceRequest).responses[0].partition_responses[0]
    expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if then == "gone" else ErrorCode.UNKNOWN_TOPIC_ID
    assert (answer.error_code, answer.base_offset) == (expected, -1)
    if then != "gone":
        log = harness.node.led_partition("a", 0).log
        assert log.last_stable_offset == log.log_end_offset


def test_many_that_are_answered_at_once_take_their_turns_without_a_deep_stack() -> None:
    verifications = Verifications()
    went: list[int] = []

    def go(number: int) -> None:
        went.append(number)
        verifications.end_turn(1)

    verifications.run_in_turn(1, lambda: None)
    for number in range(3_000):
        verifications.run_in_turn(1, partial(go, number))
    verifications.end_turn(1)
    assert went == list(range(3_000))
    assert not verifications.is_verifying(1)


def test_one_that_fails_does_not_keep_those_behind_it() -> None:
    verifications = Verifications()
    went: list[str] = []

    def fail() -> None:
        verifications.end_turn(1)
        raise AssertionError("a fault of ours")

    def go() -> None:
        went.append("behind it")
        verifications.end_turn(1)

    verifications.run_in_turn(1, lambda: None)
    verifications.run_in_turn(1, fail)
    verifications.run_in_turn(1, go)
    with pytest.raises(AssertionError, match="a fault of ours"):
        verifications.end_turn(1)
    assert went == ["behind it"]
    assert not verifications.is_verifying(1)
