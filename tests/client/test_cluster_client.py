"""`ClusterClient` while brokers are unreachable or restart."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import Disconnected, NoReachableBroker, UnknownPartition
from kwire.client.producer import ACKS, TopicProducer
from kwire.testing import Broker
from kwire.testing.cluster import Cluster as Brokers
from kwire.wire.compression import Codec
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.client.clients import connect_cluster


def free_address() -> str:
    """Return an address on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Clock:
    """A clock that `sleep` advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def client_waiting(clock: Clock, **options: Any) -> ClusterClient:
    return ClusterClient(
        (), client_id="test", timeout_seconds=1, now=lambda: clock.now, sleep=clock.sleep, **options
    )


def test_retriable_error_is_retried_until_the_timeout() -> None:
    clock = Clock()
    cluster = client_waiting(clock)
    errors: list[Exception] = [Disconnected("away"), ApiError(ErrorCode.NOT_CONTROLLER)]

    def attempt() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert cluster.retry(attempt) == "done"
    assert clock.now == pytest.approx(0.2)
    _fails(cluster, Disconnected("a:1: refused"))
    assert clock.now > 1
    _fails(cluster, ApiError(ErrorCode.NOT_CONTROLLER))
    before = clock.now
    _fails(cluster, ApiError(ErrorCode.INVALID_CONFIG))
    assert clock.now == before


@pytest.mark.parametrize("waits", [False, True])
def test_first_broker_is_awaited_only_with_the_option(waits: bool) -> None:
    clock = Clock()
    _fails(client_waiting(clock, retry_first_connection=waits), NoReachableBroker("a:1: refused"))
    assert (clock.now >= 1) == waits


def _fails(cluster: ClusterClient, error: Exception) -> None:
    def attempt() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        cluster.retry(attempt)
    assert raised.value is error


def test_unreachable_bootstrap_servers_are_skipped(broker: Broker) -> None:
    with connect_cluster(f"{free_address()},{broker.bootstrap_servers}") as cluster:
        assert list(cluster.brokers()) == [1]
        response = cluster.send_to_node(1, DescribeClusterRequest(), DescribeClusterResponse)
        assert response.brokers[0].broker_id == 1
        with pytest.raises(ApiError, match="broker 9 is not in the cluster"):
            cluster.send_to_node(9, DescribeClusterRequest(), DescribeClusterResponse)


def test_all_brokers_are_known_after_a_coordinator_lookup() -> None:
    with Brokers(size=2) as brokers, connect_cluster(brokers.bootstrap_servers) as cluster:
        assert cluster.retry(lambda: cluster.coordinator("group")) in (1, 2)
        assert sorted(cluster.brokers()) == [1, 2]


def test_no_reachable_broker_raises() -> None:
    address = free_address()
    with (
        connect_cluster(address) as cluster,
        pytest.raises(NoReachableBroker, match=f"^{address}: connection refused$"),
    ):
        cluster.metadata([])


def test_retry_uses_another_broker_after_stale_metadata(broker: Broker) -> None:
    topic = broker.new_topic()
    with (
        Broker() as other,
        connect_cluster(f"{other.bootstrap_servers},{broker.bootstrap_servers}") as cluster,
    ):
        with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            cluster.leader(topic, 0)
        assert cluster.retry(lambda: cluster.leader(topic, 0)) == 1


def test_missing_partition_raises_with_the_existing_ones(broker: Broker) -> None:
    one, three = broker.new_topic(), broker.new_topic(partitions=3)
    with connect_cluster(broker.bootstrap_servers) as cluster:
        assert cluster.leaders([(three, 2), (one, 0), (three, 0)]) == {1: [(three, 2), (one, 0), (three, 0)]}
        with pytest.raises(UnknownPartition, match=f"topic {one} has only partition 0, not 1"):
            cluster.leader(one, 1)
        with pytest.raises(UnknownPartition, match=f"topic {three} has partitions 0 to 2, not 3"):
            cluster.leaders([(three, 0), (three, 3)])


@pytest.mark.parametrize("acks", ["all", "1"])
def test_restarting_broker_is_awaited(tmp_path: Path, acks: str) -> None:
    address = free_address()
    settings = {"listeners": f"PLAINTEXT://{address}", "advertised.listeners": f"PLAINTEXT://{address}"}
    broker = Broker(settings, log_dir=tmp_path)
    broker.start()
    topic = broker.new_topic()
    with connect_cluster(address) as cluster:
        sending = TopicProducer(cluster, topic, ACKS[acks], Codec.NONE)
        sending.send({0: [(1, None, b"before", [])]})
        broker.stop()
        back = threading.Timer(0.2, broker.start)
        back.start()
        sending.send({0: [(1, None, b"after", [])]})
        back.join()
        assert sending.totals() == [{"partition": 0, "records": 2, "first_offset": 0}]
    broker.stop()
