"""The check that the topics of a checkpoint are unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire.pipeline.checkpoint_topics import TOPICS, record_topics
from kwire.pipeline.config import ConfigError
from kwire.pipeline.origin import UNKNOWN, Origin

SHOP = Origin("east", "shop", "id-1")
BANK = Origin("east", "bank", "id-2")


def noted(directory: Path, *origins: Origin) -> None:
    record_topics(directory, {origin.topic: origin for origin in origins})


def test_topics_may_be_added_and_removed(tmp_path: Path) -> None:
    for origins in ((SHOP,), (SHOP, BANK), (BANK,), (SHOP,), ()):
        noted(tmp_path / "checkpoint", *origins)


def test_ids_that_become_known_later_are_recorded(tmp_path: Path) -> None:
    unknown = SHOP._replace(cluster=UNKNOWN, topic_id=UNKNOWN)
    for origin in (unknown, SHOP, unknown):
        noted(tmp_path, origin)
    with pytest.raises(ConfigError, match="deleted and recreated"):
        noted(tmp_path, SHOP._replace(topic_id="id-3"))


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (
            [SHOP._replace(topic_id="id-3")],
            "topic shop was deleted and recreated after the checkpoint",
        ),
        (
            [SHOP._replace(cluster="west")],
            "belongs to topic shop of cluster east, and the input is cluster west",
        ),
        ([BANK], "belongs to shop, and the input is bank: choose another checkpoint"),
    ],
)
def test_other_topics_are_refused_and_not_recorded(tmp_path: Path, now: list[Origin], why: str) -> None:
    noted(tmp_path, SHOP)
    for _ in range(2):
        with pytest.raises(ConfigError, match=why):
            noted(tmp_path, *now)
    noted(tmp_path, SHOP)


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    (tmp_path / TOPICS).write_text("[]")
    with pytest.raises(ConfigError, match=f"{TOPICS} does not list topics"):
        noted(tmp_path, SHOP)
