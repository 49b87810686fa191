"""Record batches from the rows of an archive: gaps are preserved, and the size is bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kwire.pipeline.archive.reading import Row
from kwire.pipeline.restore import batches as made
from kwire.pipeline.restore.batches import MAX_OFFSET_DELTA, Limits
from kwire.wire.batch import BatchHeader, batches, crc_is_valid, read_header, records
from kwire.wire.compression import Codec

NOW_MS = 1_700_000_000_000


def row(
    offset: int,
    *,
    timestamp_ms: int = NOW_MS,
    kind: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> Row:
    return Row(offset, timestamp_ms, kind, key, value, list(headers))


def headers_of(rows: Sequence[Row], start: int, end: int, limits: Limits) -> list[BatchHeader]:
    """Build batches, and check their rows and offset ranges."""
    data = bytearray().join(made.batches(rows, start, end, limits))
    found = list(batches(data))
    told = []
    for position, header in found:
        assert crc_is_valid(data, position, header)
        told += [
            Row(
                record.offset,
                record.timestamp,
                int(header.has_log_append_time),
                record.key,
                record.value,
                record.headers,
            )
            for record in records(data, position, header)
        ]
    assert told == list(rows)
    return [header for _, header in found]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_has_the_content_of_its_rows(codec: Codec) -> None:
    rows = [
        row(3, key=None, value=None),
        row(4, timestamp_ms=NOW_MS - 5_000, headers=[("a", b"b"), ("a", None), ("ä", b"")]),
        row(9, key=b"", value=b"x" * 300, timestamp_ms=-1),
    ]
    [header] = headers_of(rows, 3, 10, Limits(codec))
    assert header.codec == codec
    assert (header.base_offset, header.last_offset, header.records_count) == (3, 9, 3)
    assert (header.leader_epoch, header.producer_id, header.base_sequence) == (0, -1, -1)


def test_a_log_of_batches_has_the_given_start_and_end() -> None:
    rows = [row(offset, value=bytes(50)) for offset in (1005, 1006, 1020, 1021, 1050)]
    headers = headers_of(rows, 1000, 1100, Limits(batch_bytes=100))
    assert [(header.base_offset, header.last_offset) for header in headers] == [
        (1000, 1006),
        (1007, 1021),
        (1022, 1099),
    ]


def test_batches_are_bounded_by_size_and_a_large_record_has_its_own() -> None:
    rows = [row(0), row(1, value=bytes(5000)), *(row(offset) for offset in range(2, 200))]
    headers = headers_of(rows, 0, 200, Limits(Codec.NONE, batch_bytes=1000))
    assert headers[0].records_count == 2
    assert all(header.size_bytes < 1300 for header in headers[1:])


def test_log_append_time_is_the_same_for_a_batch() -> None:
    rows = [
        row(0),
        row(1, kind=1, timestamp_ms=NOW_MS + 1),
        row(2, kind=1, timestamp_ms=NOW_MS + 1),
        row(3, kind=1, timestamp_ms=NOW_MS + 2),
        row(4),
    ]
    headers = headers_of(rows, 0, 5, Limits())
    assert [header.records_count for header in headers] == [1, 2, 1, 1]


def test_offsets_too_far_apart_for_one_batch_are_in_two() -> None:
    far = MAX_OFFSET_DELTA + 11
    rows = [row(10), row(10 + far), row(11 + far), row(10 + 3 * far)]
    headers = headers_of(rows, 0, 11 + 3 * far, Limits())
    assert [header.base_offset for header in headers] == [0, 10 + far, 10 + 3 * far]
    assert [header.last_offset for header in headers] == [10, 11 + far, 10 + 3 * far]


def test_a_log_without_rows_has_no_batch() -> None:
    assert list(made.batches([], 5, 10)) == []


@pytest.mark.parametrize("offsets", [[4], [10], [6, 6], [7, 6]])
def test_rows_outside_of_the_span_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match=f"offset {offsets[-1]} is not between 5 and 10, or is a duplicate"):
        list(made.batches([row(offset) for offset in offsets], 5, 10))


def test_the_maximum_timestamp_of_a_batch_is_in_its_header() -> None:
    [batch] = made.batches([row(0), row(1, timestamp_ms=NOW_MS + 9), row(2)], 0, 3)
    assert read_header(batch).max_timestamp == NOW_MS + 9
