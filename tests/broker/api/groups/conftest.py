"""Clients of a cluster that coordinates groups, or has not begun to."""

from __future__ import annotations

import pytest

from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.broker.api.groups.client import Client, find


@pytest.fixture
def stranger() -> Client:
    """A client of a cluster that has no offsets topic yet."""
    return Client()


@pytest.fixture
def client(stranger: Client) -> Client:
    """A client of a cluster that has the topic `t` with two partitions, and coordinates groups."""
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
    assert stranger.call(5, CreateTopicsRequest(topics=[topic], timeout_ms=1)).topics[0].error_code == 0
    find(stranger, 0)
    assert find(stranger, 0).error_code == 0
    return stranger
