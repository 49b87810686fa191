"""Logs with transactions, cleaned while others are open: what is committed stays, what was aborted goes."""

from __future__ import annotations

import random

import pytest

from kwire.broker.storage.checkpoints import CLEANED_OFFSETS, write_offsets
from kwire.broker.storage.cleaner.cleaned_transactions import CleanedTransactionMetadata
from kwire.broker.storage.cleaner.log_cleaner import LogCleaner
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.wire.batch import ABORT, COMMIT, BatchHeader, build, read_header
from tests.broker.storage.cleaner.test_log_cleaner import COMPACT, Bench
from tests.broker.storage.log_bench import committed, end_transaction


class World(Bench):
    """A log of small segments, and what a reader of committed records is to find at last."""

    def __init__(self) -> None:
        super().__init__(config=COMPACT._replace(segment_bytes=250))
        self.create()
        self.sequences: dict[int, int] = {}

    def write(self, key: bytes, value: bytes, producer_id: int | None = None) -> int:
        """Append a record, in the producer's transaction if one is named: its offset."""
        offset = self.log.log_end_offset
        if producer_id is None:
            self.send((key, value))
            return offset
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        self.send(
            (key, value),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        return offset

    def end(self, producer_id: int, kind: int) -> None:
        end_transaction(self.log, producer_id, kind, now_ms=self.host.now_ms())

    def roll(self) -> None:
        before = len(self.log.segments)
        while len(self.log.segments) == before:
            self.write(b"filler", bytes(100))

    def committed(self) -> dict[bytes | None, bytes | None]:
        """The last value of each key, but for fillers, as a read_committed consumer sees it."""
        found = {record.key: record.value for record in committed(self.log)}
        found.pop(b"filler", None)
        return found


def indexed(log: Log) -> list[AbortedTxn]:
    return [entry for segment in log.segments for entry in segment.aborted()]


@pytest.mark.parametrize("cleaned_while_open", [True, False])
def test_a_transaction_that_was_aborted_while_another_was_open_supersedes_nothing(
    *, cleaned_while_open: bool
) -> None:
    """Its marker is behind the last stable offset, up to which the log is cleaned."""
    world = World()
    world.write(b"K", b"committed")
    world.write(b"K", b"aborted", producer_id=1)
    world.roll()
    world.write(b"Y", b"y", producer_id=2)
    world.end(1, ABORT)
    world.roll()
    if cleaned_while_open:
        world.pass_time()
        assert world.cleaner.completed_cleanings
        assert world.log.segments[0].base_offset < world.log.last_stable_offset
    world.end(2, COMMIT)
    assert world.committed() == {b"K": b"committed", b"Y": b"y"}
    world.roll()
    world.pass_time()
    assert world.committed() == {b"K": b"committed", b"Y": b"y"}


def test_an_entry_of_the_index_stays_as_it_is_when_its_first_records_go() -> None:
    world = World()
    first = world.write(b"a", b"1", producer_id=1)
    world.roll()
    world.write(b"b", b"1", producer_id=1)
    world.end(1, ABORT)
    (entry,) = indexed(world.log)
    assert entry.first_offset == first
    world.roll()
    world.pass_time()
    assert indexed(world.log) == [entry]
    # Its last batch stays, without a record, until its producer has written another one.
    world.write(b"c", b"1", producer_id=1)
    world.end(1, COMMIT)
    for _ in range(2):
        world.roll()
        world.pass_time()
    assert indexed(world.log) == []
    assert world.committed() == {b"c": b"1"}


@pytest.mark.parametrize("seed", range(60))
def test_cleaning_changes_nothing_that_a_reader_of_committed_records_finds(seed: int) -> None:
    draw = random.Random(seed)
    world = World()
    expected: dict[bytes | None, bytes | None] = {}
    open_ones: dict[int, list[tuple[int, bytes, bytes]]] = {}
    last: dict[bytes | None, int] = {}

    def settle(written: list[tuple[int, bytes, bytes]]) -> None:
        for offset, key, value in written:
            # By offset, whichever transaction ends first.
            if offset > last.get(key, -1):
                last[key], expected[key] = offset, value

    def finish(producer_id: int) -> None:
        kind = draw.choice([ABORT, COMMIT])
        world.end(producer_id, kind)
        written = open_ones.pop(producer_id)
        if kind == COMMIT:
            settle(written)

    for number in range(120):
        key, value = b"k%d" % draw.randrange(5), b"v%d" % number
        producer_id = draw.choice([None, 1, 2, 3])
        offset = world.write(key, value, producer_id)
        if producer_id is None:
            settle([(offset, key, value)])
        else:
            open_ones.setdefault(producer_id, []).append((offset, key, value))
        if open_ones and draw.random() < 0.3:
            finish(draw.choice(sorted(open_ones)))
        if draw.random() < 0.1:
            world.pass_time()
    for producer_id in sorted(open_ones):
        finish(producer_id)
    for _ in range(3):
        assert world.committed() == expected
        world.roll()
        world.pass_time()
    assert world.cleaner.completed_cleanings > 2
    assert world.committed() == expected


def header_of(offset: int, producer_id: int, kind: int | None = None) -> BatchHeader:
    """Of a transactional batch of one record, or of a marker of this kind."""
    record = (0, bytes(4), bytes(6), []) if kind is not None else (0, b"k", b"v", [])
    built = build(
        [record],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1 if kind is not None else 0,
        transactional=True,
        control=kind is not None,
    )
    return read_header(built)


def test_what_ended_before_the_log_start_is_not_known_to_be_aborted() -> None:
    """Its data stays while it lies in the same segment, and its marker with it; the index has no entry."""
    followed = CleanedTransactionMetadata([AbortedTxn(1, 0, 1, 2)], log_start_offset=2)
    assert not followed.on_batch_read(header_of(0, 1))
    assert not followed.on_control_batch_read(header_of(1, 1, ABORT), ABORT)
    assert not followed.on_control_batch_read(header_of(5, 1, COMMIT), COMMIT)
    assert followed.kept == []


def test_data_before_the_log_start_without_a_marker_has_none_behind_it() -> None:
    """Apache Kafka's cleaner has dropped the marker, and left the data."""
    followed = CleanedTransactionMetadata([], log_start_offset=2)
    assert not followed.on_batch_read(header_of(0, 1))
    assert followed.on_control_batch_read(header_of(5, 1, ABORT), ABORT)


def test_a_transaction_that_ended_before_the_log_start_is_not_open_after_a_crash() -> None:
    world = World()
    world.cleaner.stop()
    world.write(b"a", b"aborted", producer_id=1)
    world.end(1, ABORT)
    world.log.delete_records_before(world.log.log_end_offset)
    world.config = world.log.config = world.config._replace(delete_retention_ms=0)
    world.cleaner = LogCleaner(world.manager, world.settings, world.host, world.disk)
    world.cleaner.start()
    for number in range(3):
        world.write(b"k", b"%d" % number)
        world.roll()
        world.pass_time()
    assert world.cleaner.completed_cleanings == 3
    assert world.log.segments[0].base_offset == 0
    world.manager.write_checkpoints()
    world.cleaner.stop()
    world.disk.kill()
    world.open()
    assert not world.log.producers.ongoing
    assert world.log.last_stable_offset == world.log.high_watermark > 0


def test_an_abort_marker_that_the_indexes_do_not_know_of_stays_while_there_is_data() -> None:
    followed = CleanedTransactionMetadata([], log_start_offset=0)
    assert not followed.on_batch_read(header_of(0, 1))
    assert not followed.on_control_batch_read(header_of(1, 1, ABORT), ABORT)
    assert followed.on_control_batch_read(header_of(2, 1, ABORT), ABORT)


def test_an_abort_marker_before_the_place_where_reading_begins_is_not_met() -> None:
    """As in Apache Kafka: the producer's next transaction supersedes nothing, and loses nothing either."""
    world = World()
    world.config = world.config._replace(segment_bytes=1000)
    world.log.config = world.config
    world.write(b"k", b"old")
    world.write(b"a", b"aborted", producer_id=1)
    world.end(1, ABORT)
    world.write(b"other", b"old")
    middle = world.log.log_end_offset
    world.write(b"other", b"new")
    world.write(b"k", b"new", producer_id=1)
    world.end(1, COMMIT)
    world.roll()
    write_offsets(world.disk, f"/data/{CLEANED_OFFSETS}", {("t", 0): middle})
    world.cleaner.stop()
    world.cleaner = LogCleaner(world.manager, world.settings, world.host, world.disk)
    world.cleaner.start()
    world.pass_time()
    assert world.cleaner.completed_cleanings == 1
    found = [(record.key, record.value) for record in committed(world.log) if record.key != b"filler"]
    assert found == [(b"k", b"old"), (b"other", b"new"), (b"k", b"new")]
