"""The scripts in `scripts/`, which say what they are about. `--rewrite` writes their answers anew."""

from __future__ import annotations

import pytest

from tests.coordinator.transactions.script import FOLDER, played

NAMES = sorted(path.name for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_answers_as_it_says(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    text = path.read_text()
    answered = played(text)
    if request.config.getoption("--rewrite"):
        path.write_text(answered)
    else:
        assert answered == text


def test_there_are_scripts() -> None:
    assert NAMES
