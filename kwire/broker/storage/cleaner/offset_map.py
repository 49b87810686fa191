"""Where the last record of each key in the dirty part of a log is, within a bound of memory.

Short keys are kept as they are. Of others there is a hash, one byte longer than the longest key that is kept
itself, so that no key can be mistaken for another's hash. A dictionary of Python's needs some 160 bytes an
entry, where Kafka's table needs 24: with the same buffer fewer keys fit, and a log with very many of them
takes more rounds. What it is about is that the buffer's size is what it says.

The map knows a key's last batch, not its last offset. A number that all keys of a batch share is written at
half the price of one for each; and which of a key's records within its batch is the last one is seen easily,
when the batch is read again.
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
"""What an entry costs: the key as an object, and its place in a dictionary that grows by doubling."""


class OffsetMap:
    """Keys and their last batches, filled from the first dirty offset on until it is full."""

    def __init__(self, size_bytes: int) -> None:
        self.capacity = max(1, size_bytes // ENTRY_BYTES)
        self.latest: dict[bytes | None, int] = {}
        """The base offset of the last batch with a key. There is no entry for None."""
        self.latest_offset = -1
        """What was taken in ends here: records beyond it stay."""
        self.is_full = False
        self.with_tombstones: set[int] = set()
        """The base offsets of batches with a tombstone."""
        self.uncertain_producers: set[int] = set()
        """Those whose batches of transactions may have been left out though they were not aborted."""
        self._keys_of = KeyReader().keys_of

    def add(self, data: bytes, at: int, end: int, base_offset: int, count: int, from_offset: int) -> None:
        """Take in the records of a batch, which lie, not compressed, from `at` to `end`.

        Records before `from_offset` do not count. CorruptBatch. When the map becomes `full`, `latest_offset`
        is that of the last record that went in.
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
            if len(latest) >= self.capacity:  # what is not new would have no place either
                self.is_full = True
                self.latest_offset = last
                return
            latest[key] = base_offset
            last = offset

    def survivors(self) -> Survivors:
        """What stays of the batches that were taken in. To be asked for when the map is complete."""
        return Survivors(self.latest)


class Survivors:
    """The keys that stay, batch by batch. It is asked for one batch after the other."""

    def __init__(self, latest: Mapping[bytes | None, int]) -> None:
        self._keys = sorted(latest, key=latest.__getitem__)
        # In the order of the keys, and without a look-up for each.
        self._bases = array("q", sorted(latest.values()))
        self._cursor = 0

    def of(self, base_offset: int, count: int) -> Sequence[bytes | None]:
        """The keys whose last record is in this batch of `count` records."""
        bases, low = self._bases, self._cursor
        if low < len(bases) and bases[low] < base_offset:
            low = bisect_left(bases, base_offset, low)
        high = self._cursor = bisect_right(bases, base_offset, low, min(low + count, len(bases)))
        return self._keys[low:high]


class OffsetMapFilter(BatchFilter):
    """Goes by a map."""

    def __init__(
        self,
        offset_map: OffsetMap,
        rules: CleaningRules,
        transactions_of_log: Callable[[], CleanedTransactionMetadata],
    ) -> None:
        """The map has to be complete."""
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
            # The map has read this batch already: how many of its records survive says enough, mostly.
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
        """Which records stay, by their indexes."""
        get = self._map.latest.get
        latest_offset = self._map.latest_offset
        base_offset = header.base_offset
        if header.last_offset > latest_offset:
            offsets = record_offsets(data, records.starts, base_offset)
            beyond = bisect_right(offsets, latest_offset)
        else:
            beyond = len(records.keys)
        known = records.keys[:beyond]
        # The map says nothing of a record without a key, which goes, nor of one whose key was not seen since.
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
