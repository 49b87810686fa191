"""The log lines of a replica fetcher that does not know the address of its leader."""

from __future__ import annotations

import pytest

from tests.broker.replication.follower_harness import FollowerHarness


@pytest.mark.parametrize(
    ("leader", "reason"),
    [
        (2, "broker 2 has no listener NODES, but PLAINTEXT. Add this listener to all brokers before "),
        (9, "broker 9 is not registered"),
    ],
)
def test_log_distinguishes_a_missing_listener_from_a_missing_broker(
    leader: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener = {
        "listeners": "NODES://:9092,CONTROLLER://:9093",
        "listener.security.protocol.map": "NODES:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "NODES",
    }
    FollowerHarness(listener).follow(leader=leader)
    (text,) = [record.getMessage() for record in caplog.records if "will retry" in record.getMessage()]
    assert reason in text
