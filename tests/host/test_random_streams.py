"""Random streams per purpose, and log records with node names."""

from __future__ import annotations

import pytest

from kwire.host.random_streams import RandomStreams
from kwire.testing.virtual_host import VirtualHost


def test_streams_of_different_purposes_are_independent() -> None:
    quiet, busy = RandomStreams(1), RandomStreams(1)
    for _ in range(100):
        busy.stream("answers").random()
    assert quiet.stream("ids").random() == busy.stream("ids").random()
    assert busy.stream("ids") is busy.stream("ids")


def test_streams_depend_on_seed_and_purpose() -> None:
    drawn = {
        RandomStreams(seed).stream(purpose).random() for seed in (1, 2) for purpose in ("ids", "answers")
    }
    assert len(drawn) == 4


def test_log_records_of_two_nodes_in_one_process_are_distinguished(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("node 1", "node 100%s"):
        VirtualHost(name=name).logger("kwire.net").error("%s is gone", "x")
    assert [record.getMessage() for record in caplog.records] == [
        "[node 1] x is gone",
        "[node 100%s] x is gone",
    ]
    assert [record.__dict__["node"] for record in caplog.records] == ["node 1", "node 100%s"]
