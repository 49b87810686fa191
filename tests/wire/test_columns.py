"""Columns equal the records read one by one, and raise the same errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.wire.batch import CorruptBatch, batches, build, read_header, records
from kwire.wire.columns import HEADERS_TYPE, Columns, decode
from kwire.wire.compression import Codec

ALL = frozenset({"key", "value", "headers"})

Written = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    assert columns.key is not None
    assert columns.value is not None
    headers = columns.headers.to_pylist() if columns.headers is not None else [None] * len(columns.offset)
    return [
        (offset, timestamp, key, value, [(one["key"], one["value"]) for one in found or []])
        for offset, timestamp, key, value, found in zip(
            columns.offset.tolist(),
            columns.timestamp_ms.tolist(),
            columns.key.to_pylist(),
            columns.value.to_pylist(),
            headers,
            strict=True,
        )
    ]


def read_one_by_one(data: bytes) -> list[tuple[Any, ...]]:
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for at, header in batches(data)
        for record in records(data, at, header)
    ]


values = st.one_of(st.none(), st.binary(max_size=300))
a_record = st.tuples(
    st.integers(-(1 << 62), 1 << 62),
    values,
    values,
    st.one_of(st.just([]), st.lists(st.tuples(st.text(max_size=5), values), max_size=4)),
)
a_batch = st.tuples(
    st.lists(a_record, min_size=1, max_size=30),
    st.sampled_from(list(Codec)),
    st.one_of(st.none(), st.integers(0, 1 << 50)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(a_batch, max_size=4))
def test_columns_equal_the_records(written: list[tuple[list[Written], Codec, int | None]]) -> None:
    data = b""
    base_offset = 1 << 40
    for new_records, codec, append_time in written:
        data += build(new_records, base_offset=base_offset, codec=codec, log_append_time=append_time)
        base_offset += len(new_records) + 7
    found = decode(data, list(batches(data)), fields=ALL)
    assert rows(found) == read_one_by_one(data)
    assert found.batch.tolist() == [
        number for number, (new_records, _, _) in enumerate(written) for _ in new_records
    ]


@pytest.mark.parametrize("size", ["one", "some", "many"])
@pytest.mark.parametrize("count", [1, 17, 18, 63, 64, 65, 9_000])
def test_records_of_equal_length(size: str, count: int) -> None:
    draw = random.Random(count)
    sizes: dict[str, Callable[[], int]] = {
        "one": lambda: 100,
        "some": lambda: draw.choice([100, 100, 100, 5000]),
        "many": lambda: draw.randrange(200),
    }
    written: list[Any] = [(7, b"%06d" % number, draw.randbytes(sizes[size]()), []) for number in range(count)]
    data = bytes(build(written))
    assert rows(decode(data, [(0, read_header(data))])) == read_one_by_one(data)


def test_no_data_gives_empty_columns() -> None:
    found = decode(b"", [], fields=ALL)
    assert rows(found) == []
    assert found.headers is not None
    assert found.headers.type == HEADERS_TYPE


def test_headers_column_is_null_or_absent() -> None:
    data = bytes(build([(0, None, None, []), (0, None, None, [("a", None)])]))
    header = read_header(data)
    assert decode(data, [(0, header)]).headers is None
    found = decode(data, [(0, header)], fields=ALL).headers
    assert found is not None
    assert found.to_pylist() == [None, [{"key": "a", "value": None}]]


def test_batches_can_be_skipped() -> None:
    data = b"".join(build([(n, b"k", b"v%d" % n, [])], base_offset=n) for n in range(5))
    every = list(batches(data))
    found = decode(memoryview(data), [every[1], every[3]])
    assert found.offset.tolist() == [1, 3]
    assert found.value is not None
    assert found.value.to_pylist() == [b"v1", b"v3"]


@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_malformed_records_are_refused_as_one_by_one(draw: st.DataObject) -> None:
    written = draw.draw(st.lists(a_record, min_size=1, max_size=25))
    data = build(written)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(61, len(data) - 1))
        data[at] = draw.draw(st.integers(0, 255))
    header = read_header(data)
    try:
        expected = read_one_by_one(bytes(data))
    except CorruptBatch:
        with pytest.raises(CorruptBatch, match="the batch at offset 0 "):
            decode(data, [(0, header)], fields=ALL)
    else:
        found = decode(data, [(0, header)], fields=ALL)
        assert [row[0] for row in rows(found)] == [wrap_to_64_bits(row[0]) for row in expected]
        assert [row[2:] for row in rows(found)] == [row[2:] for row in expected]


def wrap_to_64_bits(value: int) -> int:
    """Wrap a value to 64 bits: an invented delta may overflow."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def test_error_names_the_malformed_batch() -> None:
    good = build([(0, b"k", b"v", [])] * 3, base_offset=10)
    bad = build([(0, b"k", b"v", [])] * 3, base_offset=20)
    bad[-1] = 9  # the count of headers
    data = bytes(good + bad)
    with pytest.raises(CorruptBatch, match="the batch at offset 20 has a record with more headers"):
        decode(data, list(batches(data)))
    short = data[:-1]
    header = read_header(short, len(good))._replace(batch_length=len(bad) - 13)
    with pytest.raises(CorruptBatch, match="the batch at offset 20 does not hold 3 records"):
        decode(short, [(len(good), header)])


def test_failed_decompression_is_refused() -> None:
    data = build([(0, b"k", b"v" * 100, [])] * 3, codec=Codec.ZSTD)
    data[70:75] = b"\0\0\0\0\0"
    with pytest.raises(CorruptBatch, match="does not decompress"):
        decode(data, [(0, read_header(data))])


@pytest.mark.parametrize("last_byte", [0x01, 0x03, 0x7F])
def test_ten_byte_varint_is_truncated_to_64_bits(last_byte: int) -> None:
    """Kafka also drops the excess bits."""
    data = build([(0, b"k", b"v", []), (1 << 62, b"k", b"w", [])])
    data[data.index(b"\x80" * 9 + b"\x01") + 9] = last_byte
    assert [row[1] for row in read_one_by_one(bytes(data))] == [0, 1 << 62]
    assert [row[1] for row in rows(decode(data, [(0, read_header(data))], fields=ALL))] == [0, 1 << 62]
