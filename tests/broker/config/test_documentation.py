"""Every key is documented, once, in a sentence of its own."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from kwire.broker.config.broker_keys import BROKER_KEYS
from kwire.broker.config.docs_coordinator import COORDINATOR_DOCS
from kwire.broker.config.docs_group import GROUP_DOCS
from kwire.broker.config.docs_security import SECURITY_DOCS
from kwire.broker.config.docs_server import SERVER_DOCS
from kwire.broker.config.docs_storage import STORAGE_DOCS
from kwire.broker.config.docs_topic import TOPIC_DOCS
from kwire.broker.config.documentation import DOCUMENTATION
from kwire.broker.config.group_keys import GROUP_KEYS
from kwire.broker.config.topic_keys import TOPIC_KEYS

KEYS: Final = {*BROKER_KEYS, *(key.name for key in (*TOPIC_KEYS, *GROUP_KEYS))}
SECTIONS: Final = (SERVER_DOCS, STORAGE_DOCS, COORDINATOR_DOCS, SECURITY_DOCS, TOPIC_DOCS, GROUP_DOCS)


def test_every_key_has_a_text() -> None:
    assert KEYS - DOCUMENTATION.keys() == set()


def test_every_text_has_a_key() -> None:
    assert DOCUMENTATION.keys() - KEYS == set()


def test_no_section_hides_a_text_of_another() -> None:
    assert len(DOCUMENTATION) == sum(len(section) for section in SECTIONS)


@pytest.mark.parametrize("name", sorted(DOCUMENTATION))
def test_a_text_is_whole_sentences(name: str) -> None:
    text = DOCUMENTATION[name]
    assert text.endswith(".")
    assert text[0].isupper()
    assert "  " not in text
    assert text == text.strip()


def test_no_two_keys_have_the_same_text() -> None:
    times = Counter(DOCUMENTATION.values())
    assert {name for name, text in DOCUMENTATION.items() if times[text] > 1} == set()


@pytest.mark.parametrize("name", sorted(DOCUMENTATION))
def test_a_duration_and_a_size_say_their_unit(name: str) -> None:
    units = {".ms": "milliseconds", ".bytes": "bytes", ".seconds": "seconds", ".minutes": "minutes"}
    for ending, unit in units.items():
        if name.endswith(ending):
            assert unit in DOCUMENTATION[name].lower()
