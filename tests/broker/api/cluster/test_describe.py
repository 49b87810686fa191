"""DescribeCluster, of a broker: the brokers, as they are reached through the listener that was asked."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_cluster import DescribeClusterRequest
from tests.node_harness import NodeHarness

INT32_MIN = -(1 << 31)
BROKERS, CONTROLLERS, NOTHING = 1, 2, 3


@pytest.fixture
def harness() -> NodeHarness:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,OTHER://127.0.0.1:9192",
        "advertised.listeners": "PLAINTEXT://a.example:19092,OTHER://b.example:19192",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        "broker.rack": "r1",
    }
    return NodeHarness(None, **settings)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("listener", "host", "port"), [("PLAINTEXT", "a.example", 19092), ("OTHER", "b.example", 19192)]
)
def test_each_listener_tells_of_itself(
    harness: NodeHarness, version: int, listener: str, host: str, port: int
) -> None:
    answer = harness.connect(listener=listener).call(version, DescribeClusterRequest())
    assert (answer.cluster_id, answer.controller_id) == (harness.node.cluster_id, 1)
    assert answer.cluster_authorized_operations == INT32_MIN
    assert [(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers] == [
        (1, host, port, "r1")
    ]


def test_operations_are_told_to_who_asks(harness: NodeHarness) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert harness.call(2, request).cluster_authorized_operations > 0


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (BROKERS, ErrorCode.NONE),
        (CONTROLLERS, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (NOTHING, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_brokers_are_asked_for_brokers(harness: NodeHarness, wanted: int, code: ErrorCode) -> None:
    assert harness.call(2, DescribeClusterRequest(endpoint_type=wanted)).error_code == code
