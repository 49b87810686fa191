"""What programs were told, held to what is committed: each broken promise is found."""

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
    """As a producer sends it, or as it stands in a log."""
    return build(
        [(SENT_MS, None, value, []) for value in values],
        base_offset=base_offset,
        producer_id=7 if sequence >= 0 else -1,
        producer_epoch=0 if sequence >= 0 else -1,
        base_sequence=sequence,
    )


def new_ledger() -> ProgramOracle:
    return ProgramOracle(lambda place, address: None)


def commit(ledger: ProgramOracle, content: bytearray) -> None:
    for position, header in batches(content):
        ledger.commit_batch(ORDERS, header, records(content, position, header))
        ledger.committed_in(ORDERS).end = header.next_offset


def told(
    ledger: ProgramOracle, base_offset: int, *values: bytes, acks: int = -1, error_code: int = 0
) -> None:
    """A program sends the values, and is answered."""
    conversation = ProduceObserver(ledger, MetadataImage)
    data = PartitionProduceData(index=0, records=batch(*values))
    request = ProduceRequest(
        acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData(name="orders", partition_data=[data])]
    )
    conversation.on_request(encode_request(request, VERSION, 5, "a program"))
    answer = PartitionProduceResponse(index=0, base_offset=base_offset, error_code=error_code)
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="orders", partition_responses=[answer])], throttle_time_ms=0
    )
    pieces = encode_response(PRODUCE, VERSION, 5, response)
    conversation.on_response(memoryview(b"".join(bytes(piece) for piece in pieces))[4:])  # type: ignore[arg-type]


def test_what_is_committed_may_be_told() -> None:
    ledger = new_ledger()
    commit(ledger, batch(b"one", b"two"))
    told(ledger, 0, b"one", b"two")
    told(ledger, 1, b"two")


def test_what_is_not_there_must_not_be_told() -> None:
    ledger = new_ledger()
    with pytest.raises(
        Violation, match=r"b'one' was acknowledged at 0 of orders-0, where nothing is committed"
    ):
        told(ledger, 0, b"one")
    commit(ledger, batch(b"one"))
    with pytest.raises(Violation, match=r"b'other' was acknowledged at 0 .* b'one' is committed"):
        told(ledger, 0, b"other")


def test_who_asks_for_less_or_is_refused_is_promised_nothing() -> None:
    ledger = new_ledger()
    told(ledger, 0, b"one", acks=1)
    told(ledger, -1, b"one", error_code=6)


def test_a_batch_that_is_none_is_left_to_the_broker() -> None:
    data = TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=bytes(80))])
    request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data])
    ProduceObserver(new_ledger(), MetadataImage).on_request(encode_request(request, VERSION, 5, "a program"))


def test_what_has_gone_since_is_not_missed() -> None:
    ledger = new_ledger()
    ledger.on_log_start(ORDERS, 1, "node 1")
    told(ledger, 0, b"deleted")
    ledger.forget(ORDERS)
    told(ledger, 5, b"of a topic that is gone")


def test_what_a_producer_has_numbered_stands_once_and_in_order() -> None:
    ledger = new_ledger()
    commit(ledger, batch(b"one", b"two", sequence=0))
    commit(ledger, batch(b"three", base_offset=2, sequence=2))
    with pytest.raises(Violation, match=r"orders-0 has sequence 2 at offset 3 of .* expected 3"):
        commit(ledger, batch(b"three", base_offset=3, sequence=2))
    assert [one.value for one in ledger.records("orders")] == [b"one", b"two", b"three"]
