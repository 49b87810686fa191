"""Offset ranges and topic origins of an archive's micro-batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from kwire.pipeline.archive.manifest import Archive, ArchiveError, Commit, DataFile
from kwire.pipeline.archive.micro_batches import (
    already_archived,
    check_complete,
    check_no_gap,
    micro_batch_ranges,
    unarchived,
)
from kwire.pipeline.archive.origins import OriginChecker, file_origins
from kwire.pipeline.origin import UNKNOWN, Origin
from kwire.pipeline.segments.files import SegmentsError

WAS = Origin("east", "t", "id1")


def archive_of(directory: Path, *origins: Mapping[str, Origin]) -> Archive:
    archive = Archive(directory)
    for number, noted in enumerate(origins):
        ranges = {"t": {0: (number * 10, number * 10 + 10)}}
        archive.add(Commit(-1, "job", number, ranges, [], origins=noted))
    return archive


def says(*origins: Origin) -> dict[str, Origin]:
    return {origin.topic: origin for origin in origins}


class Input:
    """Topics that can be recreated."""

    def __init__(self, *origins: Origin) -> None:
        self.topics = says(*origins)

    def __call__(self, topics: Collection[str] | None) -> Mapping[str, Origin]:
        return {name: found for name, found in self.topics.items() if topics is None or name in topics}


class TestOrigins:
    def test_origins_are_in_the_manifest(self, tmp_path: Path) -> None:
        archive = archive_of(tmp_path, says(WAS))
        [commit] = archive.commits()
        assert commit.origins == says(WAS)
        [path] = (tmp_path / "_manifests").iterdir()
        assert json.loads(path.read_text())["origins"] == {"t": {"cluster": "east", "topic_id": "id1"}}
        assert archive.origins() == says(WAS)

    def test_an_old_archive_without_origins_gets_them(self, tmp_path: Path) -> None:
        archive = archive_of(tmp_path, {})
        [path] = (tmp_path / "_manifests").iterdir()
        told = json.loads(path.read_text())
        del told["origins"]
        path.write_text(json.dumps(told))
        assert archive.origins() == {}
        assert OriginChecker(archive, Input(WAS)).check(["t"]) == says(WAS)

    def test_partly_known_origins_are_merged(self, tmp_path: Path) -> None:
        part, rest = WAS._replace(cluster=UNKNOWN), WAS._replace(topic_id=UNKNOWN)
        archive = archive_of(tmp_path, says(part), {}, says(rest))
        assert archive.origins() == says(WAS)
        assert OriginChecker(archive, Input(part)).check(None) == says(WAS)

    def test_a_recreated_topic_is_refused(self, tmp_path: Path) -> None:
        archive = archive_of(tmp_path, says(WAS), {})
        with pytest.raises(ArchiveError) as caught:
            OriginChecker(archive, Input(WAS._replace(topic_id="id2")))
        assert str(caught.value) == (
            f"topic t was deleted and recreated after it was archived into {tmp_path}: choose "
            f"another directory for the new topic"
        )

    def test_another_cluster_is_refused(self, tmp_path: Path) -> None:
        archive = archive_of(tmp_path, says(WAS))
        with pytest.raises(ArchiveError) as caught:
            OriginChecker(archive, Input(Origin("west", "t", "id2")))
        assert str(caught.value) == (
            f"{tmp_path} contains topic t of cluster east, but the input is cluster west: choose another "
            f"directory"
        )

    def test_a_recreated_topic_is_detected_while_a_stream_runs(self, tmp_path: Path) -> None:
        topics = Input(WAS)
        origins = OriginChecker(archive_of(tmp_path), topics)
        new = Origin("east", "new", "id3")
        topics.topics |= says(new)
        assert origins.check(["new"]) == says(new)
        topics.topics |= says(new._replace(topic_id="id4"))
        assert origins.check(["t"]) == says(WAS)
        with pytest.raises(ArchiveError, match="topic new was deleted and recreated"):
            origins.check(["new"])

    def test_deleted_topics_are_ignored_without_fail_on_data_loss(self, tmp_path: Path) -> None:
        (tmp_path / "t-0").mkdir()
        options = {"path": str(tmp_path), "subscribe": "t,u"}
        with pytest.raises(SegmentsError, match="has no topic u"):
            file_origins(options)(None)
        assert list(file_origins({**options, "failOnDataLoss": "false"})(None)) == ["t"]

    def test_file_origins_are_read_as_far_as_known(self, tmp_path: Path) -> None:
        for name in ("t-0", "t-1", "u-0"):
            (tmp_path / name).mkdir()
        (tmp_path / "t-1" / "partition.metadata").write_text("version: 0\ntopic_id: id1\n")
        ask = file_origins({"path": str(tmp_path), "subscribePattern": ".*"})
        assert ask(None) == says(WAS._replace(cluster=UNKNOWN), Origin(UNKNOWN, "u", UNKNOWN))
        (tmp_path / "meta.properties").write_text("#\nversion=1\ncluster.id=east\n")
        assert ask(["t"]) == says(WAS)


class TestMicroBatches:
    """A topic was archived up to offset 500, and was then not subscribed for a while."""

    KNOWN = {("t", 0): 500, ("u", 0): 7}

    def test_a_resubscribed_topic_continues_at_the_end_of_the_archive(self) -> None:
        starts, ends = {"u": {0: 7}}, {"t": {0: 520, 1: 3}, "u": {0: 9}}
        assert already_archived(starts, ends, self.KNOWN) == {("t", 0): 500}
        assert unarchived(starts, ends, self.KNOWN) == ({"t": {0: 500}, "u": {0: 7}}, ends)
        files = [DataFile("p", "t", 1, "d", 2, 2, 1, 1, "")]
        assert micro_batch_ranges(starts, ends, self.KNOWN, files) == {
            "t": {0: (500, 520), 1: (2, 3)},
            "u": {0: (7, 9)},
        }

    @pytest.mark.parametrize("start", [None, 100])
    def test_a_micro_batch_before_the_end_of_the_archive_adds_nothing(self, start: int | None) -> None:
        starts = {} if start is None else {"t": {0: start}}
        ends = {"t": {0: 200}}
        assert unarchived(starts, ends, self.KNOWN) == ({"t": {0: 500}}, {"t": {}})
        assert micro_batch_ranges(starts, ends, self.KNOWN, []) == {"t": {0: (500, 500)}}

    def test_a_micro_batch_that_continues_the_archive_is_read_completely(self) -> None:
        starts, ends = {"t": {0: 500}}, {"t": {0: 400}}
        assert already_archived(starts, ends, self.KNOWN) == {}
        assert unarchived(starts, ends, self.KNOWN) == (starts, ends)

    def test_an_archive_continues_at_the_highest_end_offset(self, tmp_path: Path) -> None:
        archive = archive_of(tmp_path, {}, {})
        archive.add(Commit(-1, "", -1, {}, []))
        assert archive.ends() == {("t", 0): 20}
        archive.add(Commit(-1, "job", 9, {"t": {0: (20, 15)}}, []))  # the log was truncated
        assert archive.ends() == {("t", 0): 20}

    def test_a_micro_batch_after_the_end_of_the_archive_is_refused(self) -> None:
        check_no_gap({"t": {0: 500, 1: 900}, "u": {0: 3}}, self.KNOWN)
        with pytest.raises(ArchiveError) as caught:
            check_no_gap({"t": {0: 501}}, self.KNOWN)
        assert str(caught.value) == (
            "this micro-batch begins at offset 501 of t-0 but the archive ends at 500: the checkpoint "
            "belongs to another archive, or the archive is an older copy; choose another checkpoint and a "
            "new directory"
        )

    def test_missing_files_of_a_micro_batch_are_detected(self) -> None:
        files = [DataFile("p", "t", 1, "d", 2, 2, 3, 1, "")] * 2
        check_complete(6, files, "/staging")
        check_complete(0, [], "/staging")
        check_complete(None, files, "/staging")
        with pytest.raises(ArchiveError, match="has written 6 records to /staging, but"):
            check_complete(6, [], "/staging")
        with pytest.raises(ArchiveError, match="has written 7 records"):
            check_complete(7, files, "/staging")
