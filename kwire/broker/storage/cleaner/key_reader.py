"""Reading the keys of batches that have the same layout as an earlier batch.

A client whose records have the same size sends many batches with the same number of records. In these batches
everything that determines the position of a key is equal: the lengths, the number of bytes of each varint,
and the key sizes. A remembered layout compares these bytes with strided slices. If they differ, the records
are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from kwire.broker.storage.cleaner.compiled_readers import head_of
from kwire.broker.storage.cleaner.record_keys import EVEN_BYTES, LONGEST_PLAIN_KEY, RecordKeys, keys_of
from kwire.wire.named_tuple import NamedTuple

_HIGH_BYTES: Final = bytes(range(0x80, 0x100))
"""The bytes that are not the last byte of a varint."""
_MIN_RECORDS: Final = 6
_MAX_RUNS: Final = 4
_MAX_LAYOUTS: Final = 64
_MAX_CREDIT: Final = 64
_PRICE: Final = 8


class _Run(NamedTuple):
    """Adjacent records of the same length whose varints have the same numbers of bytes."""

    start: int
    """The start of the first record, relative to the first record of the batch."""
    stop: int
    stride: int
    fixed: tuple[tuple[int, bytes], ...]
    """Positions in a record, each with the bytes that every record of the run must have there."""
    ends: tuple[int, ...]
    """The positions of the last byte of a timestamp or offset delta."""
    inner: tuple[int, ...]
    """The positions of the other bytes of a timestamp or offset delta."""
    value_at: int
    keys: Struct

    def read_keys(self, data: bytes, at: int) -> tuple[bytes, ...] | None:
        """Return the run's keys in a batch whose records start at `at`, or None if the layout differs."""
        start, stop, stride = at + self.start, at + self.stop, self.stride
        for position, same in self.fixed:
            if data[start + position : stop : stride] != same:
                return None
        for position in self.ends:
            if not data[start + position : stop : stride].isascii():
                return None
        for position in self.inner:
            if data[start + position : stop : stride].translate(None, _HIGH_BYTES):
                return None
        if data[start + self.value_at : stop : stride].translate(None, EVEN_BYTES):
            return None  # a record without a value
        return self.keys.unpack_from(data, start)


class _Layout(NamedTuple):
    """The layout of the records of a batch."""

    runs: tuple[_Run, ...]

    def read_keys(self, data: bytes, at: int) -> list[bytes | None] | None:
        """Return the keys of a batch whose records start at `at`, or None if the layout differs."""
        keys: list[bytes | None] = []
        for run in self.runs:
            found = run.read_keys(data, at)
            if found is None:
                return None
            keys += found
        return keys

    def starts(self, at: int) -> list[int]:
        """Return the start of each record, followed by the end of the last record."""
        starts: list[int] = []
        for run in self.runs:
            starts += range(at + run.start, at + run.stop, run.stride)
        starts.append(at + self.runs[-1].stop)
        return starts


class KeyReader:
    """A reader of keys that remembers the layouts of earlier batches."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, int], _Layout] = {}
        """The remembered layouts, by the size and the number of the records in a batch."""
        self._before = 0, 0
        self._credit = _MAX_CREDIT
        """The search for a layout costs _PRICE, and each use of a layout earns 1. A search needs credit."""

    def keys_of(self, data: bytes, at: int, end: int, count: int) -> RecordKeys:
        """Read the keys of `count` uncompressed records from `at` to `end`. Raises CorruptBatch."""
        shape = end - at, count
        layout = self._layouts.get(shape)
        if layout is not None:
            keys = layout.read_keys(data, at)
            if keys is not None:
                if self._credit < _MAX_CREDIT:
                    self._credit += 1
                return RecordKeys(keys, lambda: layout.starts(at))
        records = keys_of(data, at, end, count)
        # Two batches of the same size and count most likely have the same layout.
        if shape == self._before and self._credit >= _PRICE:
            self._credit -= _PRICE
            self._learn(shape, data, at, records)
        self._before = shape
        return records

    def _learn(self, shape: tuple[int, int], data: bytes, at: int, records: RecordKeys) -> None:
        layout = _layout_of(data, at, records)
        # Use the layout only if it reads the right keys in the batch that it was made from.
        if layout is not None and layout.read_keys(data, at) == records.keys:
            if len(self._layouts) == _MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[shape] = layout


def _layout_of(data: bytes, at: int, records: RecordKeys) -> _Layout | None:
    """Return the layout of the records that start at `at`, or None if the layout would not save time."""
    if records.has_null or records.tombstones or len(records.keys) < _MIN_RECORDS:
        return None
    runs: list[_Run] = []
    for start, stop, stride in _strides(records.starts):
        run = _run(data, at, start, stop, stride)
        if run is None or len(runs) == _MAX_RUNS:
            return None
        runs.append(run)
    return _Layout(tuple(runs))


def _strides(starts: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and record length of each run of records with the same length."""
    first = before = starts[0]
    stride = starts[1] - first
    for start in starts[1:]:
        if start - before != stride:
            yield first, before, stride
            first, stride = before, start - before
        before = start
    yield first, before, stride


def _run(data: bytes, at: int, start: int, stop: int, stride: int) -> _Run | None:
    length_bytes, timestamp_bytes, delta_bytes, size = head_of(data, start)
    if size & 1 or size > LONGEST_PLAIN_KEY << 1:
        return None
    count = (stop - start) // stride
    delta_at = length_bytes + 1 + timestamp_bytes
    size_at = delta_at + delta_bytes
    key_at, key_bytes = size_at + 1, size >> 1
    return _Run(
        start - at,
        stop - at,
        stride,
        tuple(
            (position, data[start + position : start + position + 1] * count)
            for position in (*range(length_bytes), size_at)
        ),
        (delta_at - 1, size_at - 1),
        (*range(length_bytes + 1, delta_at - 1), *range(delta_at, size_at - 1)),
        key_at + key_bytes,
        Struct(f"{key_at}x{key_bytes}s" + f"{stride - key_bytes}x{key_bytes}s" * (count - 1)),
    )
