"""Columnar decoding: the records of many batches, decoded together with numpy into Arrow arrays.

The starts of records have to be found in order, because each length gives the position of the next record.
Then each field is read for all records together. Arrow takes keys and values from the original buffer. numpy
and pyarrow come with the extra `spark`; the broker does not need them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kwire.wire.batch import HEADER_BYTES, BatchHeader, CorruptBatch, UnreadableBatch
from kwire.wire.compression import Codec, CompressionError, decompress
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import Buffer

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Batches = Sequence[tuple[int, BatchHeader]]
"""Positions of batches in a buffer, and their headers."""

MAX_BYTES: Final = 0x7FFFFFFF
"""The maximum of Arrow's 32-bit offsets, which limits the decompressed bytes that are decoded together."""
KEY_AND_VALUE: Final = frozenset({"key", "value"})

_MIN_RECORD_BYTES: Final = 7
"""The size of an empty record: length, attributes, two deltas, two lengths and the header count."""
_MIN_RUN: Final = 8
"""The minimum number of equally long records for which one comparison is faster than reading each length."""
_FIRST_WALK: Final = 16
"""The number of records to read one by one before the next check for records of equal length.

The number doubles with each check that finds none.
"""
_ZIGZAG: Final = np.array([byte >> 1 ^ -(byte & 1) for byte in range(256)], np.int64)

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""The type of headers in Spark's Kafka source."""


class Columns(NamedTuple):
    """Records, in the order of their batches. Key, value and headers are None unless requested."""

    batch: Ints
    """The index of each record's batch."""
    offset: Ints
    timestamp_ms: Ints
    key: pa.BinaryArray | None
    value: pa.BinaryArray | None
    headers: pa.ListArray | None
    """A list per record, null for a record without headers."""


def decode(data: Buffer, batches: Batches, *, fields: Collection[str] = KEY_AND_VALUE) -> Columns:
    """Decode the records of batches in `data`. The positions of the batches must ascend.

    `fields` selects the columns key, value and headers. CRCs are not checked. The batches must have at most
    MAX_BYTES decompressed bytes. Raises UnreadableBatch for a batch that does not decompress, or CorruptBatch
    for a batch without the records that its header declares. The error message has the batch's base offset.
    """
    found = list(decode_parts(data, batches, max_bytes=MAX_BYTES, fields=fields))
    assert len(found) <= 1
    return found[0][0] if found else _decode_part(_Part(b"", [], []), fields)


def decode_parts(
    data: Buffer, batches: Batches, *, max_bytes: int, fields: Collection[str] = KEY_AND_VALUE
) -> Iterator[tuple[Columns, Batches]]:
    """Yield the columns and the batches of each group of batches. Raises errors as `decode` does.

    A group has one batch, or several batches of at most `max_bytes` decompressed bytes together.
    """
    for part in _split(data, batches, max_bytes):
        yield _decode_part(part, fields), part.batches


class _Part(NamedTuple):
    """A buffer with the decompressed records of batches, and the span of each batch's records in it."""

    buffer: Buffer
    spans: list[tuple[int, int]]
    batches: Batches


def _decode_part(part: _Part, fields: Collection[str]) -> Columns:
    buffer, spans, batches = part
    raw = np.frombuffer(buffer, dtype=np.uint8)
    starts, ends, batch = _boundaries(buffer, raw, spans, batches)
    try:
        return _decode_columns(buffer, raw, starts, ends, batch, batches, fields)
    except _InvalidRecord as bad:
        header = batches[int(batch[bad.index])][1]
        offset = header.base_offset
        raise CorruptBatch(f"the batch at offset {offset} has a record {bad.problem}") from None


class _InvalidRecord(Exception):
    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index
        self.problem = problem


def _split(data: Buffer, batches: Batches, max_bytes: int) -> Iterator[_Part]:
    if batches and len(data) <= max_bytes and not any(header.codec for _, header in batches):
        spans = [(at + HEADER_BYTES, at + header.size_bytes) for at, header in batches]
        yield _Part(data, spans, batches)
        return
    view = memoryview(data)
    pieces: list[Buffer] = []
    spans = []
    size = first = 0
    for number, (at, header) in enumerate(batches):
        piece: Buffer = view[at + HEADER_BYTES : at + header.size_bytes]
        if header.codec != Codec.NONE:
            try:
                piece = decompress(header.codec, piece, max_bytes=MAX_BYTES)
            except CompressionError as error:
                raise UnreadableBatch(
                    f"the batch at offset {header.base_offset} does not decompress: {error}"
                ) from error
        if pieces and size + len(piece) > max_bytes:
            yield _Part(_join(pieces), spans, batches[first:number])
            pieces, spans, size, first = [], [], 0, number
        pieces.append(piece)
        spans.append((size, size + len(piece)))
        size += len(piece)
    if pieces:
        yield _Part(_join(pieces), spans, batches[first:])


