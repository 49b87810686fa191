"""Which APIs a broker's listener has and which a controller's, and what goes from the one to the other."""

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
from tests.node_harness import NodeHarness

TOPIC, BROKER, LOGGER, NOTHING = 2, 4, 8, 99
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
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
}
OF_EACH = {
    ApiKey.FETCH,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.API_VERSIONS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}


class Roles(NodeHarness):
    """A node that is also asked as a controller."""

    def ask_controller(self, version: int, request: Any, listener: str = "CONTROLLER") -> Any:
        client = self.connect(listener=listener, role=ListenerRole.CONTROLLER)
        client.submit(version, request)
        self.turn()
        return client.receive(version, type(request))


@pytest.fixture
def harness() -> Roles:
    listeners = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    return Roles(**listeners)  # type: ignore[arg-type]


def test_every_api_has_its_role() -> None:
    assert {
        key for key, served in SUPPORTED_APIS.items() if served.handled_by is HandledBy.CONTROLLER
    } == FORWARDED
    assert {
        key for key, served in SUPPORTED_APIS.items() if served.handled_by is HandledBy.EACH_NODE
    } == OF_EACH
    alone = {key for key, served in SUPPORTED_APIS.items() if served.handled_by is HandledBy.CONTROLLER_ONLY}
    assert apis_for(ListenerRole.BROKER).keys() == SUPPORTED_APIS.keys() - alone
    assert apis_for(ListenerRole.CONTROLLER).keys() >= FORWARDED | OF_EACH | alone


def test_api_versions_tells_those_of_the_listener(harness: Roles) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    told = {one.api_key for one in harness.ask_controller(4, request).api_keys}
    assert told == apis_for(ListenerRole.CONTROLLER).keys()
    harness.node.has_telemetry_receiver = True
    assert {one.api_key for one in harness.call(4, request).api_keys} == apis_for(ListenerRole.BROKER).keys()


def test_what_is_the_brokers_alone_closes_a_controllers_connection(harness: Roles) -> None:
    with pytest.raises(WireError):
        harness.ask_controller(12, MetadataRequest(topics=[]))


def test_both_listeners_make_topics(harness: Roles) -> None:
    def asked(name: str) -> CreateTopicsRequest:
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
        return CreateTopicsRequest(topics=topics, timeout_ms=1_000)

    for answer in (harness.ask_controller(7, asked("a")), harness.call(7, asked("b"))):
        assert answer.topics[0].error_code == ErrorCode.NONE
        assert answer.topics[0].configs
    assert set(harness.node.image.topics) == {"a", "b"}
    assert harness.ask_controller(7, asked("a")).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_controller_describes_controllers(harness: Roles) -> None:
    answer = harness.ask_controller(1, DescribeClusterRequest(endpoint_type=2))
    assert (answer.error_code, answer.endpoint_type, answer.controller_id) == (0, 2, harness.node.node_id)
    assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [
        (harness.node.node_id, "127.0.0.1", 9093)
    ]
    assert answer.cluster_id == harness.node.cluster_id
    elsewhere = harness.ask_controller(1, DescribeClusterRequest(endpoint_type=2), "ELSEWHERE")
    assert (elsewhere.brokers, elsewhere.controller_id) == ([], -1)


@pytest.mark.parametrize(
    ("version", "wanted", "code"),
    [
        (1, 1, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (1, 3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (0, 1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_controller_does_not_describe_brokers(
    harness: Roles, version: int, wanted: int, code: ErrorCode
) -> None:
    assert harness.ask_controller(version, DescribeClusterRequest(endpoint_type=wanted)).error_code == code


def test_the_quorum_is_the_same_from_both(harness: Roles) -> None:
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


def outcomes(answer: Any) -> list[tuple[int, str, int]]:
    return [(one.resource_type, one.resource_name, one.error_code) for one in answer.responses]


def test_a_broker_puts_its_own_refusals_and_the_controllers_answer_together(harness: Roles) -> None:
    harness.create("t", "u")
    node = str(harness.node.node_id)
    answer = harness.call(
        1,
        settings(
            (TOPIC, "t", "retention.ms", "1"),
            (BROKER, "77", "log.retention.ms", "1"),
            (LOGGER, node, "kwire.no-such-logger", "INFO"),
            (TOPIC, "gone", "retention.ms", "1"),
            (NOTHING, "x", "a", "b"),
            (TOPIC, "u", "retention.ms", "many"),
        ),
    )
    assert outcomes(answer) == [
        (TOPIC, "t", ErrorCode.NONE),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (LOGGER, node, ErrorCode.INVALID_CONFIG),
        (TOPIC, "gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NOTHING, "x", ErrorCode.INVALID_REQUEST),
        (TOPIC, "u", ErrorCode.INVALID_CONFIG),
    ]
    assert harness.node.image.config(TOPIC, "t") == {"retention.ms": "1"}


def test_a_controller_looks_at_what_no_broker_has_looked_at(harness: Roles) -> None:
    harness.create("t")
    answer = harness.ask_controller(
        1,
        settings(
            (TOPIC, "t", "retention.ms", "1"),
            (NOTHING, "x", "a", "b"),
            (TOPIC, "u", "retention.ms", "1"),
            (TOPIC, "u", "retention.ms", "2"),
            (BROKER, "77", "log.retention.ms", "1"),
            (BROKER, "x", "log.retention.ms", "1"),
            (BROKER, "-1", "log.retention.ms", "1"),
            (BROKER, str(harness.node.node_id), "log.retention.ms", "1"),
        ),
    )
    assert outcomes(answer) == [
        (TOPIC, "t", ErrorCode.NONE),
        (NOTHING, "x", ErrorCode.UNSUPPORTED_VERSION),
        (TOPIC, "u", ErrorCode.INVALID_REQUEST),
        (BROKER, "77", ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (BROKER, "-1", ErrorCode.INVALID_REQUEST),
        (BROKER, str(harness.node.node_id), ErrorCode.NONE),
    ]


def test_a_broker_does_not_forget_itself(harness: Roles) -> None:
    for ask in (harness.call, harness.ask_controller):
        answer = ask(0, UnregisterBrokerRequest(broker_id=harness.node.node_id))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert (
        harness.call(0, UnregisterBrokerRequest(broker_id=77)).error_code
        == ErrorCode.BROKER_ID_NOT_REGISTERED
    )
