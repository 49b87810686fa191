"""Reading a log with transactions: records count only from their commit marker on."""

from __future__ import annotations

from collections.abc import Iterator

from kwire.coordinator.transactional_records import TransactionalRecords
from kwire.wire import batch


def values(data: memoryview) -> Iterator[bytes | None]:
    for record in batch.records(data, 0, batch.read_header(data)):
        yield record.value


def record_batch(value: bytes, producer_id: int = -1) -> memoryview:
    return memoryview(
        batch.build(
            [(1, b"k", value, [])],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
    )


def marker_batch(kind: int, producer_id: int) -> memoryview:
    key = b"\x00\x00" + kind.to_bytes(2, "big")
    return memoryview(
        batch.build(
            [(1, key, b"\x00\x00\x00\x00\x00\x00", [])],
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
    )


def test_transactional_records_are_returned_at_their_commit() -> None:
    reader = TransactionalRecords(values)
    committed = [
        list(reader.committed_by(data))
        for data in (
            record_batch(b"plain"),
            record_batch(b"seven", 7),
            record_batch(b"eight", 8),
            record_batch(b"seven again", 7),
            marker_batch(0, 8),
            marker_batch(1, 7),
            marker_batch(1, 7),
            record_batch(b"open", 9),
        )
    ]
    assert committed == [[b"plain"], [], [], [], [], [b"seven", b"seven again"], [], []]
