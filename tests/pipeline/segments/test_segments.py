"""The segment source against logs that the broker's own storage has written."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.log.log import Log
from kwire.pipeline.segments.files import SegmentsError, partitions_in
from kwire.pipeline.segments.options import parse
from kwire.pipeline.segments.plan import Range, offset_for_timestamp, plan
from kwire.pipeline.segments.read import MAX_TIMESTAMP_MS, SCHEMA, SCHEMA_WITH_HEADERS, check_columns, read
from kwire.pipeline.segments.scan import (
    CorruptSegment,
    SegmentFile,
    chunks_between,
    end_offset,
    stable_offset,
)
from kwire.wire.batch import ABORT, COMMIT, build, update_crc
from kwire.wire.compression import Codec
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, end_transaction

Row = tuple[int, bytes | None]


@pytest.fixture
def bench(tmp_path: Path) -> LogHarness:
    made = LogHarness(RealDisk(), str(tmp_path))
    made.config = made.config._replace(segment_bytes=1500, index_interval_bytes=300)
    return made


@pytest.fixture
def log(bench: LogHarness) -> Log:
    """500 records in batches of all codecs and several sizes, over many segments."""
    opened = bench.open()
    draw = random.Random(7)
    number = 0
    while number < 500:
        count = min(draw.choice([1, 3, 20]), 500 - number)
        values = [b"%d" % (number + each) * draw.choice([1, 9]) for each in range(count)]
        sent = batch(*values, timestamp=NOW_MS + number * 1000, codec=draw.choice(list(Codec)))
        bench.send(opened, sent)
        number += count
    return opened


def options(bench: LogHarness, **given: str) -> dict[str, str]:
    return {"path": str(Path(bench.directory).parent), "subscribe": "topic", **given}


def ranges(bench: LogHarness, **given: str) -> list[Range]:
    return plan(parse(options(bench, **given)))


def rows(found: list[Range]) -> list[Row]:
    return [
        (offset, value)
        for range_ in found
        for table in read(range_, headers=False)
        for offset, value in zip(
            table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True
        )
    ]


def expected(log: Log) -> list[Row]:
    from tests.broker.storage.log_harness import offsets_and_values

    return offsets_and_values(log)


def touching(monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Count the bytes that are read from each segment from now on."""
    found: dict[Path, int] = {}
    read_at = SegmentFile.read_at

    def noting(file: SegmentFile, position: int, size_bytes: int) -> bytes:
        data = read_at(file, position, size_bytes)
        found[file.path] = found.get(file.path, 0) + len(data)
        return data

    monkeypatch.setattr(SegmentFile, "read_at", noting)
    return found


