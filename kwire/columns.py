"""Record batches as columns: many records decoded at once, with numpy, into Arrow arrays.

Where each record begins has to be found one after the other, since each length says where the next one is;
everything else is read for all records together. Keys and values are gathered by Arrow out of the very bytes
that were read. numpy and pyarrow come with the extra `spark`: the broker does not need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kwire.batch import HEADER_BYTES, BatchHeader, CorruptBatch, UnreadableBatch
from kwire.compression import Codec, CompressionError, decompress
from kwire.primitives import Buffer

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Batches = Sequence[tuple[int, BatchHeader]]
"""Positions and headers."""

MAX_BYTES: Final = 0x7FFFFFFF
"""What 32-bit offsets reach: the records that are decoded at once have to be smaller, decompressed."""
_LEAST_ALIKE: Final = 16
"""So many records of one length are worth a look at whether more follow."""

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""As in Spark's Kafka source."""


class Columns(NamedTuple):
    """Records, in the order of their batches."""

    batch: Ints
    """To which of the batches each record belongs."""
    offset: Ints
    timestamp_ms: Ints
    key: pa.BinaryArray
    value: pa.BinaryArray
    headers: pa.ListArray | None
    """A list for each record, null where it has no headers; None where they were not asked for."""


def decode(data: Buffer, batches: Batches, *, headers: bool = False) -> Columns:
    """Decode the records of batches, each given by its position in `data`, which ascends, and its header.

    CRCs are not checked. CorruptBatch, UnreadableBatch: a batch does not hold the records that it should,
    which the message names by its offset.
    """
    buffer, spans = _payloads(data, batches)
    raw = np.frombuffer(buffer, dtype=np.uint8)
    starts, ends, batch = _boundaries(buffer, raw, spans, batches)
    try:
        return _decode(buffer, raw, starts, ends, batch, batches, headers)
    except _Bad as bad:
        header = batches[int(batch[bad.index])][1]
        offset = header.base_offset
        raise CorruptBatch(f"the batch at offset {offset} has a record {bad.what}") from None


class _Bad(Exception):
    def __init__(self, index: int, what: str) -> None:
        super().__init__(what)
        self.index = index
        self.what = what


def _payloads(data: Buffer, batches: Batches) -> tuple[Buffer, list[tuple[int, int]]]:
    """The bytes that hold all records, decompressed, and where in them those of each batch lie."""
    if not any(header.codec for _, header in batches):
        return data, [(at + HEADER_BYTES, at + header.size_bytes) for at, header in batches]
    view = memoryview(data)
    pieces: list[Buffer] = []
    spans = []
    size = 0
    for at, header in batches:
        piece: Buffer = view[at + HEADER_BYTES : at + header.size_bytes]
        if header.codec != Codec.NONE:
            try:
                piece = decompress(header.codec, piece, max_bytes=MAX_BYTES - size)
            except CompressionError as error:
                raise UnreadableBatch(
                    f"the batch at offset {header.base_offset} does not decompress: {error}"
                ) from error
        pieces.append(piece)
        spans.append((size, size + len(piece)))
        size += len(piece)
    return b"".join(pieces), spans


def _boundaries(
    buffer: Buffer, raw: Bytes, spans: Sequence[tuple[int, int]], batches: Batches
) -> tuple[Ints, Ints, Ints]:
    """Where each record begins and ends, and to which batch it belongs."""
    starts: list[Ints] = []
    ends: list[Ints] = []
    for (begin, end), (_, header) in zip(spans, batches, strict=True):
        try:
            found = _starts(buffer, raw, begin, end, header.records_count)
        except (IndexError, CorruptBatch) as error:
            why = f"holds no {header.records_count} records: {error or 'it is cut short'}"
            raise CorruptBatch(f"the batch at offset {header.base_offset} {why}") from None
        starts.append(found[:-1])
        ends.append(found[1:])
    if not starts:
        none = np.empty(0, np.int64)
        return none, none, none
    batch = np.repeat(np.arange(len(batches)), [header.records_count for _, header in batches])
    return np.concatenate(starts), np.concatenate(ends), batch


