"""The kinds of process in which the tests of `Broker` run it, and the libraries for asynchronous tests."""

from __future__ import annotations

import pytest

from kwire.testing.broker import Process
from tests.testing.async_libraries import LIBRARIES, Library


@pytest.fixture(scope="module", params=["thread", "child"])
def process(request: pytest.FixtureRequest) -> Process:
    """Run a test with a broker in a thread, and again with a broker in the child process."""
    kind: Process = request.param
    return kind


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    """Run a test in asyncio, in trio, and in anyio on both."""
    return LIBRARIES[request.param]