def in_transaction(bench: LogHarness, log: Log, producer_id: int, sequence: int, *values: bytes) -> None:
    sent = batch(
        *values, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    bench.send(log, sent)


class TestRead:
    def test_everything(self, bench: LogHarness, log: Log) -> None:
        found = ranges(bench)
        assert len(log.segments) > 5
        assert len(found) >= len(log.segments)
        assert rows(found) == expected(log)
        assert [one.start for one in found[1:]] == [one.end for one in found[:-1]]

    @pytest.mark.parametrize("target", ["1", "700", "100000"])
    def test_in_parts_of_any_size(self, bench: LogHarness, log: Log, target: str) -> None:
        assert rows(ranges(bench, targetPartitionBytes=target)) == expected(log)

    @pytest.mark.parametrize(
        "given",
        [
            {"startingOffsets": '{"topic": {"0": 300}}', "endingOffsets": '{"topic": {"0": 200}}'},
            {"startingOffsets": '{"topic": {"0": 600}}'},
            {"startingOffsets": "latest", "endingOffsets": '{"topic": {"0": 200}}'},
        ],
    )
    @pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
    def test_a_start_after_the_end_is_an_error(
        self, bench: LogHarness, log: Log, given: dict[str, str], fail_on_data_loss: str
    ) -> None:
        with pytest.raises(SegmentsError, match=r"topic-0: the start offset \d+ is after the end offset \d+"):
            ranges(bench, failOnDataLoss=fail_on_data_loss, **given)

    def test_in_at_least_min_partitions_tasks(self, bench: LogHarness, log: Log) -> None:
        found = ranges(bench, minPartitions="130")
        assert len(found) == 130
        assert rows(found) == expected(log)

    @pytest.mark.parametrize(("start", "end"), [(0, 1), (17, 18), (100, 433), (499, 500), (20, 20)])
    def test_from_one_offset_to_another(self, bench: LogHarness, log: Log, start: int, end: int) -> None:
        given = {
            "startingOffsets": f'{{"topic": {{"0": {start}}}}}',
            "endingOffsets": f'{{"topic": {{"0": {end}}}}}',
        }
        assert rows(ranges(bench, **given)) == expected(log)[start:end]

    def test_from_a_timestamp_to_another(self, bench: LogHarness, log: Log) -> None:
        given = {"startingTimestamp": str(NOW_MS + 100_000), "endingTimestamp": str(NOW_MS + 200_000)}
        found = rows(ranges(bench, **given))
        assert found
        timestamps = {
            offset: NOW_MS + batch_start * 1000 + offset - batch_start
            for batch_start, offset in batch_starts(log)
        }
        wanted = [
            offset
            for offset in range(500)
            if first_from(timestamps, NOW_MS + 100_000) <= offset < first_from(timestamps, NOW_MS + 200_000)
        ]
        assert [offset for offset, _ in found] == wanted

    def test_only_selected_bytes_are_read(
        self, bench: LogHarness, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = LogHarness(RealDisk(), str(tmp_path), bench.config)
        for name in ("topic-1", "other-0"):
            other.directory = f"{tmp_path}/{name}"
            other.append(other.open(), b"1")
        touched = touching(monkeypatch)
        before, inside, after = [(one.base_offset, Path(one.log_path)) for one in log.segments[4:7]]
        last = Path(log.segments[-1].log_path)
        given = {"path": str(tmp_path), "assign": '{"topic": [0]}'}

        start, end = after[0] - 2, after[0] - 1
        bounds = {"startingOffsets": start, "endingOffsets": end}
        between = {name: f'{{"topic": {{"0": {offset}}}}}' for name, offset in bounds.items()}
        assert rows(plan(parse({**given, **between}))) == expected(log)[start:end]
        # The end of the last segment is always read.
        assert touched.keys() == {inside[1], last}
        assert touched[inside[1]] < inside[1].stat().st_size

        touched.clear()
        late_ms = NOW_MS + inside[0] * 1000
        late = rows(plan(parse({**given, "startingTimestamp": str(late_ms)})))
        assert [offset for offset, _ in late] == list(range(inside[0], 500))
        assert min(touched) >= before[1]

    def test_a_timestamp_that_only_some_partitions_reach(
        self, bench: LogHarness, log: Log, tmp_path: Path
    ) -> None:
        other = LogHarness(RealDisk(), str(tmp_path), bench.config)
        other.directory = f"{tmp_path}/topic-1"
        other.append(other.open(), b"1")
        given = {"startingTimestamp": str(NOW_MS + 300_000)}
        with pytest.raises(SegmentsError, match="topic-1 has no record with timestamp"):
            ranges(bench, **given)
        found = ranges(bench, **given, startingOffsetsByTimestampStrategy="latest")
        assert {one.partition for one in found} == {0}

    def test_columns_match_sparks_kafka_source(self, bench: LogHarness) -> None:
        log = bench.open()
        bench.send(log, memoryview(build([(NOW_MS, b"k", None, [("h", b"1")]), (NOW_MS, None, b"v", [])])))
        [plain] = read(ranges(bench)[0], headers=False)
        assert plain.schema == SCHEMA
        [table] = read(ranges(bench)[0], headers=True)
        assert table.schema == SCHEMA_WITH_HEADERS
        first, second = table.to_pylist()
        assert first.pop("timestamp").timestamp() == NOW_MS / 1000
        assert first == {
            "key": b"k",
            "value": None,
            "topic": "topic",
            "partition": 0,
            "offset": 0,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"1"}],
        }
        assert (second["key"], second["value"], second["headers"]) == (None, b"v", None)

    def test_an_empty_log_has_no_records(self, bench: LogHarness) -> None:
        bench.open()
        assert ranges(bench) == []

    def test_records_after_delete_records(self, bench: LogHarness, log: Log, tmp_path: Path) -> None:
        (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\ntopic 0 123\n")
        assert rows(ranges(bench)) == expected(log)[123:]
        with pytest.raises(SegmentsError, match="topic-0 has the offsets 123 to 500, not 5"):
            ranges(bench, startingOffsets='{"topic": {"0": 5}}')
        given = {"startingOffsets": '{"topic": {"0": 5}}', "failOnDataLoss": "false"}
        assert rows(ranges(bench, **given)) == expected(log)[123:]

    def test_without_indexes(self, bench: LogHarness, log: Log) -> None:
        bench.close(log)
        for path in Path(bench.directory).glob("*index"):
            path.unlink()
        assert [offset for offset, _ in rows(ranges(bench, targetPartitionBytes="1"))] == list(range(500))
        assert offset_for_timestamp(ranges(bench)[0].log, NOW_MS + 400_000) is not None


def batch_starts(log: Log) -> Iterator[tuple[int, int]]:
    from kwire.wire.batch import batches

    for segment in log.segments:
        data = Path(segment.log_path).read_bytes()
        for _, header in batches(data):
            for offset in range(header.base_offset, header.next_offset):
                yield header.base_offset, offset


def first_from(timestamps: dict[int, int], timestamp_ms: int) -> int:
    return next(offset for offset, at in sorted(timestamps.items()) if at >= timestamp_ms)


class TestTimestampsTooLargeForSpark:
    """Timestamps that do not fit into 64 bits as microseconds."""

    @pytest.fixture
    def bench(self, bench: LogHarness) -> LogHarness:
        times = [NOW_MS, MAX_TIMESTAMP_MS, -MAX_TIMESTAMP_MS, NOW_MS, NOW_MS * 1_000_000, NOW_MS]
        log = bench.open()
        log.append_stored(memoryview(build([(time_ms, None, b"v", []) for time_ms in times])))
        log.commit()
        return bench

    @pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
    def test_are_a_one_sentence_error(self, bench: LogHarness, on_corrupt: str) -> None:
        with pytest.raises(SegmentsError) as raised:
            rows(ranges(bench, onCorrupt=on_corrupt))
        assert str(raised.value) == (
            f"{bench.directory}/{0:020d}.log has timestamp 1700000000000000000 ms at offset 4 of topic-0, "
            "which is too large for Spark (is it in nanoseconds?): exclude the offset or the column "
            "timestamp"
        )

    def test_are_ignored_if_not_selected(self, bench: LogHarness) -> None:
        [found] = read(ranges(bench)[0], columns=["offset", "value"])
        assert found.num_rows == 6
        told = []
        for start, end in ((0, 4), (5, 6)):
            bounds = {"startingOffsets": start, "endingOffsets": end}
            given = {name: f'{{"topic": {{"0": {offset}}}}}' for name, offset in bounds.items()}
            for batch_ in read(ranges(bench, **given)[0]):
                told += batch_.column("timestamp").cast(pa.int64()).to_pylist()
        most_us = MAX_TIMESTAMP_MS * 1000
        assert told == [NOW_MS * 1000, most_us, -most_us, NOW_MS * 1000, NOW_MS * 1000]


class TestTransactions:
    @pytest.fixture
    def log(self, bench: LogHarness) -> Log:
        log = bench.open()
        in_transaction(bench, log, 1, 0, b"a1")  # 0, aborted
        in_transaction(bench, log, 2, 0, b"c1")  # 1, committed
        bench.append(log, b"plain")  # 2
        end_transaction(log, 1, ABORT, now_ms=bench.now_ms)  # 3
        in_transaction(bench, log, 1, 1, b"c2")  # 4, committed
        end_transaction(log, 2, COMMIT, now_ms=bench.now_ms)  # 5
        end_transaction(log, 1, COMMIT, now_ms=bench.now_ms)  # 6
        in_transaction(bench, log, 2, 1, b"a2")  # 7, aborted
        end_transaction(log, 2, ABORT, now_ms=bench.now_ms)  # 8
        bench.append(log, b"before")  # 9
        in_transaction(bench, log, 1, 2, b"open")  # 10
        bench.append(log, b"after")  # 11
        return log

    def test_markers_are_not_records(self, bench: LogHarness, log: Log) -> None:
        offsets = [offset for offset, _ in rows(ranges(bench))]
        assert offsets == [0, 1, 2, 4, 7, 9, 10, 11]

    @pytest.mark.parametrize("target", ["1", "100000"])
    @pytest.mark.parametrize("name", ["isolationLevel", "kafka.isolation.level"])
    def test_read_committed_skips_aborted_records(
        self, bench: LogHarness, log: Log, target: str, name: str
    ) -> None:
        found = rows(ranges(bench, **{name: "read_committed", "targetPartitionBytes": target}))
        assert found == [(1, b"c1"), (2, b"plain"), (4, b"c2"), (9, b"before")]

    def test_the_last_stable_offset(self, bench: LogHarness, log: Log) -> None:
        [partition] = partitions_in([str(Path(bench.directory).parent)])
        assert end_offset(partition) == 12
        assert stable_offset(partition, 12) == 10
        assert stable_offset(partition, 9) == 9
        log.roll(bench.now_ms)  # writes a producer snapshot
        assert list(Path(bench.directory).glob("*.snapshot"))
        assert stable_offset(partition, 12) == 10
        end_transaction(log, 1, COMMIT, now_ms=bench.now_ms)
        assert stable_offset(partition, 13) == 13

    def test_a_timestamp_after_the_last_stable_offset_is_not_found(self, bench: LogHarness, log: Log) -> None:
        bench.send(log, batch(b"late", timestamp=NOW_MS + 60_000))  # 12
        late, committed = str(NOW_MS + 30_000), "read_committed"
        found = rows(ranges(bench, endingTimestamp=late, isolationLevel=committed))
        assert [offset for offset, _ in found] == [1, 2, 4, 9]
        assert [offset for offset, _ in rows(ranges(bench, startingTimestamp=late))] == [12]
        with pytest.raises(SegmentsError, match="topic-0 has no record with timestamp"):
            ranges(bench, startingTimestamp=late, isolationLevel=committed)


class TestConcurrentBroker:
    def test_an_incomplete_last_batch_is_not_read(self, bench: LogHarness, log: Log) -> None:
        bench.close(log)
        last = max(Path(bench.directory).glob("*.log"))
        sent = build([(NOW_MS, None, b"late" * 50, [])], base_offset=500)
        for part in (1, 11, 60, 61, len(sent) - 1):
            with last.open("ab") as file:
                file.write(sent[:part])
            assert end_offset(ranges(bench)[0].log) == 500
            assert rows(ranges(bench))[-1][0] == 499
            with last.open("ab") as file:
                file.truncate(file.tell() - part)

    def test_a_preallocated_segment_ends_at_its_zeros(self, bench: LogHarness, log: Log) -> None:
        bench.close(log)
        with max(Path(bench.directory).glob("*.log")).open("ab") as file:
            file.truncate(file.tell() + 5000)
        assert end_offset(ranges(bench)[0].log) == 500

    def test_a_last_batch_with_a_wrong_crc_is_not_read(self, bench: LogHarness, log: Log) -> None:
        bench.close(log)
        last = max(Path(bench.directory).glob("*.log"))
        sent = build([(NOW_MS, None, b"late", [])], base_offset=500)
        sent[-2] ^= 1
        with last.open("ab") as file:
            file.write(sent)
        assert end_offset(ranges(bench)[0].log) == 500

    def test_segments_deleted_during_a_read(self, bench: LogHarness, log: Log) -> None:
        found = ranges(bench)
        whole = expected(log)
        log.delete_records_before(log.segments[3].base_offset)
        log.delete_old_segments(bench.now_ms)
        assert rows(found) == [row for row in whole if row[0] >= log.log_start_offset]

    def test_segments_that_are_compacted_between_plan_and_read(
        self, bench: LogHarness, log: Log, tmp_path: Path
    ) -> None:
        found = ranges(bench, targetPartitionBytes="700")
        whole = expected(log)
        # The result of log cleaning: fewer and larger segments, with other positions.
        first, second = log.segments[:2]
        merged = Path(first.log_path).read_bytes() + Path(second.log_path).read_bytes()
        Path(first.log_path).write_bytes(merged)
        for path in Path(bench.directory).glob(f"{first.base_offset:020d}.*index"):
            path.unlink()
        for path in Path(bench.directory).glob(f"{second.base_offset:020d}.*"):
            path.unlink()
        assert rows(found) == whole

    def test_a_deleted_topic_is_named(self, bench: LogHarness, log: Log) -> None:
        found = ranges(bench)
        shutil.move(bench.directory, f"{bench.directory}.0123456789abcdef-delete")
        with pytest.raises(SegmentsError, match="does not exist any more: was topic topic deleted"):
            rows(found)

    def test_other_directories_are_ignored(self, bench: LogHarness, log: Log, tmp_path: Path) -> None:
        for name in ("topic-0.abc-future", "topic-1.abc-delete", "__cluster_metadata-0", "lost+found"):
            (tmp_path / name).mkdir()
        assert [partition.name for partition in partitions_in([str(tmp_path)])] == ["topic-0"]

    def test_a_pattern_matches_no_internal_topic(self, bench: LogHarness, log: Log, tmp_path: Path) -> None:
        internal = ["__consumer_offsets", "__share_group_state", "__transaction_state"]
        for name in (*internal, "__cluster_metadata", "__other"):
            (tmp_path / f"{name}-0").mkdir()

        def topics(**given: str) -> list[str]:
            return [one.topic for one in parse({"path": str(tmp_path), **given}).partitions()]

        assert topics(subscribePattern=".*") == ["__other", "topic"]
        assert topics(subscribePattern="__.*") == ["__other"]
        assert topics(subscribePattern="__consumer_offsets") == []
        assert topics(subscribe=",".join(internal)) == internal
        assert topics(assign='{"__consumer_offsets": [0]}') == internal[:1]


class TestDamage:
    @pytest.mark.parametrize(
        ("damage", "what"),
        [
            (
                lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:],
                "batch at offset 0 has a wrong CRC",
            ),
            (lambda data: data[:16] + b"\x07" + data[17:], "a batch has magic 7, not 2"),
            (lambda data: data[:8] + b"\0\0\0\x05" + data[12:], "a batch has length 5"),
            (lambda data: data[:-3], "is incomplete"),
        ],
    )
    def test_a_corrupt_segment_is_named(
        self, bench: LogHarness, log: Log, damage: Callable[[bytes], bytes], what: str
    ) -> None:
        bench.close(log)
        first = min(Path(bench.directory).glob("*.log"))
        first.write_bytes(damage(first.read_bytes()))
        with pytest.raises(CorruptSegment, match=what) as caught:
            rows(ranges(bench, targetPartitionBytes="100000"))
        assert str(first) in str(caught.value)

    def test_an_invalid_index_is_ignored(self, bench: LogHarness, log: Log) -> None:
        bench.close(log)
        draw = random.Random(3)
        for path in Path(bench.directory).glob("*index"):
            path.write_bytes(draw.randbytes(len(path.read_bytes())))
        try:
            found = rows(ranges(bench))
        except SegmentsError as error:
            assert "corrupt" in str(error)  # noqa: PT017
        else:
            assert [offset for offset, _ in found] == list(range(500))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "the option 'path' is missing"),
        ({"path": "/nowhere", "subscribe": "a"}, "directory /nowhere does not exist"),
        ({"path": "."}, "set exactly one of"),
        ({"path": ".", "subscribe": "a", "assign": "{}"}, "set exactly one of"),
        ({"path": ".", "subscribe": "a", "startingOffset": "1"}, "unknown option 'startingoffset'"),
        ({"path": ".", "subscribe": "a", "startingOffsets": "{"}, "is not valid JSON"),
        ({"path": ".", "subscribe": "a", "endingOffsets": "earliest"}, "cannot be earliest"),
        ({"path": ".", "subscribePattern": "["}, "not a regular expression"),
        ({"path": ".", "subscribe": "a", "minPartitions": "x"}, "must be a number"),
        ({"path": ".", "subscribe": "a", "maxRecordsPerPartition": "0"}, "must be at least 1"),
        ({"path": ".", "subscribe": "a", "isolationLevel": "dirty"}, "read_uncommitted or read_committed"),
        ({"path": ".", "subscribe": "absent"}, "has no topic absent"),
        ({"path": ".", "assign": '{"absent": [3]}'}, "does not have partition absent-3"),
    ],
)
def test_an_invalid_option_is_a_one_sentence_error(
    given: dict[str, str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SegmentsError, match=what) as caught:
        plan(parse(given))
    assert "\n" not in str(caught.value)


def test_chunks_have_only_requested_batches(bench: LogHarness, log: Log) -> None:
    [partition] = partitions_in([str(Path(bench.directory).parent)])
    for chunk in chunks_between(partition, 100, 110):
        for _, header in chunk.batches:
            assert header.last_offset >= 100
            assert header.base_offset < 110


class TestSelectedColumns:
    @pytest.mark.parametrize(
        "names",
        [
            ["offset"],
            ["partition", "topic"],
            ["timestampType", "offset"],
            ["value"],
            ["headers", "offset", "key"],
            ["timestamp"],
        ],
    )
    def test_selected_columns_equal_those_of_a_full_read(
        self, bench: LogHarness, log: Log, names: list[str]
    ) -> None:
        for range_ in ranges(bench, minPartitions="90"):
            every = pa.Table.from_batches(read(range_, headers=True))
            some = list(read(range_, columns=names))
            assert some[0].schema.names == names
            assert pa.Table.from_batches(some).to_pylist() == every.select(names).to_pylist()

    def test_offsets_of_a_log_with_gaps(self, bench: LogHarness) -> None:
        sparse = bytearray(build([(NOW_MS, None, b"a", []), (NOW_MS, None, b"b", [])]))
        # The second record is at offset 5, as compaction may leave it.
        sparse[26] = 5
        sparse[-5] = 10
        update_crc(sparse, 0, len(sparse))
        opened = bench.open()
        opened.append_stored(memoryview(sparse))
        opened.commit()
        [found] = read(ranges(bench)[0], columns=["offset"])
        assert found.column("offset").to_pylist() == [0, 5]

    def test_corruption_is_reported_for_any_columns(self, bench: LogHarness, log: Log) -> None:
        segment = Path(log.segments[0].log_path)
        data = bytearray(segment.read_bytes())
        data[70] ^= 1
        segment.write_bytes(data)
        with pytest.raises(CorruptSegment, match="the batch at offset 0 has a wrong CRC"):
            list(read(ranges(bench)[0], columns=["partition"]))

    def test_a_wrong_schema_is_refused(self) -> None:
        assert check_columns({"offset": "bigint", "key": "binary"}) == ["offset", "key"]
        with pytest.raises(SegmentsError, match="unknown column 'size'; the columns are key, value, topic"):
            check_columns({"size": "bigint"})
        with pytest.raises(SegmentsError, match="'offset' has type bigint, not string"):
            check_columns({"offset": "string"})


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_memory_is_bounded_by_the_batch(bench: LogHarness, codec: Codec) -> None:
    bench.config = bench.config._replace(segment_bytes=1 << 30)
    opened = bench.open()
    value = random.Random(7).randbytes(1000) * 100
    for _ in range(120):
        bench.send(opened, batch(*[value] * 3, codec=codec))
    tracemalloc.start()
    try:
        records_count = 0
        before = pa.total_allocated_bytes()
        most_bytes = 0
        for found in (one for range_ in ranges(bench) for one in read(range_)):
            records_count += found.num_rows
            most_bytes = max(most_bytes, pa.total_allocated_bytes() - before)
        _, most_traced_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert records_count == 360
    # 36 MB of records, in batches of 0.3 MB.
    assert most_bytes < 6 << 20
    assert most_traced_bytes < 12 << 20
