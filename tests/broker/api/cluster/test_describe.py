"""DescribeCluster on a broker: the endpoints of brokers for the listener of the request."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_cluster import DescribeClusterRequest
from tests.node_harness import NodeHarness

INT32_MIN = -(1 << 31)
BROKERS, CONTROLLERS, UNKNOWN = 1, 2, 3


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
def test_each_listener_returns_its_own_endpoint(
    harness: NodeHarness, version: int, listener: str, host: str, port: int
) -> None:
    response = harness.connect(listener=listener).call(version, DescribeClusterRequest())
    assert (response.cluster_id, response.controller_id) == (harness.node.cluster_id, 1)
    assert response.cluster_authorized_operations == INT32_MIN
    assert [(one.broker_id, one.host, one.port, one.rack) for one in response.brokers] == [
        (1, host, port, "r1")
    ]


def test_authorized_operations_are_returned_on_request(harness: NodeHarness) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert harness.call(2, request).cluster_authorized_operations > 0


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [
        (BROKERS, ErrorCode.NONE),
        (CONTROLLERS, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (UNKNOWN, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_only_the_broker_endpoint_type_is_accepted(
    harness: NodeHarness, endpoint_type: int, code: ErrorCode
) -> None:
    assert harness.call(2, DescribeClusterRequest(endpoint_type=endpoint_type)).error_code == code