def _starts(data: Buffer, raw: Bytes, at: int, end: int, count: int) -> Ints:
    """Where `count` records begin, and behind them the end. IndexError, CorruptBatch."""
    pieces: list[Ints] = []
    starts: list[int] = []
    add = starts.append
    left = count
    alike = 0
    before = -1
    while left > 0:
        add(at)
        length = data[at]
        body = at + 1
        if length > 0x7F:
            byte = data[body]
            body += 1
            if byte < 0x80:
                length = length & 0x7F | byte << 7
            else:
                length, body = _long_length(data, body, length & 0x7F | (byte & 0x7F) << 7)
        if length & 1:
            raise CorruptBatch("a record has a negative length")
        after = body + (length >> 1)
        if after > end:
            raise CorruptBatch("a record reaches beyond it")
        left -= 1
        if length != before:
            before, alike = length, 0
        else:
            alike += 1
            if alike == _LEAST_ALIKE and left:
                # Each of these lengths leads to the next one, so the same bytes there are proof enough.
                stride = after - at
                same = min(left, (end - after) // stride)
                for step in range(body - at):
                    column = raw[after + step : after + same * stride : stride]
                    other = np.flatnonzero(column != raw[at + step])
                    same = int(other[0]) if len(other) else same
                if same:
                    pieces.append(np.array(starts, np.int64))
                    starts.clear()
                    pieces.append(np.arange(after, after + same * stride, stride, dtype=np.int64))
                    after += same * stride
                    left -= same
                alike = 0
        at = after
    if at != end:
        raise CorruptBatch(f"{end - at} bytes are left after them")
    add(at)
    pieces.append(np.array(starts, np.int64))
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def _long_length(data: Buffer, at: int, value: int) -> tuple[int, int]:
    shift = 14
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise CorruptBatch("a record has a length of more than 32 bits")


class _Cursor:
    """Positions in all records at once, which move on with what is read."""

    def __init__(self, raw: Bytes, at: Ints, ends: Ints) -> None:
        self._raw = raw
        self.at = at
        self._ends = ends

    def varint(self) -> Ints:
        """A zigzag varint of up to 64 bits from each."""
        raw, at = self._raw, self.at
        self._check(at)
        byte = raw[at]
        value = (byte & 0x7F).astype(np.uint64)
        at += 1
        more = np.flatnonzero(byte > 0x7F)
        shift = 7
        while len(more):
            if shift > 63:
                raise _Bad(int(more[0]), "with a varint of more than 64 bits")
            where = at[more]
            self._check(where, more)
            byte = raw[where]
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more = more[byte > 0x7F]
            shift += 7
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)

    def field(self) -> tuple[Ints, Ints, Any]:
        """Nullable bytes: where they begin and end in each, and where they are null."""
        size = self.varint()
        self.require(size >= -1, "with a length below -1")
        begin = self.at.copy()
        null = size < 0
        # Not by adding first: a size near 2**63 would wrap around.
        self.require(size <= self._ends - begin, "with a field that reaches beyond it")
        self.at += np.where(null, 0, size)
        return begin, self.at.copy(), null

    def _check(self, at: Ints, which: Ints | None = None) -> None:
        ends = self._ends if which is None else self._ends[which]
        beyond = np.flatnonzero(at >= ends)
        if len(beyond):
            raise _Bad(int(beyond[0] if which is None else which[beyond[0]]), "that is cut short")

    def require(self, holds: Any, what: str) -> None:
        wrong = np.flatnonzero(~holds)
        if len(wrong):
            raise _Bad(int(wrong[0]), what)


def _decode(
    buffer: Buffer,
    raw: Bytes,
    starts: Ints,
    ends: Ints,
    batch: Ints,
    batches: Batches,
    want_headers: bool,
) -> Columns:
    cursor = _Cursor(raw, starts.copy(), ends)
    cursor.varint()  # the length
    cursor.at += 1  # attributes
    timestamp = cursor.varint()
    offset = cursor.varint()
    key_begin, key_end, key_null = cursor.field()
    value_begin, value_end, value_null = cursor.field()
    count = cursor.varint()
    cursor.require((count >= 0) & (count <= ends - cursor.at), "with so many headers that they have no room")
    plain = count == 0
    cursor.require(~plain | (cursor.at == ends), "with bytes left over")
    headers = None
    if want_headers or not plain.all():
        # They are read in any case, for they might be wrong.
        headers = _headers(buffer, raw, cursor.at, ends, count)
    if batches:
        per_batch = np.array(
            [(header.base_offset, header.base_timestamp, header.max_timestamp) for _, header in batches],
            np.int64,
        )[batch]
        stamped = np.array([header.has_log_append_time for _, header in batches])[batch]
        offset += per_batch[:, 0]
        timestamp = np.where(stamped, per_batch[:, 2], timestamp + per_batch[:, 1])
    gaps = _Gaps(buffer, len(starts), key_begin, key_end, value_begin, value_end)
    return Columns(
        batch,
        offset,
        timestamp,
        gaps.take(0, key_null),
        gaps.take(2, value_null),
        headers if want_headers else None,
    )


class _Gaps:
    """One Arrow array of all keys, values, and what lies between them, whose data are the bytes as read.

    So keys and values can be taken out of it by Arrow itself, each kind into an array of its own.
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
        """What lies between this mark and the next one, null where it is said so."""
        indexes = np.arange(column, self._count * self._width, self._width, dtype=np.int32)
        mask = null if null is not None and null.any() else None
        return self._array.take(pa.array(indexes, mask=mask))


def _headers(buffer: Buffer, raw: Bytes, at: Ints, ends: Ints, count: Ints) -> pa.ListArray:
    """The headers of all records, of which each has `count` that begin at `at`."""
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
            cursor.require(~key_null, "with a header without a name")
            value_begin, value_end, value_null = cursor.field()
            number += 1
            last = count[left] == number
            cursor.require(~last | (cursor.at == ends[left]), "with bytes left over")
        except _Bad as bad:
            raise _Bad(int(left[bad.index]), bad.what) from None
        slots = first[left] + number - 1
        marks[:, slots] = key_begin, key_end, value_begin, value_end
        null[slots] = value_null
        at[left] = cursor.at
        left = left[~last]
    gaps = _Gaps(buffer, len(null), *marks)
    try:
        keys = gaps.take(0).cast(pa.string())
    except pa.ArrowInvalid:
        names = [name.decode("utf-8", "replace") for name in gaps.take(0).to_pylist()]
        keys = pa.array(names, pa.string())
    fields = list(HEADERS_TYPE.value_type)
    pairs = pa.StructArray.from_arrays([keys, gaps.take(2, null)], fields=fields)
    offsets = pa.array(first.astype(np.int32), mask=np.append(count == 0, False))
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS_TYPE)
