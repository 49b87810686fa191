"""What all tests may be told on the command line."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("kwire", deadline=None)
settings.load_profile("kwire")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the answers of readable scripts anew, to be reviewed as a diff",
    )
