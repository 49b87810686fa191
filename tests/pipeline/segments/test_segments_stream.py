"""The segment source as a stream, while logs appear, grow and disappear."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kwire.broker.storage.disk import RealDisk
from kwire.pipeline.segments.files import RETRY_DELAYS_SECONDS, PartitionLog, Segment, SegmentsError
from kwire.pipeline.segments.options import Options, parse
from kwire.pipeline.segments.read import read
from kwire.pipeline.segments.stream import (
    Offsets,
    initial_offsets,
    latest_offsets,
    limit_offsets,
    micro_batch_starts,
    micro_batch_tasks,
)
from tests.broker.storage.log_harness import LogHarness, batch


def asked(tmp_path: Path, **given: str) -> Options:
    return parse({"path": str(tmp_path), "startingOffsets": "earliest", **given}, streaming=True)


def make(tmp_path: Path, name: str, records: int) -> Path:
    """Create the log of a partition and return its directory."""
    directory = tmp_path / "making" / "topic-0"
    bench = LogHarness(RealDisk(), str(directory.parent))
    log = bench.open()
    for number in range(records):
        bench.send(log, batch(b"%d" % number))
    bench.close(log)
    shutil.move(directory, tmp_path / name)
    return tmp_path / name


def at_once(_: float) -> None:
    """Do not wait."""


def offsets(
    options: Options, start: Offsets, end: Offsets, sleep: Callable[[float], None] = at_once
) -> list[tuple[str, int]]:
    return [
        (range_.topic, offset)
        for task in micro_batch_tasks(options, start, end, sleep=sleep)
        for range_ in task
        for found in read(range_, columns=["offset"])
        for offset in found.column("offset").to_pylist()
    ]


def test_a_limited_stream_reads_a_new_log_from_its_start(tmp_path: Path) -> None:
    options = asked(tmp_path, subscribePattern="[ab]")
    make(tmp_path, "a-0", 5)
    start = latest_offsets(options)
    make(tmp_path, "b-0", 100)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nb 0 90\n")
    found = []
    for _ in range(3):
        end = limit_offsets(
            micro_batch_starts(options, start, latest_offsets(options)), latest_offsets(options), 4
        )
        found += offsets(options, start, end)
        start = end
    assert found == [("b", offset) for offset in range(90, 100)]


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({}, [15]),
        ({"maxRecordsPerPartition": "4"}, [2, 3, 3, 3, 4]),
        ({"minPartitions": "3"}, [5, 5, 5]),
    ],
)
def test_the_number_of_tasks_of_a_micro_batch(
    tmp_path: Path, given: dict[str, str], counts: list[int]
) -> None:
    for name, records in (("a-0", 10), ("b-0", 5)):
        make(tmp_path, name, records)
    options = asked(tmp_path, subscribe="a,b", **given)
    tasks = micro_batch_tasks(options, {}, latest_offsets(options))
    assert sorted(sum(one.end - one.start for one in task) for task in tasks) == counts


@pytest.mark.parametrize(("start", "nearest"), [(0, 3), (3, 3), (7, 7), (10, 10), (11, 10)])
def test_a_start_offset_that_does_not_exist(tmp_path: Path, start: int, nearest: int) -> None:
    make(tmp_path, "a-0", 10)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\na 0 3\n")
    given = {"subscribe": "a", "startingOffsets": f'{{"a": {{"0": {start}}}}}'}
    options = asked(tmp_path, failOnDataLoss="false", **given)
    assert initial_offsets(options, options.partitions()) == {"a": {"0": nearest}}
    options = asked(tmp_path, **given)
    if start == nearest:
        assert initial_offsets(options, options.partitions()) == {"a": {"0": nearest}}
        return
    with pytest.raises(SegmentsError, match=f"a-0 has the offsets 3 to 10, not the start offset {start}"):
        initial_offsets(options, options.partitions())


@pytest.mark.parametrize("which", [{"subscribe": "a,b"}, {"subscribePattern": "[ab]"}])
def test_a_topic_deleted_after_its_step_was_planned(tmp_path: Path, which: dict[str, str]) -> None:
    strict, lenient = asked(tmp_path, **which), asked(tmp_path, failOnDataLoss="false", **which)
    make(tmp_path, "a-0", 5)
    gone = make(tmp_path, "b-0", 5)
    start, end = initial_offsets(strict, strict.partitions()), latest_offsets(strict)
    shutil.move(gone, f"{gone}.0123456789abcdef-delete")
    with pytest.raises(SegmentsError, match=r"has no topic b|b-0 does not exist"):
        offsets(strict, start, end)
    assert offsets(lenient, start, end) == [("a", offset) for offset in range(5)]
    assert latest_offsets(lenient) == {"a": {"0": 5}}
    assert initial_offsets(lenient, lenient.current_partitions()) == {"a": {"0": 0}}
    # A stream with a limit, whose end offsets were determined earlier.
    assert micro_batch_starts(lenient, {"a": {"0": 3}}, end, sleep=at_once) == {"a": {"0": 3}, "b": {"0": 5}}


class TestMoves:
    """Moves of a log between log directories during a read, as Apache Kafka does them."""

    @pytest.fixture(params=["true", "false"])
    def options(self, request: pytest.FixtureRequest, tmp_path: Path) -> Options:
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        make(tmp_path, "one/a-0", 5)
        make(tmp_path, "one/a-1", 5)
        path = f"{tmp_path / 'one'},{tmp_path / 'two'}"
        return asked(tmp_path, path=path, subscribe="a", failOnDataLoss=request.param)

    END: Offsets = {"a": {"0": 5, "1": 5}}
    WHOLE = [("a", offset) for offset in range(5)] * 2

    def test_a_planned_log_that_is_being_renamed_is_looked_up_again(
        self, options: Options, tmp_path: Path
    ) -> None:
        future = tmp_path / "two" / "a-1.0123456789abcdef-future"
        shutil.move(tmp_path / "one" / "a-1", future)

        def moves_on(_: float) -> None:
            if future.exists():
                future.rename(tmp_path / "two" / "a-1")

        assert offsets(options, {}, self.END, moves_on) == self.WHOLE

    @pytest.mark.parametrize("ask", ["ends", "goes_on", "micro_batch_tasks"])
    def test_a_log_that_moves_while_it_is_read(
        self, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
    ) -> None:
        segments, old = PartitionLog.segments, tmp_path / "one" / "a-1"

        def moving(log: PartitionLog) -> list[Segment]:
            if log.directory == old and old.exists():
                shutil.move(old, tmp_path / "two" / "a-1")
            return segments(log)

        monkeypatch.setattr(PartitionLog, "segments", moving)
        if ask == "ends":
            assert latest_offsets(options, sleep=at_once) == self.END
        elif ask == "goes_on":
            (tmp_path / "two" / "log-start-offset-checkpoint").write_text("0\n1\na 1 3\n")
            assert micro_batch_starts(options, {"a": {"0": 2}}, self.END, sleep=at_once) == {
                "a": {"0": 2, "1": 3}
            }
        else:
            assert offsets(options, {}, self.END) == self.WHOLE

    def test_a_missing_log_is_waited_for_once(self, options: Options, tmp_path: Path) -> None:
        end: Offsets = {"a": {"0": 5, "1": 5, "2": 5, "3": 5}}
        waited: list[float] = []
        if options.fail_on_data_loss:
            with pytest.raises(SegmentsError, match=r"^a-2 does not exist any more: was the topic deleted"):
                offsets(options, {}, end, waited.append)
        else:
            assert offsets(options, {}, end, waited.append) == self.WHOLE
            assert offsets(options, end, end, waited.append) == []
        assert sum(waited) == pytest.approx(sum(RETRY_DELAYS_SECONDS))


def test_a_new_stream_of_a_missing_topic_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "a-0", 5)
    options = asked(tmp_path, failOnDataLoss="false", subscribe="a,b")
    with pytest.raises(SegmentsError, match="has no topic b"):
        initial_offsets(options, options.partitions())


class TestLimited:
    def test_each_partition_gets_its_share(self) -> None:
        begins: Offsets = {"t": {"0": 0, "1": 100, "2": 7}}
        assert limit_offsets(begins, {"t": {"0": 300, "1": 200, "2": 7}}, 40) == {
            "t": {"0": 30, "1": 110, "2": 7}
        }
        assert limit_offsets(begins, {"t": {"0": 3, "1": 110, "2": 7}}, 40) == {
            "t": {"0": 3, "1": 110, "2": 7}
        }

    def test_no_partition_starves(self) -> None:
        begins: Offsets = {"t": {str(number): 0 for number in range(4)}}
        last = {"0": 50, "1": 50, "2": 50, "3": 50}
        for _ in range(50):
            begins = limit_offsets(begins, {"t": last}, 2)
            last = {**last, "0": last["0"] + 1, "1": last["1"] + 1}
        assert begins["t"]["2"] == begins["t"]["3"] == 50
