"""Sides of jobs: the selection of an archive's topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.pipeline.archive.manifest import Archive, ArchiveError, Commit
from kwire.pipeline.sides import check_topics, split_names


@pytest.mark.parametrize("text", ["a,b", "a, b", " a ,b,,", "b,a"])
def test_spaces_around_commas_are_ignored(text: str) -> None:
    assert split_names(text) == {"a", "b"}


def test_a_topic_that_is_not_in_the_archive_is_named(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.add(Commit(-1, "job", 0, {"full": {0: (0, 5)}, "empty": {0: (0, 0)}}, []))
    for topics in (None, frozenset({"full"}), frozenset({"empty"})):
        check_topics(archive, topics)
    with pytest.raises(ArchiveError) as raised:
        check_topics(archive, frozenset({"full", "fall"}))
    assert str(raised.value) == f"{tmp_path} does not have topic fall; its topics: empty, full"
