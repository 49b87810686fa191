"""The scripts in `scripts/`, which say what they are about."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer.script import FOLDER, played

NAMES = sorted(path.name for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_answers_as_it_says(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert played(text) == text


def test_there_are_scripts() -> None:
    assert NAMES
