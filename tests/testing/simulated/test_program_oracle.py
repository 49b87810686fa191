"""The oracle that compares acknowledgments to programs with the committed records."""

from __future__ import annotations

import pytest

from kwire.broker.metadata.image import MetadataImage
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.program_oracle import ProduceObserver, ProgramOracle
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import batches, build, records
from kwire.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kwire.wire.registry import encode_request, encode_response

ORDERS = TopicPartition("orders", 0)
PRODUCE, VERSION = 0, 9
SENT_MS = 1_700_000_000_000


def batch(*values: bytes, base_offset: int = 0, sequence: int = -1) -> bytearray:
    """Return a batch as a producer sends it, or as the log contains it."""
    return build(
        [(SENT_MS, None, value, []) for value in values],
        base_offset=base_offset,
        producer_id=7 if sequence >= 0 else -1,
        producer_epoch=0 if sequence >= 0 else -1,
        base_sequence=sequence,
    )


def new_oracle() -> ProgramOracle:
    return ProgramOracle()


def commit(oracle: ProgramOracle, content: bytearray) -> None:
    for position, header in batches(content):
        oracle.commit_batch(ORDERS, header, records(content, position, header))
        oracle.committed_in(ORDERS).end = header.next_offset


def acknowledge(
    oracle: ProgramOracle, base_offset: int, *values: bytes, acks: int = -1, error_code: int = 0
) -> None:
    """Let the oracle observe a Produce request and its response."""
    observer = ProduceObserver(oracle, MetadataImage)
    data = PartitionProduceData(index=0, records=batch(*values))
    request = ProduceRequest(
        acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData(name="orders", partition_data=[data])]
    )
    observer.on_request(encode_request(request, VERSION, 5, "a program"))
    partition_response = PartitionProduceResponse(index=0, base_offset=base_offset, error_code=error_code)
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="orders", partition_responses=[partition_response])],
        throttle_time_ms=0,
    )
    pieces = encode_response(PRODUCE, VERSION, 5, response)
    observer.on_response(memoryview(b"".join(bytes(piece) for piece in pieces))[4:])  # type: ignore[arg-type]


def test_acknowledgment_of_committed_records_is_accepted() -> None:
    oracle = new_oracle()
    commit(oracle, batch(b"one", b"two"))
    acknowledge(oracle, 0, b"one", b"two")
    acknowledge(oracle, 1, b"two")


def test_acknowledgment_of_uncommitted_records_is_a_violation() -> None:
    oracle = new_oracle()
    with pytest.raises(
        Violation, match=r"b'one' was acknowledged at 0 of orders-0, where nothing is committed"
    ):
        acknowledge(oracle, 0, b"one")
    commit(oracle, batch(b"one"))
    with pytest.raises(Violation, match=r"b'other' was acknowledged at 0 .* b'one' is committed"):
        acknowledge(oracle, 0, b"other")


def test_acks_1_and_errors_promise_nothing() -> None:
    oracle = new_oracle()
    acknowledge(oracle, 0, b"one", acks=1)
    acknowledge(oracle, -1, b"one", error_code=6)


def test_invalid_batch_is_ignored() -> None:
    data = TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=bytes(80))])
    request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data])
    ProduceObserver(new_oracle(), MetadataImage).on_request(encode_request(request, VERSION, 5, "a program"))


def test_deleted_records_and_topics_are_no_violation() -> None:
    oracle = new_oracle()
    oracle.on_log_start(ORDERS, 1, "node 1")
    acknowledge(oracle, 0, b"deleted")
    oracle.forget(ORDERS)
    acknowledge(oracle, 5, b"of a deleted topic")


def test_repeated_sequence_in_the_log_is_a_violation() -> None:
    oracle = new_oracle()
    commit(oracle, batch(b"one", b"two", sequence=0))
    commit(oracle, batch(b"three", base_offset=2, sequence=2))
    with pytest.raises(Violation, match=r"orders-0 has sequence 2 at offset 3 of .* expected 3"):
        commit(oracle, batch(b"three", base_offset=3, sequence=2))
    assert [one.value for one in oracle.records("orders")] == [b"one", b"two", b"three"]
