"""A map from each key in a log's dirty part to the last batch with the key. Kafka's OffsetMap.

Short keys are stored unchanged. Longer keys are stored as hashes. A hash is one byte longer than the longest
unchanged key, so that a key never equals the hash of another key. An entry takes about 160 bytes in a Python
dictionary, but 24 bytes in Kafka's table. So fewer keys fit into the same log.cleaner.dedupe.buffer.size, and
a log with very many keys needs more cleanings.

The map has the last batch of a key and not the last offset. So the offsets of records need not be decoded,
and all keys of a batch share one number. When the batch is read again, the last record of each key within the
batch is found.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kwire.broker.storage.cleaner.batch_filter import BatchFilter, CleaningRules
from kwire.broker.storage.cleaner.batch_rebuild import decompressed_records, last_index_of_each
from kwire.broker.storage.cleaner.cleaned_transactions import CleanedTransactionMetadata
from kwire.broker.storage.cleaner.key_reader import KeyReader
from kwire.broker.storage.cleaner.record_keys import RecordKeys, record_offsets
from kwire.wire.batch import BatchHeader

ENTRY_BYTES: Final = 160
"""The memory for an entry in bytes: the key object and its share of a dictionary that grows by doubling."""


class OffsetMap:
    """The last batch of each key. Batches are added from the first dirty offset on until the map is full."""

    def __init__(self, size_bytes: int) -> None:
        self.capacity = max(1, size_bytes // ENTRY_BYTES)
        self.latest: dict[bytes | None, int] = {}
        """The base offset of the last batch with each key. Records without a key are not in the map."""
        self.latest_offset = -1
        """The last offset that the map covers. All records after it are kept."""
        self.is_full = False
        self.with_tombstones: set[int] = set()
        """The base offsets of batches with a tombstone."""
        self.uncertain_producers: set[int] = set()
        """Producers whose committed transactional batches may not all be in the map."""
        self._keys_of = KeyReader().keys_of

    def add(self, data: bytes, at: int, end: int, base_offset: int, count: int, from_offset: int) -> None:
        """Add the uncompressed records of a batch, from `at` to `end`, except records before `from_offset`.

        If the map becomes full, `latest_offset` is the offset of the last record that was added. Raises
        CorruptBatch.
        """
        records = self._keys_of(data, at, end, count)
        if records.tombstones:
            self.with_tombstones.add(base_offset)
        if base_offset >= from_offset and len(self.latest) + count <= self.capacity:
            self.latest.update(dict.fromkeys(records.keys, base_offset))
            if records.has_null:
                del self.latest[None]
            return
        latest, last = self.latest, self.latest_offset
        offsets = record_offsets(data, records.starts, base_offset)
        for key, offset in zip(records.keys, offsets, strict=True):
            if key is None or offset < from_offset:
                continue
            # Stop even if the key is in the map, because no record may be skipped.
            if len(latest) >= self.capacity:
                self.is_full = True
                self.latest_offset = last
                return
            latest[key] = base_offset
            last = offset

    def survivors(self) -> Survivors:
        """Return the keys by their last batch. Must be called after the last `add`."""
        return Survivors(self.latest)


class Survivors:
    """The keys of the map by their last batch. Batches must be looked up in offset order."""

    def __init__(self, latest: Mapping[bytes | None, int]) -> None:
        self._keys = sorted(latest, key=latest.__getitem__)
        # The order is the order of the keys in the map, so that no lookup per key is necessary.
        self._bases = array("q", sorted(latest.values()))
        self._cursor = 0

    def of(self, base_offset: int, count: int) -> Sequence[bytes | None]:
        """Return the keys whose last record is in the batch with this base offset and `count` records."""
        bases, low = self._bases, self._cursor
        if low < len(bases) and bases[low] < base_offset:
            low = bisect_left(bases, base_offset, low)
        high = self._cursor = bisect_right(bases, base_offset, low, min(low + count, len(bases)))
        return self._keys[low:high]


class OffsetMapFilter(BatchFilter):
    """A batch filter for a cleaning with a forward scan, which fills an `OffsetMap` (key to last batch)."""

    def __init__(
        self,
        offset_map: OffsetMap,
        rules: CleaningRules,
        transactions_of_log: Callable[[], CleanedTransactionMetadata],
    ) -> None:
        """`offset_map` must be complete. See BatchFilter for the other arguments."""
        super().__init__(rules, transactions_of_log)
        self._map = offset_map
        self._survivors = offset_map.survivors()

    def _filter_data(self, data: bytes, at: int, header: BatchHeader) -> bytes | bytearray | None:
        base_offset, count = header.base_offset, header.records_count
        offset_map = self._map
        if (
            base_offset >= self._rules.first_dirty_offset
            and header.last_offset <= offset_map.latest_offset
            and base_offset not in offset_map.with_tombstones
            and header.producer_id not in offset_map.uncertain_producers
        ):
            # The map has this batch. Usually the number of keys with their last record in it is sufficient.
            survivors = self._survivors.of(base_offset, count)
            if len(survivors) == count:
                self.records_kept += count
                return None
            if not survivors:
                return self._emptied_or_removed(header)
            payload, start, end = decompressed_records(data, at, header)
            records = self._keys_of(payload, start, end, count)
            chosen = last_index_of_each(records.keys, set(survivors))
        else:
            payload, start, end = decompressed_records(data, at, header)
            records = self._keys_of(payload, start, end, count)
            chosen = self._chosen(payload, records, header)
        return self._with_chosen(payload, records, chosen, header)

    def _chosen(self, data: bytes, records: RecordKeys, header: BatchHeader) -> list[int]:
        """Return the indexes of the records to keep."""
        get = self._map.latest.get
        latest_offset = self._map.latest_offset
        base_offset = header.base_offset
        if header.last_offset > latest_offset:
            offsets = record_offsets(data, records.starts, base_offset)
            beyond = bisect_right(offsets, latest_offset)
        else:
            beyond = len(records.keys)
        known = records.keys[:beyond]
        # A record that the map does not cover is kept if it has a key, and removed otherwise.
        chosen = [
            index
            for index, latest in enumerate(map(get, known))
            if (known[index] is not None if latest is None else latest <= base_offset)
        ]
        if header.last_offset >= self._rules.first_dirty_offset:
            last = set(last_index_of_each(known, {known[index] for index in chosen}))
            chosen = [index for index in chosen if index in last or get(known[index]) != base_offset]
        chosen = self._without_old_tombstones(records, chosen, header)
        chosen += range(beyond, len(records.keys))
        return chosen
