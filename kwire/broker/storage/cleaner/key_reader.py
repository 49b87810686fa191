"""Batches that are laid out like one before: their keys are taken in by what is known of that one.

A client whose records have one size fills batch after batch with as many of them, and then all that tells
where a key lies is at the same places: the lengths, how many bytes each varint has, the sizes of the keys.
These are compared column by column, each a slice with a stride; whatever differs is read record by record.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from kwire.broker.storage.cleaner.compiled_readers import head_of
from kwire.broker.storage.cleaner.record_keys import LONGEST_PLAIN_KEY, RecordKeys, keys_of
from kwire.wire.named_tuple import NamedTuple

_HIGH_BYTES: Final = bytes(range(0x80, 0x100))
"""With what a varint goes on."""
_MIN_RECORDS: Final = 6
_MAX_RUNS: Final = 4
_MAX_LAYOUTS: Final = 64
_MAX_CREDIT: Final = 64
_PRICE: Final = 8


class _Run(NamedTuple):
    """Neighbours of one length whose varints have as many bytes each."""

    start: int
    """Where the first one begins, counted from the first record of the batch."""
    stop: int
    stride: int
    fixed: tuple[tuple[int, bytes], ...]
    """Places in a record, and the bytes that all the records have there, one after the other."""
    ends: tuple[int, ...]
    """Where a timestamp or offset delta ends."""
    inner: tuple[int, ...]
    """Where one goes on."""
    value_at: int
    keys: Struct

    def read_keys(self, data: bytes, at: int) -> tuple[bytes, ...] | None:
        """The keys of such records in a batch whose first one is at `at`. None if they are others."""
        start, stop, stride = at + self.start, at + self.stop, self.stride
        for place, same in self.fixed:
            if data[start + place : stop : stride] != same:
                return None
        for place in self.ends:
            if not data[start + place : stop : stride].isascii():
                return None
        for place in self.inner:
            if data[start + place : stop : stride].translate(None, _HIGH_BYTES):
                return None
        if 1 in data[start + self.value_at : stop : stride]:
            return None  # a record without a value
        return self.keys.unpack_from(data, start)


class _Layout(NamedTuple):
    """How the records of a batch lie."""

    runs: tuple[_Run, ...]

    def read_keys(self, data: bytes, at: int) -> list[bytes | None] | None:
        """The keys of a batch like that, whose first record is at `at`. None if it is another."""
        keys: list[bytes | None] = []
        for run in self.runs:
            found = run.read_keys(data, at)
            if found is None:
                return None
            keys += found
        return keys

    def starts(self, at: int) -> list[int]:
        """Where its records begin, and behind them where the last one ends."""
        starts: list[int] = []
        for run in self.runs:
            starts += range(at + run.start, at + run.stop, run.stride)
        starts.append(at + self.runs[-1].stop)
        return starts


class KeyReader:
    """Reads the keys of batch after batch, and remembers how those before were laid out."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, int], _Layout] = {}
        """By how many bytes the records of a batch take, and how many there are."""
        self._before = 0, 0
        self._credit = _MAX_CREDIT
        """Layouts that do not come again are not worth finding out: each use earns a part of the price."""

    def keys_of(self, data: bytes, at: int, end: int, count: int) -> RecordKeys:
        """Read the `count` records that lie, not compressed, from `at` to `end`. CorruptBatch."""
        shape = end - at, count
        layout = self._layouts.get(shape)
        if layout is not None:
            keys = layout.read_keys(data, at)
            if keys is not None:
                if self._credit < _MAX_CREDIT:
                    self._credit += 1
                return RecordKeys(keys, lambda: layout.starts(at))
        records = keys_of(data, at, end, count)
        # The sizes of unlike records add up to the same sum only by chance.
        if shape == self._before and self._credit >= _PRICE:
            self._credit -= _PRICE
            self._learn(shape, data, at, records)
        self._before = shape
        return records

    def _learn(self, shape: tuple[int, int], data: bytes, at: int, records: RecordKeys) -> None:
        layout = _layout_of(data, at, records)
        # What it is to be right about in other batches, it has to be right about in its own.
        if layout is not None and layout.read_keys(data, at) == records.keys:
            if len(self._layouts) == _MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[shape] = layout


def _layout_of(data: bytes, at: int, records: RecordKeys) -> _Layout | None:
    """How the records lie that begin at `at`; None if it would be of no use."""
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
    """Where records of one length after each other begin and end, and their length."""
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
            (place, data[start + place : start + place + 1] * count)
            for place in (*range(length_bytes), size_at)
        ),
        (delta_at - 1, size_at - 1),
        (*range(length_bytes + 1, delta_at - 1), *range(delta_at, size_at - 1)),
        key_at + key_bytes,
        Struct(f"{key_at}x{key_bytes}s" + f"{stride - key_bytes}x{key_bytes}s" * (count - 1)),
    )
