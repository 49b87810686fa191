"""Command line options and marks of the tests."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

# The duration of an example depends on the load of the machine, so there is no deadline.
settings.register_profile("kwire", deadline=None)
settings.load_profile("kwire")


IS_LINUX = sys.platform == "linux" and "KWIRE_TESTS_MISSING_NAMES" not in os.environ
"""Whether the modules of kwire run on Linux. `tests.portable.plugin` imitates macOS for them."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "linux(mechanism): a test of a mechanism that only Linux has")
    config.addinivalue_line("markers", "proc: a test that reads /proc")


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("linux")
    if mark is not None and not IS_LINUX:
        pytest.skip(f"only Linux has {mark.args[0]}")
    if item.get_closest_marker("proc") is not None and not os.path.exists("/proc/self"):
        pytest.skip("the test reads /proc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the expected output of readable scripts, to be reviewed as a diff",
    )
