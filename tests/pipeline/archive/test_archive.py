"""Manifests and files of an archive, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kwire.pipeline.archive.manifest import Archive, ArchiveError, Commit, DataFile
from kwire.pipeline.archive.staging import check_file, clear_staging_path, describe_file, move, staged_files
from kwire.pipeline.segments.damage import Damage

OFFSETS = [5, 6, 9]


def staged_file(place: Path, *, topic: str = "t", partition: int = 3, name: str = "part-0.parquet") -> str:
    path = f"topic={topic}/date=2026-01-31/partition={partition}/{name}"
    (place / path).parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"offset": OFFSETS, "headers": [[{"key": "a", "value": b"b"}], None, None]})
    pq.write_table(table, place / path, row_group_size=2)
    return path


def commit(batch_id: int, *files: DataFile, start: int = 0, end: int = 10, job: str = "job") -> Commit:
    return Commit(-1, job, batch_id, {"t": {3: (start, end)}}, list(files))


def test_a_commit_is_read_as_it_was_written(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    assert list(archive.commits()) == []
    file = DataFile("data/x.parquet", "t", 3, "2026-01-31", 5, 9, 3, 100, "ab")
    first = archive.add(commit(0, file))
    second = archive.add(commit(1, start=10, end=12))
    assert [first.number, second.number] == [0, 1]
    assert list(Archive(tmp_path).commits()) == [first, second]
    assert archive.has_batch("job", 1)
    assert not archive.has_batch("job", 2)
    assert not archive.has_batch("other", 1)
    assert archive.ranges() == {"t": {3: [(0, 12)]}}


def test_ranges_that_do_not_touch_are_separate(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.add(commit(0))
    archive.add(commit(1, start=11, end=12))
    assert archive.ranges() == {"t": {3: [(0, 10), (11, 12)]}}


def test_replaced_files_are_not_in_the_archive(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    small = [DataFile(f"{name}", "t", 3, "d", 0, 1, 2, 3, "") for name in ("a", "b", "c")]
    archive.add(commit(0, *small))
    merged = small[0]._replace(path="m")
    archive.add(Commit(-1, "", -1, {}, [merged], replaced=["a", "b"]))
    assert [file.path for file in archive.files()] == ["c", "m"]


def test_another_writer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(tmp_path)
    archive.add(commit(0))
    archive.check_owner("job")
    with pytest.raises(ArchiveError, match="was written by stream job, not by other"):
        archive.check_owner("other")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    with pytest.raises(ArchiveError, match="another job is writing to"):
        archive.add(commit(1))


def test_a_step_and_a_compaction_may_commit_concurrently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = Commit(-1, "", -1, {}, [], replaced=["a"])
    for first, second in ((commit(0), merged), (merged, commit(0))):
        directory = tmp_path / str(first.batch_id)
        Archive(directory).add(first)
        with monkeypatch.context() as patched:
            patched.setattr(
                Path, "glob", lambda self, pattern: iter(())
            )  # the first manifest did not exist yet
            assert Archive(directory).add(second).number == 1
        assert [one.batch_id for one in Archive(directory).commits()] == [first.batch_id, second.batch_id]


def test_skipped_offsets_are_listed(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    damage = Damage("t", 3, 4, 7, "/data/t-3/0.log", "since it is torn")
    added = archive.add(commit(0)._replace(skipped=(damage,)))
    assert list(archive.commits()) == [added]
    assert archive.skipped() == [damage]
    path = tmp_path / "_manifests" / f"{0:020d}.json"
    told = json.loads(path.read_text())
    assert told["skipped"][0]["file"] == "/data/t-3/0.log"
    del told["skipped"]
    path.write_text(json.dumps(told))
    assert Archive(tmp_path).skipped() == []


def test_each_manifest_is_read_once_except_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(tmp_path)
    read: list[int] = []
    decode = Commit.decode

    def recorded(number: int, data: Any) -> Any:
        read.append(number)
        return decode(number, data)

    monkeypatch.setattr(Commit, "decode", recorded)
    for number in range(4):
        archive.add(commit(number, start=10 * number, end=10 * number + 10))
        assert archive.ends() == {("t", 3): 10 * number + 10}
        assert archive.has_batch("job", number)
        assert archive.ranges() == {"t": {3: [(0, 10 * number + 10)]}}
    assert read == [0, 1, 2, 3]
    # A step of another stream may commit, too.
    Archive(tmp_path).add(commit(4, start=40, end=41))
    assert archive.ends() == {("t", 3): 41}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 2}', b'{"format": 1, "job": "a"}', b"[1]"])
def test_a_malformed_manifest_is_named(tmp_path: Path, content: bytes) -> None:
    archive = Archive(tmp_path)
    archive.add(commit(0))
    path = tmp_path / "_manifests" / f"{0:020d}.json"
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match=str(path)):
        list(archive.commits())


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for number in range(3):
        archive.add(commit(number))
    (tmp_path / "_manifests" / f"{1:020d}.json").unlink()
    with pytest.raises(ArchiveError, match="lacks commit 1"):
        list(archive.commits())


def test_manifests_are_readable_json(tmp_path: Path) -> None:
    Archive(tmp_path).add(commit(0, DataFile("p", "t", 3, "d", 5, 9, 3, 100, "ab")))
    told = json.loads((tmp_path / "_manifests" / f"{0:020d}.json").read_text())
    assert told["ranges"] == {"t": {"3": [0, 10]}}
    assert told["files"][0]["sha256"] == "ab"


class TestStaging:
    def test_files_are_described_by_what_is_in_them(self, tmp_path: Path) -> None:
        place = clear_staging_path(tmp_path, "s")
        path = staged_file(place)
        assert staged_files(place) == [path]
        found = describe_file(str(place), path)
        assert found[1:7] == ("t", 3, "2026-01-31", 5, 9, 3)
        assert check_file(place, found) == ""

    def test_files_are_moved_to_names_of_the_step(self, tmp_path: Path) -> None:
        place = clear_staging_path(tmp_path, "s")
        paths = [staged_file(place, name="b.parquet"), staged_file(place, partition=4)]
        moved = move(tmp_path, place, "s", [describe_file(str(place), path) for path in paths])
        assert [file.path for file in moved] == [
            f"data/topic=t/date=2026-01-31/partition={partition}/part-s-00000.parquet" for partition in (3, 4)
        ]
        assert [check_file(tmp_path, file) for file in moved] == ["", ""]
        assert not place.exists()

    def test_files_of_an_interrupted_step_are_deleted(self, tmp_path: Path) -> None:
        place = clear_staging_path(tmp_path, "s")
        paths = [staged_file(place, name=f"{n}.parquet") for n in range(3)]
        move(tmp_path, place, "s", [describe_file(str(place), path) for path in paths])
        (clear_staging_path(tmp_path, "s") / "half").mkdir(parents=True)
        other = clear_staging_path(tmp_path, "o")
        kept = move(tmp_path, other, "o", [describe_file(str(other), staged_file(other))])
        place = clear_staging_path(tmp_path, "s")
        assert not place.exists()
        again = move(tmp_path, place, "s", [describe_file(str(place), staged_file(place))])
        names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
        assert names == sorted(file.path for file in kept + again)

    @pytest.mark.parametrize("damage", ["missing", "shorter", "other"])
    def test_changed_files_are_detected(self, tmp_path: Path, damage: str) -> None:
        place = clear_staging_path(tmp_path, "s")
        [file] = move(tmp_path, place, "s", [describe_file(str(place), staged_file(place))])
        full = tmp_path / file.path
        data = bytearray(full.read_bytes())
        if damage == "missing":
            full.unlink()
        elif damage == "shorter":
            full.write_bytes(data[:-1])
        else:
            data[20] ^= 1
            full.write_bytes(data)
        assert str(full) in check_file(tmp_path, file)
