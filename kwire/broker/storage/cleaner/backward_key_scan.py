"""A backward scan of a log's dirty part: the first record that it reads with a key is the key's last record.

A set of the keys is sufficient. It takes less than half the time of a map from each key to its last batch.
The scan remembers which records of each batch are kept, so that the keys need not be read again when the log
is rewritten.

The cleaner uses `OffsetMap` instead in these cases: the keys of the complete dirty part do not fit into
memory, the dirty part has transactions, its batches have few records, or a batch is corrupt.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import chain
from typing import Final

from kwire.broker.storage.cleaner.batch_filter import BatchFilter, CleaningRules
from kwire.broker.storage.cleaner.batch_rebuild import (
    decompressed_records,
    last_index_of_each,
    ranges_of,
    with_records,
)
from kwire.broker.storage.cleaner.cleaned_transactions import CleanedTransactionMetadata
from kwire.broker.storage.cleaner.key_reader import KeyReader
from kwire.broker.storage.cleaner.offset_map import ENTRY_BYTES
from kwire.wire.batch import BatchHeader

KEPT_BYTES: Final = 200
"""The memory for a batch of which records are kept: a dictionary entry and an array."""
KEPT_RANGE_BYTES: Final = 8
TAKEN_BYTES: Final = 9
TOMBSTONE_BYTES: Final = 100

Kept = tuple[int, "array[int] | None"]
"""The number of kept records, and the start and end of each range of kept records (None: all are kept).

Positions are relative to the first record of the batch.
"""


class BackwardKeyScan:
    """The kept records of the dirty part. Batches are added in reverse order, the last one first."""

    def __init__(self, size_bytes: int) -> None:
        self.keys: set[bytes | None] = set()
        """The keys that were read. A long key is represented by its `hash_key`."""
        self.with_tombstones: set[int] = set()
        """The base offsets of batches with a tombstone."""
        self._size_bytes = size_bytes
        self._more_bytes = 0
        """The memory used besides the keys."""
        self._taken = array("q")
        """The base offsets of all batches, in descending order."""
        self._kept: dict[int, Kept] = {}
        self._keys_of = KeyReader().keys_of

    @property
    def is_too_large(self) -> bool:
        """Whether the memory limit is exceeded."""
        return len(self.keys) * ENTRY_BYTES + self._more_bytes > self._size_bytes

    def add_previous_batch(self, data: bytes, at: int, header: BatchHeader) -> None:
        """Add the batch that precedes all batches that were added before. Raises CorruptBatch."""
        payload, start, end = decompressed_records(data, at, header)
        records = self._keys_of(payload, start, end, header.records_count)
        self._taken.append(header.base_offset)
        self._more_bytes += TAKEN_BYTES
        if records.tombstones:
            self.with_tombstones.add(header.base_offset)
            self._more_bytes += TOMBSTONE_BYTES
        new = set(records.keys) - self.keys
        if records.has_null:
            new.discard(None)
        if not new:
            return
        self.keys |= new
        self._more_bytes += KEPT_BYTES
        if len(new) == header.records_count:
            self._kept[header.base_offset] = header.records_count, None
            return
        chosen = last_index_of_each(records.keys, new)
        ranges = ranges_of(records.starts, chosen)
        self._more_bytes += KEPT_RANGE_BYTES * len(ranges)
        positions = array("I", [position - start for position in chain.from_iterable(ranges)])
        self._kept[header.base_offset] = len(chosen), positions

    def was_read(self, base_offset: int) -> bool:
        """Return whether a batch was added to the scan. Calls must be in ascending order of base offsets."""
        taken = self._taken
        while taken and taken[-1] < base_offset:
            taken.pop()
        return bool(taken) and taken[-1] == base_offset

    def kept_of(self, base_offset: int) -> Kept | None:
        """Return the kept records of a batch that was added, or None if none of its records is kept."""
        return self._kept.get(base_offset)


class BackwardScanFilter(BatchFilter):
    """A batch filter for a cleaning with a backward scan."""

    def __init__(
        self,
        key_scan: BackwardKeyScan,
        rules: CleaningRules,
        transactions_of_log: Callable[[], CleanedTransactionMetadata],
    ) -> None:
        """`key_scan` must have read the complete dirty part. See BatchFilter for the other arguments."""
        super().__init__(rules, transactions_of_log)
        self._key_scan = key_scan

    def _filter_data(self, data: bytes, at: int, header: BatchHeader) -> bytes | bytearray | None:
        base_offset, count = header.base_offset, header.records_count
        key_scan = self._key_scan
        if base_offset < self._rules.first_dirty_offset:
            payload, start, end = decompressed_records(data, at, header)
            records = self._keys_of(payload, start, end, count)
            later = key_scan.keys
            chosen = [index for index, key in enumerate(records.keys) if key is not None and key not in later]
            return self._with_chosen(
                payload, records, self._without_old_tombstones(records, chosen, header), header
            )
        if not key_scan.was_read(base_offset):
            # The scan did not read this batch, so keep it.
            self.records_kept += count
            return None
        kept = key_scan.kept_of(base_offset)
        if kept is None:
            return self._emptied_or_removed(header)
        left, positions = kept
        if base_offset in key_scan.with_tombstones:
            payload, start, end = decompressed_records(data, at, header)
            records = self._keys_of(payload, start, end, count)
            chosen = list(range(count)) if positions is None else _within(positions, records.starts, start)
            return self._with_chosen(
                payload, records, self._without_old_tombstones(records, chosen, header), header
            )
        self.records_kept += left
        if positions is None:
            return None
        payload, start, _ = decompressed_records(data, at, header)
        begins, ends = positions[::2], positions[1::2]
        body = b"".join(
            [payload[start + begin : start + end] for begin, end in zip(begins, ends, strict=True)]
        )
        return with_records(body, header, left)


def _within(positions: array[int], starts: list[int], start: int) -> list[int]:
    """Return the indexes of the kept records of a batch.

    `positions` are the ranges in the batch's `Kept`, relative to `start`, the start of the first record.
    `starts` has the start of each record.
    """
    chosen: list[int] = []
    for begin, end in zip(positions[::2], positions[1::2], strict=True):
        chosen += range(bisect_left(starts, start + begin), bisect_left(starts, start + end))
    return chosen
