"""Clients of a cluster with or without an active group coordinator."""

from __future__ import annotations

import pytest

from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.broker.api.groups.client import Client, find_coordinator


@pytest.fixture
def new_cluster_client() -> Client:
    """Return a client of a cluster without an offsets topic."""
    return Client()


@pytest.fixture
def client(new_cluster_client: Client) -> Client:
    """Return a client of a cluster with topic `t` of two partitions and an active group coordinator."""
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
    assert (
        new_cluster_client.call(5, CreateTopicsRequest(topics=[topic], timeout_ms=1)).topics[0].error_code
        == 0
    )
    find_coordinator(new_cluster_client, 0)
    assert find_coordinator(new_cluster_client, 0).error_code == 0
    return new_cluster_client
