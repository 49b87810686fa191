"""The division of the segment source's reads into Spark tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.broker.storage.disk import RealDisk
from kwire.pipeline.segments.files import partitions_in
from kwire.pipeline.segments.options import parse
from kwire.pipeline.segments.plan import Range, plan, tasks
from kwire.pipeline.segments.read import read
from tests.broker.storage.log_harness import LogHarness

Row = tuple[int, bytes | None]


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


class TestTasks:
    @pytest.fixture
    def bench(self, tmp_path: Path) -> LogHarness:
        """Create a partition with nine tenths of the records and one with the rest, in one segment each."""
        made = LogHarness(RealDisk(), str(tmp_path))
        made.config = made.config._replace(segment_bytes=1 << 20, index_interval_bytes=300)
        made.config = made.config._replace(segment_index_bytes=1 << 20)
        for partition, records_count in ((0, 9000), (1, 1000)):
            made.directory = f"{tmp_path}/topic-{partition}"
            opened = made.open()
            for number in range(records_count // 10):
                made.append(opened, *(b"%07d" % (number * 10 + each) for each in range(10)))
        return made

    def test_the_largest_partition_gets_most_tasks(
        self, bench: LogHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kwire.pipeline.segments.plan.MIN_TASK_BYTES", 1)
        found = ranges(bench)
        counts = [(one.partition, one.end - one.start) for one in found]
        assert sum(count for _, count in counts) == 10_000
        assert [partition for partition, _ in counts] == [0] * 7 + [1]
        assert max(count for _, count in counts) < 1500
        assert [offset for offset, _ in rows(found)] == [*range(9000), *range(1000)]

    def test_small_partitions_share_one_task(self, bench: LogHarness) -> None:
        found = ranges(bench)
        assert [(one.partition, one.start, one.end) for one in found] == [(0, 0, 9000), (1, 0, 1000)]
        assert tasks(parse(options(bench)), found) == [found]

    @pytest.mark.parametrize(
        ("given", "counts"),
        [
            ({"maxRecordsPerPartition": "4000"}, [3000, 3000, 3000, 1000]),
            ({"maxRecordsPerPartition": "9001"}, [9000, 1000]),
            ({"maxRecordsPerPartition": "4000", "minPartitions": "6"}, [1500, 1500, 1500, 1500, 3000, 1000]),
            ({"maxRecordsPerPartition": "5000", "minPartitions": "2"}, [4500, 4500, 1000]),
        ],
    )
    def test_max_records_per_partition_is_honored(
        self, bench: LogHarness, given: dict[str, str], counts: list[int]
    ) -> None:
        found = ranges(bench, **given)
        assert [one.end - one.start for one in found] == counts
        assert tasks(parse(options(bench, **given)), found) == [[one] for one in found]
        assert [offset for offset, _ in rows(found)] == [*range(9000), *range(1000)]

    def test_neighbors_share_a_task_up_to_its_size(self, bench: LogHarness) -> None:
        pieces = ranges(bench, targetPartitionBytes="5000")
        shared = tasks(parse(options(bench, targetPartitionBytes="50000")), pieces)
        assert [piece for task in shared for piece in task] == pieces
        sizes = [sum(piece.size_bytes for piece in task) for task in shared]
        assert max(sizes) <= 50_000
        assert min(sizes[:-1]) > 50_000 - max(piece.size_bytes for piece in pieces)

    def test_min_partitions_is_honored(self, bench: LogHarness) -> None:
        found = ranges(bench, minPartitions="7")
        assert [len(task) for task in tasks(parse(options(bench, minPartitions="7")), found)] == [1] * 7

    def test_pieces_have_about_the_target_size(self, bench: LogHarness) -> None:
        sizes = [one.end - one.start for one in ranges(bench, targetPartitionBytes="50000")]
        # A record has about 20 bytes here, including its share of the batch's header.
        assert max(sizes[:-1]) - min(sizes[:-1]) <= 60
        assert all(1500 < size < 3500 for size in sizes[:-1])

    def test_an_index_is_read_up_to_its_zeros(self, bench: LogHarness) -> None:
        [segment] = partitions_in([str(Path(bench.directory).parent)])[0].segments()
        assert segment.beside(".index").stat().st_size == 1 << 20
        # Reading stops after a piece of 1024 entries that ends in zeros.
        assert 300 < len(segment.offset_index()) < 2048
