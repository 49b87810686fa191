"""The kinds of process in which the tests of `Broker` run it."""

from __future__ import annotations

import pytest

from kwire.testing.broker import Process


@pytest.fixture(scope="module", params=["thread", "child"])
def process(request: pytest.FixtureRequest) -> Process:
    """Run a test with a broker in a thread, and again with a broker in the child process."""
    kind: Process = request.param
    return kind
