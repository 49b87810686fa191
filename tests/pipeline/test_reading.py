"""Loading an archive with Spark, and errors about missing files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kwire.pipeline.archive.manifest import Archive, ArchiveError, Commit, DataFile
from kwire.pipeline.archive.reading import RecordFilter, escape_glob, load_archive, report_missing_files, rows

FILE = DataFile(
    "data/topic=t/date=2026-01-31/partition=0/part-0.parquet", "t", 0, "2026-01-31", 0, 9, 10, 1, ""
)


class Reader:
    """A fake of Spark's reader."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.paths: tuple[str, ...] = ()
        self.why = ""
        """The message of the error that `parquet` raises, or "" for none."""

    @property
    def read(self) -> Reader:
        return self

    def schema(self, _: str) -> Reader:
        return self

    def option(self, name: str, value: str) -> Reader:
        self.options[name] = value
        return self

    def parquet(self, *paths: str) -> Any:
        self.paths = paths
        if self.why:
            raise ValueError(self.why)
        return self

    def selectExpr(self, *_: str) -> Reader:
        return self

    def where(self, _: str) -> Reader:
        return self


def made(directory: Path) -> Archive:
    archive = Archive(directory)
    archive.add(Commit(-1, "job", 0, {"t": {0: (0, 10)}}, [FILE]))
    return archive


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/srv/archive/data/topic=a.b-c_d", "/srv/archive/data/topic=a.b-c_d"),
        ("/srv/a [x] {b,c} *?", r"/srv/a \[x\] \{b,c\} \*\?"),
        (r"/srv/a\b", r"/srv/a\\b"),
        ("/srv/a:b", "/srv/a:b"),
    ],
)
def test_glob_characters_of_a_path_are_escaped(path: str, told: str) -> None:
    assert escape_glob(Path(path)) == told


@pytest.mark.parametrize("name", ["a:b [1]", "a:{b}", "a/b:c/d*"])
def test_glob_characters_with_a_colon_are_refused(name: str) -> None:
    with pytest.raises(ArchiveError) as caught:
        escape_glob(Path("/srv") / name)
    assert str(caught.value).startswith(f"/srv/{name} has both a colon and one of ")


@pytest.mark.parametrize("name", ["a:b [1]", "a:b", r"a\b {c} *?"])
@pytest.mark.parametrize("is_absolute", [True, False])
def test_an_archive_is_read_from_any_directory_name(
    name: str, is_absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name / FILE.path).parent.mkdir(parents=True)
    (tmp_path / name / FILE.path).touch()
    spark: Any = Reader()
    load_archive(spark, made(tmp_path / name if is_absolute else Path(name)))
    assert spark.paths == (str(tmp_path / name / FILE.path),)
    assert spark.options == {"basePath": str(tmp_path / name / "data"), "__globPaths__": "false"}


class TestMissingFiles:
    TOLD = "does not exist any more: run again if the archive was compacted meanwhile"

    @pytest.mark.parametrize("name", ["archive", "a:b"])
    def test_when_rows_are_read(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ArchiveError) as caught:
            list(rows(Path(name), [FILE], RecordFilter()))
        assert str(caught.value) == f"{tmp_path / name / FILE.path} {self.TOLD}"

    @pytest.mark.parametrize(
        "why",
        [
            "",  # for a path that looks like a glob pattern
            "[PATH_NOT_FOUND] Path does not exist: file:{}. SQLSTATE: 42K03",
            "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file://{}. File does not "
            "exist. It is possible the underlying files have been updated.\nYou can explicitly invalidate",
        ],
    )
    def test_when_spark_plans_or_reads(self, tmp_path: Path, why: str) -> None:
        archive, spark = made(tmp_path / "a [1]"), Reader()
        gone = archive.directory / FILE.path
        spark.why = why.format(gone)
        asked: Any = spark
        with pytest.raises(ArchiveError) as caught:
            load_archive(asked, archive)
        assert str(caught.value) == f"{gone} {self.TOLD}"

    @pytest.mark.parametrize("place", ["other", "archive"])
    def test_other_errors_are_unchanged(self, tmp_path: Path, place: str) -> None:
        """A file outside of the archive, or an existing one."""
        path = tmp_path / place / FILE.path
        if place == "archive":
            path.parent.mkdir(parents=True)
            path.touch()
        why = f"file:{path} is not a Parquet file"
        with (
            pytest.raises(ValueError, match="is not a Parquet file"),
            report_missing_files(tmp_path / "archive"),
        ):
            raise ValueError(why)
