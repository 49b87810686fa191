"""Command line options of the tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The duration of an example depends on the load of the machine, so there is no deadline.
settings.register_profile("kwire", deadline=None)
settings.load_profile("kwire")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the expected output of readable scripts, to be reviewed as a diff",
    )
