"""The filter of the cleaner, record by record and bit by bit."""

from __future__ import annotations

import pytest

from kwire.broker.storage.cleaner.batch_filter import CleaningRules, LastRecord
from kwire.broker.storage.cleaner.batch_rebuild import REMOVED, decompressed_records
from kwire.broker.storage.cleaner.cleaned_transactions import CleanedTransactionMetadata
from kwire.broker.storage.cleaner.offset_map import OffsetMap, OffsetMapFilter
from kwire.broker.storage.cleaner.record_keys import LONGEST_PLAIN_KEY
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.wire.batch import CorruptBatch, NewRecord, build, crc_is_valid, read_header, records
from kwire.wire.compression import Codec

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LONG_KEY = b"k" * (LONGEST_PLAIN_KEY + 200)


def record(key: bytes | None, value: bytes | None, timestamp: int = NOW_MS) -> NewRecord:
    return timestamp, key, value, [("h", b"1")]


class Cleaning:
    """A log of batches that is read into an offset map and then filtered."""

    def __init__(
        self,
        batches: list[bytearray],
        *,
        first_dirty_offset: int = 0,
        upper_bound_offset: int = 1 << 40,
        capacity: int = 1000,
        now_ms: int = NOW_MS,
        delete_retention_ms: int = DAY_MS,
        last_records: dict[int, LastRecord] | None = None,
        aborted: list[AbortedTxn] | None = None,
    ) -> None:
        self.batches = [bytes(batch) for batch in batches]
        self.kept: list[bytes] | None = None
        self.map = OffsetMap(0)
        self.map.capacity = capacity
        for batch in self.batches:
            header = read_header(batch)
            if header.is_control or header.next_offset <= first_dirty_offset or self.map.is_full:
                continue
            if aborted is not None and header.is_transactional:
                continue
            payload, start, end = decompressed_records(batch, 0, header)
            self.map.add(payload, start, end, header.base_offset, header.records_count, first_dirty_offset)
            if not self.map.is_full:
                self.map.latest_offset = header.last_offset
        if not self.map.is_full:
            self.map.latest_offset = read_header(self.batches[-1]).last_offset
        rules = CleaningRules(
            now_ms, delete_retention_ms, first_dirty_offset, upper_bound_offset, last_records or {}
        )
        self.filter = OffsetMapFilter(self.map, rules, lambda: CleanedTransactionMetadata(aborted or [], 0))

    def run(self) -> list[bytes]:
        """Return the kept batches. The filter reads a log once, in order."""
        if self.kept is not None:
            return self.kept
        kept = self.kept = []
        for batch in self.batches:
            remaining = self.filter.filter_batch(batch, 0, read_header(batch))
            if remaining is None:
                kept.append(batch)
            elif remaining != REMOVED:
                header = read_header(remaining)
                assert crc_is_valid(remaining, 0, header)
                assert header.size_bytes == len(remaining)
                kept.append(bytes(remaining))
        return kept

    def remaining(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [
            (found.offset, found.key, found.value)
            for batch in self.run()
            for found in records(batch, 0, read_header(batch))
        ]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("key", [b"k", LONG_KEY, b""])
def test_last_record_of_a_key_keeps_its_offset(codec: Codec, key: bytes) -> None:
    first = build([record(key, b"1", NOW_MS + 7), record(b"other", b"2")], base_offset=10, codec=codec)
    second = build([record(key, b"3")], base_offset=12, codec=codec)
    cleaning = Cleaning([first, second])
    assert cleaning.remaining() == [(11, b"other", b"2"), (12, key, b"3")]
    header = read_header(cleaning.run()[0])
    assert (header.base_offset, header.last_offset, header.records_count) == (10, 11, 1)
    assert (header.codec, header.max_timestamp) == (codec, NOW_MS)
    assert (cleaning.filter.records_read, cleaning.filter.records_kept) == (3, 2)


def test_unchanged_batches_are_copied_byte_for_byte() -> None:
    batches = [build([record(b"%d" % n, b"v" * 200) for n in range(100)], base_offset=0)]
    assert Cleaning(batches).run() == [bytes(batches[0])]


def test_dirty_record_supersedes_a_clean_one() -> None:
    clean = build([record(b"a", b"1"), record(b"b", b"1"), record(b"c", b"1")])
    dirty = build([record(b"b", b"2")], base_offset=3)
    assert Cleaning([clean, dirty], first_dirty_offset=3).remaining() == [
        (0, b"a", b"1"),
        (2, b"c", b"1"),
        (3, b"b", b"2"),
    ]


def test_dirty_section_may_start_within_a_batch() -> None:
    batch = build([record(b"a", b"1"), record(b"a", b"2"), record(b"b", b"3")])
    assert Cleaning([batch], first_dirty_offset=1).remaining() == [(1, b"a", b"2"), (2, b"b", b"3")]


def test_records_beyond_a_full_offset_map_are_kept() -> None:
    first = build([record(b"a", b"1"), record(b"b", b"1"), record(b"a", b"2")])
    second = build([record(b"c", b"1"), record(b"d", b"1"), record(b"a", b"3")], base_offset=3)
    third = build([record(b"b", b"2")], base_offset=6)
    cleaning = Cleaning([first, second, third], capacity=3)
    assert cleaning.map.is_full
    assert cleaning.map.latest_offset == 3
    assert [offset for offset, _, _ in cleaning.remaining()] == [1, 2, 3, 4, 5, 6]


def test_records_without_a_key_are_removed_and_headers_kept() -> None:
    batch = build([record(None, b"1"), record(b"a", b"2")])
    (kept,) = Cleaning([batch]).run()
    (found,) = records(kept, 0, read_header(kept))
    assert found == (1, NOW_MS, b"a", b"2", [("h", b"1")])


def test_tombstone_is_kept_until_its_delete_horizon() -> None:
    batch = build([record(b"a", b"1", NOW_MS - 5), record(b"a", None, NOW_MS + 9), record(b"b", b"2")])
    (kept,) = Cleaning([batch]).run()
    header = read_header(kept)
    assert header.has_delete_horizon
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS + DAY_MS, NOW_MS + 9)
    found = list(records(kept, 0, header))
    assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == [
        (1, NOW_MS + 9, b"a", None),
        (2, NOW_MS, b"b", b"2"),
    ]
    again = [bytearray(kept)]
    assert Cleaning(again, first_dirty_offset=3, now_ms=NOW_MS + DAY_MS - 1).run() == [kept]
    later = Cleaning(again, first_dirty_offset=3, now_ms=NOW_MS + DAY_MS)
    assert later.remaining() == [(2, b"b", b"2")]
    (rest,) = later.run()
    assert read_header(rest).base_timestamp == NOW_MS + DAY_MS
    assert [each.timestamp for each in records(rest, 0, read_header(rest))] == [NOW_MS]


