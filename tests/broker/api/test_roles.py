"""The APIs of broker and controller listeners, and the requests that a broker forwards."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, HandledBy, ListenerRole, apis_for
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.describe_cluster import DescribeClusterRequest
from kwire.wire.messages.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.unregister_broker import UnregisterBrokerRequest
from kwire.wire.registry import encode_request
from tests.broker.api.telemetry.test_push import alter
from tests.node_harness import NodeHarness, produce_request

TOPIC, BROKER, LOGGER, UNKNOWN = 2, 4, 8, 99
FORWARDED = {
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.UPDATE_FEATURES,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
}
EACH_NODE = {
    ApiKey.FETCH,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.API_VERSIONS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}


class RolesHarness(NodeHarness):
    """A node with a broker listener and a controller listener."""

    def ask_controller(self, version: int, request: Any, listener: str = "CONTROLLER") -> Any:
        client = self.connect(listener=listener, role=ListenerRole.CONTROLLER)
        client.submit(version, request)
        self.turn()
        return client.receive(version, type(request))


@pytest.fixture
def harness() -> RolesHarness:
    listeners = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    return RolesHarness(**listeners)  # type: ignore[arg-type]


def test_every_api_is_served_by_its_role() -> None:
    assert {
        key for key, served in SUPPORTED_APIS.items() if served.handled_by is HandledBy.CONTROLLER
    } == FORWARDED
    assert {
        key for key, served in SUPPORTED_APIS.items() if served.handled_by is HandledBy.EACH_NODE
    } == EACH_NODE
    alone = {key for key, served in SUPPORTED_APIS.items() if served.handled_by is HandledBy.CONTROLLER_ONLY}
    assert apis_for(ListenerRole.BROKER).keys() == SUPPORTED_APIS.keys() - alone
    assert apis_for(ListenerRole.CONTROLLER).keys() >= FORWARDED | EACH_NODE | alone


def test_api_versions_returns_the_apis_of_the_listener(harness: RolesHarness) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    advertised = {one.api_key for one in harness.ask_controller(4, request).api_keys}
    assert advertised == apis_for(ListenerRole.CONTROLLER).keys()
    harness.node.has_telemetry_receiver = True
    alter(harness, "all", metrics="*")
    assert {one.api_key for one in harness.call(4, request).api_keys} == apis_for(ListenerRole.BROKER).keys()


@pytest.mark.parametrize(("version", "accepted"), [(2, "3 to 13"), (14, "3 to 13")])
def test_a_rejected_version_is_not_among_those_that_the_error_names(
    harness: RolesHarness, version: int, accepted: str
) -> None:
    client = harness.connect()
    frame = bytearray(encode_request(produce_request("a"), 9, 1, "me"))
    frame[6:8] = version.to_bytes(2, "big")
    with pytest.raises(WireError, match=f"Produce v{version} .* is not served, only versions {accepted}$"):
        client.submit_frame(bytes(frame))


def test_a_broker_api_on_a_controller_listener_closes_the_connection(harness: RolesHarness) -> None:
    with pytest.raises(WireError):
        harness.ask_controller(12, MetadataRequest(topics=[]))


def test_both_listeners_create_topics(harness: RolesHarness) -> None:
    def create_request(name: str) -> CreateTopicsRequest:
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
        return CreateTopicsRequest(topics=topics, timeout_ms=1_000)

    for response in (harness.ask_controller(7, create_request("a")), harness.call(7, create_request("b"))):
        assert response.topics[0].error_code == ErrorCode.NONE
        assert response.topics[0].configs
    assert set(harness.node.image.topics) == {"a", "b"}
    assert (
        harness.ask_controller(7, create_request("a")).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    )


def test_a_controller_describes_controllers(harness: RolesHarness) -> None:
    response = harness.ask_controller(1, DescribeClusterRequest(endpoint_type=2))
    assert (response.error_code, response.endpoint_type, response.controller_id) == (
        0,
        2,
        harness.node.node_id,
    )
    assert [(one.broker_id, one.host, one.port) for one in response.brokers] == [
        (harness.node.node_id, "127.0.0.1", 9093)
    ]
    assert response.cluster_id == harness.node.cluster_id
    elsewhere = harness.ask_controller(1, DescribeClusterRequest(endpoint_type=2), "ELSEWHERE")
    assert (elsewhere.brokers, elsewhere.controller_id) == ([], -1)


@pytest.mark.parametrize(
    ("version", "endpoint_type", "code"),
    [
        (1, 1, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (1, 3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (0, 1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_controller_does_not_describe_brokers(
    harness: RolesHarness, version: int, endpoint_type: int, code: ErrorCode
) -> None:
    assert (
        harness.ask_controller(version, DescribeClusterRequest(endpoint_type=endpoint_type)).error_code
        == code
    )


def test_both_listeners_describe_the_same_quorum(harness: RolesHarness) -> None:
    topic = RequestTopicData(
        topic_name="__cluster_metadata", partitions=[RequestPartitionData(partition_index=0)]
    )
    request = DescribeQuorumRequest(topics=[topic])
    assert harness.ask_controller(2, request) == harness.call(2, request)


def settings(*resources: tuple[int, str, str, str]) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=key, config_operation=0, value=value)],
            )
            for kind, name, key, value in resources
        ]
    )


def outcomes(response: Any) -> list[tuple[int, str, int]]:
    return [(one.resource_type, one.resource_name, one.error_code) for one in response.responses]


def test_a_broker_merges_its_errors_with_those_of_the_controller(harness: RolesHarness) -> None:
    harness.create("t", "u")
    node = str(harness.node.node_id)
    response = harness.call(
        1,
        settings(
            (TOPIC, "t", "retention.ms", "1"),
            (BROKER, "77", "log.retention.ms", "1"),
            (LOGGER, node, "kwire.no-such-logger", "INFO"),
            (TOPIC, "gone", "retention.ms", "1"),
            (UNKNOWN, "x", "a", "b"),
            (TOPIC, "u", "retention.ms", "many"),
        ),
    )
    assert outcomes(response) == [
        (TOPIC, "t", ErrorCode.NONE),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (LOGGER, node, ErrorCode.INVALID_CONFIG),
        (TOPIC, "gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (UNKNOWN, "x", ErrorCode.INVALID_REQUEST),
        (TOPIC, "u", ErrorCode.INVALID_CONFIG),
    ]
    assert harness.node.image.config(TOPIC, "t") == {"retention.ms": "1"}


def test_a_controller_validates_requests_that_no_broker_validated(harness: RolesHarness) -> None:
    harness.create("t")
    response = harness.ask_controller(
        1,
        settings(
            (TOPIC, "t", "retention.ms", "1"),
            (UNKNOWN, "x", "a", "b"),
            (TOPIC, "u", "retention.ms", "1"),
            (TOPIC, "u", "retention.ms", "2"),
            (BROKER, "77", "log.retention.ms", "1"),
            (BROKER, "x", "log.retention.ms", "1"),
            (BROKER, "-1", "log.retention.ms", "1"),
            (BROKER, str(harness.node.node_id), "log.retention.ms", "1"),
        ),
    )
    assert outcomes(response) == [
        (TOPIC, "t", ErrorCode.NONE),
        (UNKNOWN, "x", ErrorCode.UNSUPPORTED_VERSION),
        (TOPIC, "u", ErrorCode.INVALID_REQUEST),
        (BROKER, "77", ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (BROKER, "-1", ErrorCode.INVALID_REQUEST),
        (BROKER, str(harness.node.node_id), ErrorCode.NONE),
    ]


def test_the_own_broker_cannot_be_unregistered(harness: RolesHarness) -> None:
    for send in (harness.call, harness.ask_controller):
        response = send(0, UnregisterBrokerRequest(broker_id=harness.node.node_id))
        assert response.error_code == ErrorCode.INVALID_REQUEST
    assert (
        harness.call(0, UnregisterBrokerRequest(broker_id=77)).error_code
        == ErrorCode.BROKER_ID_NOT_REGISTERED
    )
