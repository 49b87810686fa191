"""The page of docs/ that tells which keys are honoured tells it of every key, and truly."""

from __future__ import annotations

import re
from pathlib import Path

from kwire.broker.config.broker import ATTRIBUTE_KEYS, HONOURED
from kwire.broker.config.topic_keys import SOURCES, TOPIC_KEYS

PAGE = (Path(__file__).parents[3] / "docs" / "configurations.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z0-9.]+)` \| (\w[\w ]*) \|", PAGE, re.MULTILINE))


def test_every_topic_key_has_its_row() -> None:
    assert sorted(ROWS) == sorted(key.name for key in TOPIC_KEYS)
    assert set(ROWS.values()) == {"honoured", "no effect", "refused"}


def test_a_broker_s_default_is_honoured_where_its_topic_key_is() -> None:
    for name, sources in SOURCES.items():
        for source in sources:
            if source.name not in ATTRIBUTE_KEYS:
                assert (source.name in HONOURED) == (ROWS[name] == "honoured"), source.name


def test_the_broker_keys_that_are_honoured_are_listed() -> None:
    listed = re.findall(r"`([a-z.]+)`", PAGE.partition("### Honoured")[2])
    own = HONOURED - {source.name for sources in SOURCES.values() for source in sources}
    assert listed == sorted(own)
