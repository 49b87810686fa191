"""The scripts in `scripts/`. `pytest --rewrite` replaces their output."""

from __future__ import annotations

import pytest

from tests.coordinator.transactions.script import FOLDER, run_script

NAMES = sorted(path.name for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_transaction_script_output_matches(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    text = path.read_text()
    actual = run_script(text)
    if request.config.getoption("--rewrite"):
        path.write_text(actual)
    else:
        assert actual == text


def test_there_are_scripts() -> None:
    assert NAMES
