"""Documentation and defaults of the configuration keys, and docs/configurations.md, which lists them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from kwire.broker.config.broker import ATTRIBUTE_KEYS, SUPPORTED_KEYS
from kwire.broker.config.broker_keys import BROKER_KEYS
from kwire.broker.config.client_metrics_keys import CLIENT_METRICS_KEYS
from kwire.broker.config.group_keys import GROUP_KEYS
from kwire.broker.config.topic_keys import BROKER_SYNONYMS, TOPIC_KEYS

OTHERS: Final = {key.name: key for key in (*TOPIC_KEYS, *GROUP_KEYS, *CLIENT_METRICS_KEYS)}
DOCS: Final = {key.name: key.doc for key in (*OTHERS.values(), *BROKER_KEYS.values())}

PAGE = (Path(__file__).parents[3] / "docs" / "configurations.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z0-9.]+)` \| (\w[\w ]*) \|", PAGE, re.MULTILINE))


def test_a_key_of_both_brokers_and_topics_is_documented_once() -> None:
    assert {name for name, key in OTHERS.items() if not key.doc} == OTHERS.keys() & BROKER_KEYS.keys()


@pytest.mark.parametrize("name", sorted(DOCS))
def test_documentation_is_complete_sentences(name: str) -> None:
    text = DOCS[name]
    assert text.endswith(".")
    assert text[0].isupper()
    assert "  " not in text
    assert text == text.strip()


def test_no_two_keys_have_the_same_documentation() -> None:
    times = Counter(DOCS.values())
    assert {name for name, text in DOCS.items() if times[text] > 1} == set()


@pytest.mark.parametrize("name", sorted(DOCS))
def test_documentation_of_a_duration_or_size_names_its_unit(name: str) -> None:
    units = {".ms": "milliseconds", ".bytes": "bytes", ".seconds": "seconds", ".minutes": "minutes"}
    for ending, unit in units.items():
        if name.endswith(ending):
            assert unit in DOCS[name].lower()


def test_every_default_is_within_the_bounds_of_its_key() -> None:
    for key in BROKER_KEYS.values():
        if key.default_value is not None and key.default:
            assert key.parse(key.default) == key.default_value, key.name


def test_every_supported_key_is_a_kafka_key() -> None:
    assert set(BROKER_KEYS) >= SUPPORTED_KEYS


def test_every_topic_key_has_a_row_in_the_documentation() -> None:
    assert sorted(ROWS) == sorted(key.name for key in TOPIC_KEYS)
    assert set(ROWS.values()) == {"supported", "no effect", "rejected"}


def test_a_broker_default_is_supported_if_its_topic_key_is() -> None:
    for name, sources in BROKER_SYNONYMS.items():
        for source in sources:
            if source.name not in ATTRIBUTE_KEYS:
                assert (source.name in SUPPORTED_KEYS) == (ROWS[name] == "supported"), source.name


def test_every_supported_broker_key_is_in_the_documentation() -> None:
    listed = re.findall(r"`([a-z.]+)`", PAGE.partition("### Supported broker keys")[2])
    own = SUPPORTED_KEYS - {source.name for sources in BROKER_SYNONYMS.values() for source in sources}
    assert listed == sorted(own)
