"""Which batches and records of a log stay when it is cleaned, and what a batch becomes that loses some.

A batch that keeps its offsets, whatever is lost of it, is what clients and followers can go by: first offset,
last offset, producer, sequence, leader epoch and codec are those it was appended with. Records are copied as
they are. Only a batch that gets a delete horizon has its records written anew, since their timestamps count
from the base timestamp, whose place the horizon takes (KIP-534).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from broker.storage.cleaner.offset_map import OffsetMap
from broker.storage.cleaner.record_keys import RecordKeys, offsets_of, varint_rest
from broker.storage.cleaner.record_layouts import KeyReader
from broker.storage.cleaner.transactions import CleanedTransactions, marker_kind
from broker.storage.transaction_index import Aborted
from kwire.batch import (
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    CorruptBatch,
    crc_is_valid,
    seal,
)
from kwire.compression import Codec, CompressionError, compress, decompress

_HEADER = Struct(">qiibIhiqqqhii")
_NOT_PLAIN: Final = TRANSACTIONAL_MASK | CONTROL_MASK
_LONG_MAX: Final = (1 << 63) - 1
MOST_BATCH_BYTES: Final = 0x7FFFFFFF

GONE: Final = b""
"""Nothing stays of a batch."""


class LastOfProducer(NamedTuple):
    """What a log remembers of a producer that is still active."""

    last_offset: int | None
    """Where its last data ends; None when only a marker of it is remembered."""
    epoch: int


class Rules(NamedTuple):
    """What one cleaning goes by, beside the map."""

    now_ms: int
    delete_retention_ms: int
    first_dirty_offset: int
    upper_bound_offset: int
    last_of_producers: Mapping[int, LastOfProducer]


def plain_records(data: bytes, at: int, header: BatchHeader) -> tuple[bytes, int, int]:
    """Where the records of a batch lie, not compressed: the bytes, start and end. CorruptBatch."""
    end = at + header.size_bytes
    if not crc_is_valid(data, at, header):
        raise CorruptBatch(f"the batch at offset {header.base_offset} has a wrong CRC")
    if not header.attributes & CODEC_MASK:
        return data, at + HEADER_BYTES, end
    try:
        payload = decompress(
            header.codec, memoryview(data)[at + HEADER_BYTES : end], max_bytes=MOST_BATCH_BYTES
        )
    except CompressionError as error:
        raise CorruptBatch(f"the batch at offset {header.base_offset} does not decompress") from error
    return payload, 0, len(payload)


class BatchFilter:
    """Says of each batch of a log, in order, what stays of it."""

    def __init__(
        self,
        offset_map: OffsetMap,
        rules: Rules,
        transactions_from: Callable[[int], CleanedTransactions],
    ) -> None:
        """`transactions_from` is asked, at most once, at the offset of the first transactional batch."""
        self._map = offset_map
        self._rules = rules
        self._transactions_from = transactions_from
        self._transactions: CleanedTransactions | None = None
        self._survivors = offset_map.survivors()
        self._keys_of = KeyReader().keys_of
        self.records_read = 0
        self.records_kept = 0

    def filtered(self, data: bytes, at: int, header: BatchHeader) -> bytes | bytearray | None:
        """None: the batch stays as it is. Otherwise what takes its place: GONE, or a batch. CorruptBatch."""
        count = header.records_count
        self.records_read += count
        if header.attributes & _NOT_PLAIN:
            return self._in_transaction(data, at, header)
        if not count:
            return None if self._stays_empty(header) else GONE
        return self._data(data, at, header)

    def take_kept_transactions(self) -> list[Aborted]:
        """The aborted transactions whose markers were kept since the last call, for a transaction index."""
        if self._transactions is None:
            return []
        kept, self._transactions.kept = self._transactions.kept, []
        return kept

    def _in_transaction(self, data: bytes, at: int, header: BatchHeader) -> bytes | bytearray | None:
        transactions = self._transactions
        if transactions is None:
            transactions = self._transactions = self._transactions_from(header.base_offset)
        if header.is_control:
            return self._control(data, at, header, transactions)
        if transactions.data(header):
            return _emptied(header) if self._stays_empty(header) else GONE
        if not header.records_count:
            return None if self._stays_empty(header) else GONE
        return self._data(data, at, header)

    def _control(
        self, data: bytes, at: int, header: BatchHeader, transactions: CleanedTransactions
    ) -> bytes | bytearray | None:
        needless = transactions.marker(header, marker_kind(data, at, header))
        if not header.records_count:
            return None if self._stays_empty(header) else GONE
        if needless and header.has_delete_horizon and header.base_timestamp <= self._rules.now_ms:
            return _emptied(header) if self._stays_empty(header) else GONE
        self.records_kept += header.records_count
        if needless and not header.has_delete_horizon:
            payload, start, end = plain_records(data, at, header)
            return self._with_horizon(payload, [(start, end)], header, header.records_count)
        return None

    def _stays_empty(self, header: BatchHeader) -> bool:
        """Whether a batch is kept though none of its records is."""
        if header.next_offset == self._rules.upper_bound_offset:
            return True
        if not header.has_producer_id:
            return False
        last = self._rules.last_of_producers.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset is not None:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch

    # --- data

    def _data(self, data: bytes, at: int, header: BatchHeader) -> bytes | bytearray | None:
        base_offset, count = header.base_offset, header.records_count
        offset_map = self._map
        if (
            base_offset >= self._rules.first_dirty_offset
            and header.last_offset <= offset_map.latest_offset
            and base_offset not in offset_map.with_tombstones
        ):
            # The map has read this batch already: how many of its records survive says enough, mostly.
            survivors = self._survivors.of(base_offset, count)
            if len(survivors) == count:
                self.records_kept += count
                return None
            if not survivors:
                return _emptied(header) if self._stays_empty(header) else GONE
            payload, start, end = plain_records(data, at, header)
            records = self._keys_of(payload, start, end, count)
            chosen = _last_of_each(records.keys, set(survivors))
        else:
            payload, start, end = plain_records(data, at, header)
            records = self._keys_of(payload, start, end, count)
            chosen = self._chosen(payload, records, header)
        if not chosen:
            return _emptied(header) if self._stays_empty(header) else GONE
        kept = len(chosen)
        self.records_kept += kept
        ranges = _ranges(records.starts, chosen)
        if not header.has_delete_horizon and not set(records.tombstones).isdisjoint(chosen):
            return self._with_horizon(payload, ranges, header, kept)
        if kept == count:
            return None
        return _with_records(b"".join([payload[begin:stop] for begin, stop in ranges]), header, kept)

    def _chosen(self, data: bytes, records: RecordKeys, header: BatchHeader) -> list[int]:
        """Which records stay, by their indexes."""
        get = self._map.latest.get
        latest_offset = self._map.latest_offset
        base_offset = header.base_offset
        if header.last_offset > latest_offset:
            offsets = offsets_of(data, records.starts, base_offset)
            beyond = bisect_right(offsets, latest_offset)
        else:
            beyond = len(records.keys)
        known = records.keys[:beyond]
        # The map says nothing of a record without a key, which goes, nor of one whose key was not seen since.
        chosen = [
            index
            for index, latest in enumerate(map(get, known))
            if latest == base_offset or (latest is None and known[index] is not None)
        ]
        if header.last_offset >= self._rules.first_dirty_offset:
            last = set(_last_of_each(known, {known[index] for index in chosen}))
            chosen = [index for index in chosen if index in last or get(known[index]) is None]
        if records.tombstones and header.has_delete_horizon and header.base_timestamp <= self._rules.now_ms:
            tombstones = set(records.tombstones)
            chosen = [index for index in chosen if index not in tombstones]
        chosen += range(beyond, len(records.keys))
        return chosen

    def _with_horizon(
        self, data: bytes, ranges: list[tuple[int, int]], header: BatchHeader, count: int
    ) -> bytearray:
        """The batch with what stays of it, and the time from which on its tombstones may go."""
        rules = self._rules
        horizon_ms = min(rules.now_ms + rules.delete_retention_ms, _LONG_MAX)
        body = bytearray()
        for start, end in ranges:
            at = start
            while at < end:
                length, at = _unsigned(data, at)
                stop = at + (length >> 1)
                zigzag, rest = _unsigned(data, at + 1)
                timestamp = (
                    header.max_timestamp
                    if header.has_log_append_time
                    else header.base_timestamp + ((zigzag >> 1) ^ -(zigzag & 1))
                )
                delta = timestamp - horizon_ms
                record = data[at : at + 1] + _encoded((delta << 1) ^ (delta >> 63)) + data[rest:stop]
                body += _encoded(len(record) << 1)
                body += record
                at = stop
        max_timestamp = _max_timestamp(data, ranges, header)
        header = header._replace(
            attributes=header.attributes | DELETE_HORIZON_MASK,
            base_timestamp=horizon_ms,
            max_timestamp=max_timestamp,
        )
        return _batch(bytes(body), header, count)


def _last_of_each(keys: Sequence[bytes | None], wanted: set[bytes | None]) -> list[int]:
    """The last index of each key that is wanted, in order."""
    found = [index for index, key in enumerate(keys) if key in wanted]
    if len(found) > len(wanted):
        found = sorted({keys[index]: index for index in found}.values())
    return found


def _ranges(starts: list[int], chosen: list[int]) -> list[tuple[int, int]]:
    """Where the chosen records lie, neighbours as one."""
    ranges: list[tuple[int, int]] = []
    run_start = run_end = -1
    for index in chosen:
        start = starts[index]
        if start != run_end:
            if run_end >= 0:
                ranges.append((run_start, run_end))
            run_start = start
        run_end = starts[index + 1]
    if run_end >= 0:
        ranges.append((run_start, run_end))
    return ranges


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    return varint_rest(data, at + 1, value) if value > 0x7F else (value, at + 1)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _max_timestamp(data: bytes, ranges: list[tuple[int, int]], header: BatchHeader) -> int:
    """The greatest timestamp of the records in the ranges."""
    if header.has_log_append_time:
        return header.max_timestamp
    greatest = None
    for start, end in ranges:
        at = start
        while at < end:
            length = data[at]
            at += 1
            if length > 0x7F:
                byte = data[at]
                if byte < 0x80:
                    length = length & 0x7F | byte << 7
                    at += 1
                else:
                    length, at = varint_rest(data, at, length)
            zigzag = data[at + 1]
            if zigzag > 0x7F:
                byte = data[at + 2]
                if byte < 0x80:
                    zigzag = zigzag & 0x7F | byte << 7
                else:
                    zigzag, _ = varint_rest(data, at + 2, zigzag)
            at += length >> 1
            delta = (zigzag >> 1) ^ -(zigzag & 1)
            if greatest is None or delta > greatest:
                greatest = delta
    return NO_TIMESTAMP if greatest is None else header.base_timestamp + greatest


def _with_records(body: bytes, header: BatchHeader, count: int) -> bytearray:
    """The batch with fewer records."""
    max_timestamp = _max_timestamp(body, [(0, len(body))], header)
    return _batch(body, header._replace(max_timestamp=max_timestamp), count)


def _batch(body: bytes, header: BatchHeader, count: int) -> bytearray:
    codec = header.codec
    payload = body if codec == Codec.NONE else compress(codec, body)
    out = bytearray(HEADER_BYTES)
    out += payload
    _HEADER.pack_into(
        out, 0, *header._replace(batch_length=len(out) - LOG_OVERHEAD_BYTES, crc=0, records_count=count)
    )
    seal(out, 0, len(out))
    return out


def _emptied(header: BatchHeader) -> bytearray:
    """The batch without any record: its offsets, its producer and its greatest timestamp stay."""
    return _batch(
        b"",
        header._replace(
            attributes=header.attributes & (TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK),
            base_timestamp=NO_TIMESTAMP,
        ),
        0,
    )
