"""Several data directories of one broker, which may be moving a partition from one to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.pipeline.segments.files import SegmentsError, partitions_in


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        (tmp_path / name / "topic-0").mkdir(parents=True)
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def test_the_same_partition_in_both_is_refused(places: list[str]) -> None:
    waited: list[float] = []
    with pytest.raises(
        SegmentsError,
        match=r"a/topic-0 and .*b/topic-0 are both logs of topic-0: remove one .* being moved",
    ):
        partitions_in(places, sleep=waited.append)
    assert 0.9 < sum(waited) < 1.5


def test_but_not_when_a_move_has_come_to_its_end(places: list[str], tmp_path: Path) -> None:
    def moves_on(seconds: float) -> None:
        old = tmp_path / "a" / "topic-0"
        if seconds and old.exists():
            old.rename(f"{old}.0123456789abcdef-delete")

    [partition] = partitions_in(places, sleep=moves_on)
    assert partition.directory == tmp_path / "b" / "topic-0"


def test_a_partition_that_was_in_neither_when_it_was_looked_for(places: list[str], tmp_path: Path) -> None:
    # The new directory was looked at before the move had come to its end, and the old one behind that.
    (tmp_path / "a" / "topic-0").rename(tmp_path / "a" / "topic-0.0123456789abcdef-delete")
    future = tmp_path / "b" / "topic-0.0123456789abcdef-future"
    (tmp_path / "b" / "topic-0").rename(future)

    def moves_on(_: float) -> None:
        if future.exists():
            future.rename(tmp_path / "b" / "topic-0")

    assert [partition.directory for partition in partitions_in(places, sleep=moves_on)] == [
        tmp_path / "b" / "topic-0"
    ]
