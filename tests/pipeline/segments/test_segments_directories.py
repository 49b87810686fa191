"""Several log directories of a broker that may be moving a partition between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.pipeline.segments.files import SegmentsError, partitions_in


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        (tmp_path / name / "topic-0").mkdir(parents=True)
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def test_the_same_partition_in_two_directories_is_refused(places: list[str]) -> None:
    waited: list[float] = []
    with pytest.raises(
        SegmentsError,
        match=r"a/topic-0 and .*b/topic-0 are both logs of topic-0: remove one .* being moved",
    ):
        partitions_in(places, sleep=waited.append)
    assert 0.9 < sum(waited) < 1.5


def test_a_partition_that_was_moved_meanwhile_is_found(places: list[str], tmp_path: Path) -> None:
    def moves_on(seconds: float) -> None:
        old = tmp_path / "a" / "topic-0"
        if seconds and old.exists():
            old.rename(f"{old}.0123456789abcdef-delete")

    [partition] = partitions_in(places, sleep=moves_on)
    assert partition.directory == tmp_path / "b" / "topic-0"


def test_a_partition_missing_in_both_listings_is_found(places: list[str], tmp_path: Path) -> None:
    # The new directory was listed before the end of the move, and the old one after it.
    (tmp_path / "a" / "topic-0").rename(tmp_path / "a" / "topic-0.0123456789abcdef-delete")
    future = tmp_path / "b" / "topic-0.0123456789abcdef-future"
    (tmp_path / "b" / "topic-0").rename(future)

    def moves_on(_: float) -> None:
        if future.exists():
            future.rename(tmp_path / "b" / "topic-0")

    assert [partition.directory for partition in partitions_in(places, sleep=moves_on)] == [
        tmp_path / "b" / "topic-0"
    ]