@pytest.mark.parametrize("key", [b"c", None], ids=["with a key", "without"])
def test_record_without_a_value_beyond_the_map_sets_the_delete_horizon(key: bytes | None) -> None:
    first = build([record(b"a", b"1"), record(b"b", b"1")])
    second = build([record(key, None), record(None, b"1")], base_offset=2)
    third = build([record(b"a", b"3")], base_offset=4)
    cleaning = Cleaning([first, second, third], capacity=2)
    cleaning.map.latest_offset = 1
    kept = cleaning.run()
    assert [read_header(batch).has_delete_horizon for batch in kept] == [False, True, False]
    assert read_header(kept[1]).base_timestamp == NOW_MS + DAY_MS
    assert cleaning.remaining()[2:4] == [(2, key, None), (3, None, b"1")]


def test_delete_horizon_is_limited_to_the_largest_timestamp() -> None:
    batch = build([record(b"a", None)])
    (kept,) = Cleaning([batch], delete_retention_ms=(1 << 63) - 1).run()
    assert read_header(kept).base_timestamp == (1 << 63) - 1
    assert next(records(kept, 0, read_header(kept))).timestamp == NOW_MS


def test_append_time_is_kept() -> None:
    batch = build([record(b"a", None, 5), record(b"b", b"1", 6)], log_append_time=NOW_MS)
    (kept,) = Cleaning([batch]).run()
    assert [each.timestamp for each in records(kept, 0, read_header(kept))] == [NOW_MS, NOW_MS]


