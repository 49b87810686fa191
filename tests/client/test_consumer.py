"""The position of a consumer after errors and deleted records."""

from __future__ import annotations

import pytest

from kwire.client.cluster_client import ClusterClient
from kwire.client.consumer import Consumer
from kwire.testing import Broker
from kwire.wire.errors import ApiError
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.client.clients import connect_cluster


def values(reader: Consumer) -> list[bytes | None]:
    return [record.value for _, record in reader.poll()]


def test_fetch_is_retried_after_not_leader(broker: Broker) -> None:
    topic = broker.new_topic(partitions=2)
    broker.produce(topic, "a")
    broker.produce(topic, "b", partition=1)
    with connect_cluster(broker.bootstrap_servers, retry_seconds=0.01) as cluster:
        reader = Consumer(cluster, {(topic, 0): 0, (topic, 1): 0}, committed=False)
        fault = broker.faults.return_error("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=2)
        assert values(reader) == [b"a", b"b"]
        assert fault.is_over
        assert reader.positions == {(topic, 0): 1, (topic, 1): 1}


def test_fatal_fetch_error_is_raised(broker: Broker) -> None:
    topic = broker.new_topic()
    with connect_cluster(broker.bootstrap_servers) as cluster:
        reader = Consumer(cluster, {(topic, 0): 0}, committed=False)
        broker.faults.return_error("Fetch", "TOPIC_AUTHORIZATION_FAILED", topic=topic)
        with pytest.raises(ApiError, match=f"TOPIC_AUTHORIZATION_FAILED: {topic}-0"):
            values(reader)


def test_consumer_continues_at_the_log_start_after_deletion(broker: Broker) -> None:
    topic = broker.new_topic()
    notes: list[str] = []
    broker.produce(topic, "a", "b", "c")
    with connect_cluster(broker.bootstrap_servers) as cluster:
        reader = Consumer(cluster, {(topic, 0): 0}, committed=False, note=notes.append)
        _trim(cluster, topic, 2)
        assert values(reader) == []
        assert values(reader) == [b"c"]
        assert notes == [f"{topic}-0 has no offset 0: continuing at 2"]


def _trim(cluster: ClusterClient, topic: str, before: int) -> None:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=before)]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=1000
    )
    cluster.send_to_node(cluster.leader(topic, 0), request, DeleteRecordsResponse)