def _join(pieces: list[Buffer]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _boundaries(
    buffer: Buffer, raw: Bytes, spans: Sequence[tuple[int, int]], batches: Batches
) -> tuple[Ints, Ints, Ints]:
    """Return each record's start and end, and the index of its batch. Raises CorruptBatch."""
    counts = []
    for (begin, end), (_, header) in zip(spans, batches, strict=True):
        if not 0 <= header.records_count <= (end - begin) // _MIN_RECORD_BYTES:
            raise _invalid_batch(header, "the batch is too short")
        counts.append(header.records_count)
    first_after = np.cumsum(counts, dtype=np.int64)
    starts = np.empty(int(first_after[-1]) if counts else 0, np.int64)
    done = 0
    for (begin, end), (_, header) in zip(spans, batches, strict=True):
        found = starts[done : done + header.records_count]
        done += header.records_count
        if not _find_starts(buffer, raw, begin, end, found):
            try:
                found[:] = _walk_starts(buffer, begin, end, header.records_count)
            except (IndexError, CorruptBatch) as error:
                raise _invalid_batch(header, str(error) or "the batch is truncated") from None
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    filled = np.flatnonzero(counts)
    ends[first_after[filled] - 1] = np.array([end for _, end in spans], np.int64)[filled]
    return starts, ends, np.repeat(np.arange(len(counts)), counts)


def _invalid_batch(header: BatchHeader, why: str) -> CorruptBatch:
    count = plural(header.records_count, "record")
    return CorruptBatch(f"the batch at offset {header.base_offset} does not hold {count}: {why}")


@cache
def _strides() -> list[list[int]]:
    """Return a table from a record's first two bytes to the record's size in bytes.

    The size is 0 if the length field is negative or takes more than two bytes.
    """

    def record_bytes(zigzag: int, prefix_bytes: int) -> int:
        return 0 if zigzag & 1 else prefix_bytes + (zigzag >> 1)

    return [
        [record_bytes(first, 1)] * 256
        if first < 0x80
        else [record_bytes(first & 0x7F | second << 7, 2) if second < 0x80 else 0 for second in range(256)]
        for first in range(256)
    ]


def _find_starts(data: Buffer, raw: Bytes, at: int, end: int, starts: Ints) -> bool:
    """Fill `starts` with the positions of the records from `at` on.

    Returns False if the records do not end at `end`, or if `_strides` does not have a record's size.
    """
    strides = _strides()
    done, count = 0, len(starts)
    limit = _FIRST_WALK
    try:
        while done < count:
            stride = strides[data[at]][data[at + 1]]
            same = _run_length(raw, at, stride, min(count - done, (end - at) // stride)) if stride else 0
            if same:
                starts[done : done + same] = np.arange(at, at + same * stride, stride)
                done += same
                at += same * stride
                limit = _FIRST_WALK
                continue
            walked: list[int] = []
            add = walked.append
            for _ in range(min(limit, count - done)):
                add(at)
                at += strides[data[at]][data[at + 1]]
            starts[done : done + len(walked)] = walked
            done += len(walked)
            limit *= 2
            if walked[-1] == at:  # the size of the record is not in the table
                return False
    except IndexError:
        return False
    # Positions only increase, so a position beyond the end never becomes the end.
    return at == end


def _run_length(raw: Bytes, at: int, stride: int, limit: int) -> int:
    """Return the number of records of size `stride` from `at` on, up to `limit`; 0 if there are too few."""
    if limit < _MIN_RUN or raw[at] != raw[at + stride] or raw[at] != raw[at + 2 * stride]:
        return 0
    # Each length leads to the next one, so comparing the bytes at multiples of `stride` is enough.
    same = limit
    for step in range(1 if raw[at] < 0x80 else 2):
        differs = raw[at + step : at + step + (same - 1) * stride + 1 : stride] != raw[at + step]
        first = int(differs.argmax())
        if differs[first]:
            same = first
    return same if same >= _MIN_RUN else 0


def _walk_starts(data: Buffer, at: int, end: int, count: int) -> list[int]:
    """Return the starts of records of any length. Raises IndexError or CorruptBatch for invalid records."""
    starts = []
    for _ in range(count):
        starts.append(at)
        length, body = _read_length(data, at)
        if length & 1:
            raise CorruptBatch("a record has a negative length")
        at = body + (length >> 1)
        if at > end:
            raise CorruptBatch("a record exceeds the batch")
    if at != end:
        raise CorruptBatch(f"{plural(end - at, 'byte')} after the last record")
    return starts


def _read_length(data: Buffer, at: int) -> tuple[int, int]:
    """Return a length, still zigzag-encoded, and the position after it. Raises IndexError, CorruptBatch."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF, at
        shift += 7
        if shift > 28:
            raise CorruptBatch("a record has a length of more than 32 bits")


class _Cursor:
    """A position in each of the records, which advances as fields are read."""

    def __init__(self, raw: Bytes, at: Ints, ends: Ints) -> None:
        self._raw = raw
        self.at = at
        self._ends = ends

    def varint(self) -> Ints:
        """Read a zigzag varint of up to 5 bytes and 32 bits from each record. Higher bits are dropped."""
        return self._zigzag(max_bytes=5, mask=0xFFFF_FFFF)

    def varlong(self) -> Ints:
        """Read a zigzag varint of up to 10 bytes and 64 bits from each record. Higher bits are dropped."""
        return self._zigzag(max_bytes=10, mask=0xFFFF_FFFF_FFFF_FFFF)

    def _zigzag(self, max_bytes: int, mask: int) -> Ints:
        at = self.at
        self._check(at, self._ends)
        byte = self._raw.take(at)
        at += 1
        value: Ints = _ZIGZAG.take(byte)
        is_longer = byte > 0x7F
        if is_longer.any():
            if is_longer.all():
                return self._longer(byte, at, self._ends, None, max_bytes, mask)
            which = np.flatnonzero(is_longer)
            where = at[which]
            value[which] = self._longer(byte[which], where, self._ends[which], which, max_bytes, mask)
            at[which] = where
        return value

    def _longer(
        self, byte: Bytes, at: Ints, ends: Ints, which: Ints | None, max_bytes: int, mask: int
    ) -> Ints:
        """Read varints of several bytes, given their first bytes, and advance `at`.

        `which` has the indexes of the records; None means all records.
        """
        value = (byte & 0x7F).astype(np.uint64)
        self._check(at, ends, which)
        byte = self._raw.take(at)
        at += 1
        value |= (byte & 0x7F).astype(np.uint64) << np.uint64(7)
        more = np.flatnonzero(byte > 0x7F)
        shift = 14
        while len(more):
            there = more if which is None else which[more]
            if shift == 7 * max_bytes:
                raise _InvalidRecord(int(there[0]), f"with a varint of more than {max_bytes} bytes")
            where = at[more]
            self._check(where, ends[more], there)
            byte = self._raw.take(where)
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more = more[byte > 0x7F]
            shift += 7
        value &= np.uint64(mask)
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)

    def field(self) -> tuple[Ints, Ints, Any]:
        """Read a nullable bytes field. Return its start and end in each record, and a mask of the nulls."""
        size = self.varint()
        begin = self.at.copy()
        self.require(size <= self._ends - begin, "with a field that exceeds it")
        self.at += np.maximum(size, 0)
        return begin, self.at.copy(), size < 0

    def _check(self, at: Ints, ends: Ints, which: Ints | None = None) -> None:
        beyond = at >= ends
        if beyond.any():
            first = int(beyond.argmax())
            raise _InvalidRecord(first if which is None else int(which[first]), "that is truncated")

    def require(self, holds: Any, problem: str) -> None:
        if not holds.all():
            raise _InvalidRecord(int(holds.argmin()), problem)


def _decode_columns(
    buffer: Buffer,
    raw: Bytes,
    starts: Ints,
    ends: Ints,
    batch: Ints,
    batches: Batches,
    fields: Collection[str],
) -> Columns:
    cursor = _Cursor(raw, starts.copy(), ends)
    cursor.varint()  # the length
    cursor.at += 1  # attributes
    timestamp = cursor.varlong()
    offset = cursor.varint()
    key_begin, key_end, key_null = cursor.field()
    value_begin, value_end, value_null = cursor.field()
    count = cursor.varint()
    cursor.require((count >= 0) & (count <= ends - cursor.at), "with more headers than bytes")
    plain = count == 0
    cursor.require(~plain | (cursor.at == ends), "with bytes after its last field")
    headers = None
    if "headers" in fields or not plain.all():
        # Headers are decoded even if they are not requested, to find invalid headers.
        headers = _headers(buffer, raw, cursor.at, ends, count)
    if batches:
        offset += np.array([header.base_offset for _, header in batches], np.int64).take(batch)
        timestamp += np.array([header.base_timestamp for _, header in batches], np.int64).take(batch)
        stamped = np.array([header.has_log_append_time for _, header in batches])
        if stamped.any():
            latest = np.array([header.max_timestamp for _, header in batches], np.int64)
            timestamp = np.where(stamped.take(batch), latest.take(batch), timestamp)
    slices = _Slices(buffer, len(starts), key_begin, key_end, value_begin, value_end)
    return Columns(
        batch,
        offset,
        timestamp,
        slices.take(0, key_null) if "key" in fields else None,
        slices.take(2, value_null) if "value" in fields else None,
        headers if "headers" in fields else None,
    )


class _Slices:
    """An Arrow array over the original buffer. Its elements are keys, values and the bytes between them.

    Arrow can therefore copy all keys, or all values, into a separate array. Each of `marks` has one position
    per record, where an element begins: key begin, key end, value begin, value end.
    """

    def __init__(self, buffer: Buffer, count: int, *marks: Ints) -> None:
        self._count = count
        self._width = len(marks)
        offsets = np.zeros(count * len(marks) + 1, np.int32)
        for column, mark in enumerate(marks):
            offsets[column : count * len(marks) : len(marks)] = mark
        offsets[-1] = offsets[-2] if count else 0
        self._array = pa.BinaryArray.from_buffers(
            pa.binary(), count * len(marks), [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
        )

    def take(self, column: int, null: Any = None) -> pa.BinaryArray:
        """Return the bytes between mark `column` and the next mark of each record. `null` masks the nulls."""
        if null is not None and self._count and null.all():
            return pa.nulls(self._count, pa.binary())
        indexes = np.arange(column, self._count * self._width, self._width, dtype=np.int32)
        mask = null if null is not None and null.any() else None
        return self._array.take(pa.array(indexes, mask=mask))


def _headers(buffer: Buffer, raw: Bytes, at: Ints, ends: Ints, count: Ints) -> pa.ListArray:
    """Return the headers of all records. Record i has `count[i]` headers, which start at `at[i]`."""
    first = np.zeros(len(count) + 1, np.int64)
    np.cumsum(count, out=first[1:])
    marks = np.zeros((4, int(first[-1])), np.int64)
    null = np.zeros(int(first[-1]), bool)
    left = np.flatnonzero(count > 0)
    number = 0
    while len(left):
        cursor = _Cursor(raw, at[left], ends[left])
        try:
            key_begin, key_end, key_null = cursor.field()
            cursor.require(~key_null, "with a header that has no key")
            value_begin, value_end, value_null = cursor.field()
            number += 1
            last = count[left] == number
            cursor.require(~last | (cursor.at == ends[left]), "with bytes after its last header")
        except _InvalidRecord as bad:
            raise _InvalidRecord(int(left[bad.index]), bad.problem) from None
        slots = first[left] + number - 1
        marks[:, slots] = key_begin, key_end, value_begin, value_end
        null[slots] = value_null
        at[left] = cursor.at
        left = left[~last]
    slices = _Slices(buffer, len(null), *marks)
    try:
        keys = slices.take(0).cast(pa.string())
    except pa.ArrowInvalid:
        names = [name.decode("utf-8", "replace") for name in slices.take(0).to_pylist()]
        keys = pa.array(names, pa.string())
    fields = list(HEADERS_TYPE.value_type)
    pairs = pa.StructArray.from_arrays([keys, slices.take(2, null)], fields=fields)
    offsets = pa.array(first.astype(np.int32), mask=np.append(count == 0, False))
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS_TYPE)
