"""A log with transactions reads as its markers say."""

from __future__ import annotations

from collections.abc import Iterator

from kwire.coordinator.transactional_records import TransactionalRecords
from kwire.wire import batch


def values(data: memoryview) -> Iterator[bytes | None]:
    for record in batch.records(data, 0, batch.read_header(data)):
        yield record.value


def written(value: bytes, producer_id: int = -1) -> memoryview:
    return memoryview(
        batch.build(
            [(1, b"k", value, [])],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
    )


def marker(kind: int, producer_id: int) -> memoryview:
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


def test_what_a_transaction_wrote_counts_from_its_commit_on() -> None:
    reader = TransactionalRecords(values)
    told = [
        list(reader.committed_by(data))
        for data in (
            written(b"plain"),
            written(b"seven", 7),
            written(b"eight", 8),
            written(b"seven again", 7),
            marker(0, 8),
            marker(1, 7),
            marker(1, 7),
            written(b"open", 9),
        )
    ]
    assert told == [[b"plain"], [], [], [], [], [b"seven", b"seven again"], [], []]