def test_last_batch_of_a_producer_is_kept_empty() -> None:
    batches = [
        build([record(b"a", b"%d" % n)], base_offset=n, producer_id=7, producer_epoch=2, base_sequence=n)
        for n in range(3)
    ]
    batches.append(build([record(b"a", b"end")], base_offset=3))
    kept = Cleaning(batches, last_records={7: LastRecord(2, 2)}).run()
    header = read_header(kept[0])
    assert (header.base_offset, header.records_count, header.size_bytes) == (2, 0, 61)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (7, 2, 2)
    assert (header.base_timestamp, header.max_timestamp) == (-1, NOW_MS)
    again = Cleaning([bytearray(batch) for batch in kept], last_records={7: LastRecord(2, 2)})
    assert again.run() == kept
    assert len(Cleaning([bytearray(batch) for batch in kept]).run()) == 1


def test_last_batch_of_a_cleaning_is_kept_empty() -> None:
    batches = [build([record(b"a", b"1")]), build([record(None, b"2")], base_offset=1)]
    kept = Cleaning(batches, upper_bound_offset=2).run()
    assert [read_header(batch).records_count for batch in kept] == [1, 0]


def marker(kind: int, base_offset: int, producer_id: int = 7) -> bytearray:
    key, value = b"\0\0\0" + bytes([kind]), b"\0\0\0\0\0\0"
    return build(
        [(NOW_MS, key, value, [])],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


def transactional_batch(base_offset: int, producer_id: int = 7) -> bytearray:
    return build(
        [record(b"t", b"%d" % base_offset)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base_offset,
        transactional=True,
    )


def test_aborted_records_are_removed_before_their_marker() -> None:
    first = Cleaning(
        [transactional_batch(0), marker(0, 1), build([record(b"z", b"1")], base_offset=2)],
        aborted=[AbortedTxn(7, 0, 1, 2)],
    )
    kept = first.run()
    assert [read_header(batch).base_offset for batch in kept] == [1, 2]
    assert not read_header(kept[0]).has_delete_horizon
    second = Cleaning([bytearray(batch) for batch in kept], aborted=[]).run()
    assert read_header(second[0]).base_timestamp == NOW_MS + DAY_MS
    assert next(records(second[0], 0, read_header(second[0]))).key == b"\0\0\0\0"
    third = Cleaning([bytearray(batch) for batch in second], aborted=[], now_ms=NOW_MS + DAY_MS).run()
    assert [read_header(batch).base_offset for batch in third] == [2]


def test_commit_marker_is_kept_as_long_as_its_records() -> None:
    kept = Cleaning([transactional_batch(0), marker(1, 1)]).run()
    assert kept == [bytes(transactional_batch(0)), bytes(marker(1, 1))]
    superseded = Cleaning([marker(1, 1)]).run()
    assert read_header(superseded[0]).has_delete_horizon


def test_marker_as_last_batch_of_a_producer_is_kept_empty() -> None:
    only = {7: LastRecord(None, 0)}
    with_delete_horizon = Cleaning([marker(1, 1)]).run()
    kept = Cleaning([bytearray(with_delete_horizon[0])], now_ms=NOW_MS + DAY_MS, last_records=only).run()
    assert [(read_header(batch).records_count, read_header(batch).is_control) for batch in kept] == [
        (0, True)
    ]


def test_abort_marker_of_kept_records_is_kept() -> None:
    assert Cleaning([transactional_batch(0), marker(0, 1)]).run() == [
        bytes(transactional_batch(0)),
        bytes(marker(0, 1)),
    ]


def test_a_damaged_batch_is_not_rewritten() -> None:
    batch = build([record(b"a", b"1"), record(b"a", b"2")])
    cleaning = Cleaning([batch], first_dirty_offset=1)
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        cleaning.filter.filter_batch(bytes(batch), 0, read_header(batch))
