"""The order of the checks, and what responses contain, for a client with few rights."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from kwire.broker.api.request.audit_log import AuditLog
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_TOPIC,
    MetadataImage,
)
from kwire.broker.node.controller_requests import envelope
from kwire.broker.security.acl import Acl, PatternType, Permission
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.host.loggers import AUDIT_LOGGER, TRACE
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import NO_LEADER_EPOCH
from kwire.wire.errors import DEFAULT_MESSAGES, ErrorCode
from kwire.wire.messages import add_partitions_to_txn as transaction
from kwire.wire.messages import alter_configs as legacy
from kwire.wire.messages import consumer_group_heartbeat as consumer
from kwire.wire.messages import create_partitions as partitions
from kwire.wire.messages import create_topics as create
from kwire.wire.messages import delete_topics as delete
from kwire.wire.messages import describe_groups as groups
from kwire.wire.messages import describe_producers as producers
from kwire.wire.messages import describe_topic_partitions as pages
from kwire.wire.messages import fetch, metadata
from kwire.wire.messages import incremental_alter_configs as alter
from kwire.wire.messages import offset_commit as commit
from kwire.wire.messages.create_acls import AclCreation, CreateAclsRequest
from kwire.wire.messages.describe_cluster import DescribeClusterRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kwire.wire.messages.sync_group import SyncGroupRequest
from kwire.wire.messages.unregister_broker import UnregisterBrokerRequest
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.registry import decode_response, encode_request
from kwire.wire.schema import Message
from tests.node_harness import NodeHarness, produce_request

ANN = Principal("User", "ann")
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
Right = tuple[Operation, ResourceType, str]


class Rights(StandardAuthorizer):
    """Rules that allow ann some operations."""

    def __init__(self, *rights: Right) -> None:
        super().__init__(frozenset(), allows_without_acls=False)
        self.rights = rights

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return principal != ANN or (operation, resource_type, name) in self.rights

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return principal != ANN


def topic(operation: Operation, name: str = "open") -> Right:
    return operation, ResourceType.TOPIC, name


def cluster(operation: Operation) -> Right:
    return operation, ResourceType.CLUSTER, CLUSTER_NAME


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("open", "secret")
    harness.call(0, FindCoordinatorRequest(key="g"))
    harness.turn()
    return harness


def client_with(
    harness: NodeHarness, *rights: Right, role: ListenerRole = ListenerRole.BROKER
) -> VirtualClient:
    harness.node.gate.authorizer = Rights(*rights)
    return harness.connect(principal=ANN, role=role)


def delayed(harness: NodeHarness, client: VirtualClient, version: int, request: Message) -> Any:
    client.submit(version, request)
    for _ in range(3):
        harness.turn()
    return client.receive(version, type(request))


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


def test_authorized_operations_are_those_of_the_client(harness: NodeHarness) -> None:
    client = client_with(
        harness,
        topic(Operation.DESCRIBE),
        topic(Operation.ALTER_CONFIGS),
        cluster(Operation.DESCRIBE),
        cluster(Operation.CREATE),
        (Operation.DESCRIBE, ResourceType.GROUP, "g"),
    )
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in ("open", "secret")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    response = client.call(8, request)
    found = {one.name: one.topic_authorized_operations for one in response.topics}
    assert found == {"open": bits(Operation.DESCRIBE, Operation.ALTER_CONFIGS), "secret": -(2**31)}
    assert response.cluster_authorized_operations == bits(Operation.DESCRIBE, Operation.CREATE)
    (group,) = client.call(
        4, groups.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    ).groups
    assert group.authorized_operations == bits(Operation.DESCRIBE)


def test_cluster_operations_need_the_right_to_describe_the_cluster(harness: NodeHarness) -> None:
    client = client_with(harness, cluster(Operation.CREATE))
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert client.call(0, request).cluster_authorized_operations == 0
    client = client_with(harness, cluster(Operation.CREATE), cluster(Operation.DESCRIBE))
    assert client.call(0, request).cluster_authorized_operations == bits(Operation.CREATE, Operation.DESCRIBE)


def test_a_transactional_id_is_checked_before_topics(harness: NodeHarness) -> None:
    request = produce_request("secret", transactional=True)
    request.transactional_id = "x"
    for rights, code in (
        ((), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (((Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x"),), DENIED),
    ):
        (response,) = client_with(harness, *rights).call(12, request).responses
        assert [one.error_code for one in response.partition_responses] == [code]


def test_deletion_by_name_needs_the_right_to_describe_the_topic(harness: NodeHarness) -> None:
    describe, delete_open = topic(Operation.DESCRIBE), topic(Operation.DELETE)
    describe_missing = topic(Operation.DESCRIBE, "missing")
    for rights, names, code in (
        ((delete_open,), ["open"], DENIED),
        ((describe,), ["open"], DENIED),
        ((), ["missing"], DENIED),
        ((describe_missing,), ["missing"], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((), ["open", "open"], ErrorCode.INVALID_REQUEST),
        ((describe, delete_open), ["open"], ErrorCode.NONE),
    ):
        client = client_with(harness, *rights)
        response = delayed(harness, client, 5, delete.DeleteTopicsRequest(timeout_ms=9, topic_names=names))
        assert {one.error_code for one in response.responses} == {code}, (rights, names)


def test_a_topic_that_the_gate_does_not_know_yet_is_not_deleted(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller knows a new topic before the gate does."""
    monkeypatch.setattr(harness.node.gate, "_image", MetadataImage)
    state = delete.DeleteTopicState(name=None, topic_id=harness.node.image.topics["open"].topic_id)
    request = delete.DeleteTopicsRequest(timeout_ms=9, topics=[state])
    (result,) = delayed(harness, client_with(harness), 6, request).responses
    assert (result.name, result.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    assert "open" in harness.node.image.topics


def test_a_name_that_the_gate_does_not_know_yet_is_not_deleted(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.node.gate, "_image", MetadataImage)
    request = delete.DeleteTopicsRequest(timeout_ms=9, topic_names=["open"])
    client = client_with(harness, topic(Operation.DESCRIBE))
    (result,) = delayed(harness, client, 5, request).responses
    assert (result.name, result.error_code) == ("open", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert result.error_message == "This server does not host this topic-partition."
    assert "open" in harness.node.image.topics


def test_a_denied_topic_id_is_denied_again_when_the_request_is_forwarded_again(harness: NodeHarness) -> None:
    state = delete.DeleteTopicState(name=None, topic_id=harness.node.image.topics["open"].topic_id)
    request = delete.DeleteTopicsRequest(timeout_ms=9, topics=[state])
    client = client_with(harness, topic(Operation.DESCRIBE))
    (result,) = delayed(harness, client, 6, request).responses
    assert (result.name, result.error_code) == ("open", DENIED)
    context = SimpleNamespace(
        authorizer=None,
        principal=ANN,
        peer_host="",
        api_version=6,
        header=SimpleNamespace(api_key=ApiKey.DELETE_TOPICS),
    )
    for _ in range(2):
        rest, _results = harness.node.gate.admit(context, request)
        assert not rest.topics


def test_a_repeated_topic_gets_one_error(harness: NodeHarness) -> None:
    twice = [partitions.CreatePartitionsTopic(name="secret", count=2, assignments=None)] * 2
    request = partitions.CreatePartitionsRequest(timeout_ms=9, topics=twice)
    (result,) = delayed(harness, client_with(harness), 3, request).results
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_a_page_may_start_at_a_denied_topic(harness: NodeHarness) -> None:
    client = client_with(harness, topic(Operation.DESCRIBE))
    request = pages.DescribeTopicPartitionsRequest(
        topics=[pages.TopicRequest(name=name) for name in ("a-secret", "open", "secret")],
        response_partition_limit=9,
    )
    for start, expected in (
        ("open", {"open": ErrorCode.NONE, "secret": DENIED}),
        ("secret", {"secret": DENIED}),
    ):
        request.cursor = pages.RequestCursor(topic_name=start, partition_index=0)
        found = {one.name: one.error_code for one in client.call(0, request).topics}
        assert found == expected


def test_the_configuration_of_a_new_topic_is_hidden(harness: NodeHarness) -> None:
    new = create.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    request = create.CreateTopicsRequest(timeout_ms=1_000, topics=[new])
    client = client_with(harness, topic(Operation.CREATE, "new"))
    (result,) = delayed(harness, client, 7, request).topics
    assert (result.error_code, result.topic_config_error_code) == (ErrorCode.NONE, DENIED)
    assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, [])


def test_an_invalid_topic_name_comes_before_the_rights(harness: NodeHarness) -> None:
    topics = [producers.TopicRequest(name=name, partition_indexes=[0]) for name in ("a/b", "secret")]
    response = client_with(harness).call(0, producers.DescribeProducersRequest(topics=topics))
    codes = {one.name: one.partitions[0].error_code for one in response.topics}
    assert codes == {"a/b": ErrorCode.INVALID_TOPIC_EXCEPTION, "secret": DENIED}


def test_a_missing_protocol_comes_before_the_right_to_the_group(harness: NodeHarness) -> None:
    client = client_with(harness)
    request = SyncGroupRequest(group_id="g", protocol_type=None, protocol_name=None)
    assert client.call(5, request).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    request = SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range")
    assert client.call(5, request).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_regular_expression_finds_no_hidden_topic(harness: NodeHarness) -> None:
    client = client_with(harness, topic(Operation.DESCRIBE), (Operation.READ, ResourceType.GROUP, "g"))
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        subscribed_topic_regex="open|secret",
        topic_partitions=[],
        rebalance_timeout_ms=1_000,
    )
    for _ in range(2):
        response = delayed(harness, client, 1, request)
        request.member_epoch = response.member_epoch
        harness.host.advance(1_000)  # the interval of assignments
        harness.turn()
    response = delayed(harness, client, 1, request)
    found = [one.topic_id for one in response.assignment.topic_partitions]
    assert found == [harness.node.image.topics["open"].topic_id]


def test_hidden_topics_of_a_regular_expression_are_not_logged(
    harness: NodeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_with(harness, (Operation.READ, ResourceType.GROUP, "g"))
    harness.node.gate.audit_log = AuditLog(harness.host)
    caplog.set_level(TRACE, AUDIT_LOGGER)
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        subscribed_topic_regex=".*",
        topic_partitions=[],
        rebalance_timeout_ms=1_000,
    )
    delayed(harness, client, 1, request)
    harness.host.advance(1_000)
    harness.turn()
    levels = {one.levelno for one in caplog.records if "Topic:LITERAL:secret" in one.getMessage()}
    assert levels == {TRACE}


def test_a_controller_changes_loggers_with_cluster_action(harness: NodeHarness) -> None:
    logger = alter.AlterConfigsResource(resource_type=RESOURCE_BROKER_LOGGER, resource_name="0", configs=[])
    unknown = alter.AlterConfigsResource(resource_type=99, resource_name="a", configs=[])
    twice = [alter.AlterConfigsResource(resource_type=RESOURCE_TOPIC, resource_name="open", configs=[])] * 2
    request = alter.IncrementalAlterConfigsRequest(resources=[logger, unknown, *twice])
    for operation, code in (
        (Operation.ALTER_CONFIGS, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (Operation.CLUSTER_ACTION, ErrorCode.NONE),
    ):
        client = client_with(harness, cluster(operation), role=ListenerRole.CONTROLLER)
        response = delayed(harness, client, 1, request)
        codes = [one.error_code for one in response.responses]
        assert code in codes or code == ErrorCode.NONE
        assert (ErrorCode.CLUSTER_AUTHORIZATION_FAILED in codes) is (code != ErrorCode.NONE)
        assert {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST} <= {*codes}


def test_alter_configs_changes_no_loggers(harness: NodeHarness) -> None:
    logger = legacy.AlterConfigsResource(resource_type=RESOURCE_BROKER_LOGGER, resource_name="0", configs=[])
    client = client_with(harness, role=ListenerRole.CONTROLLER)
    (result,) = delayed(harness, client, 2, legacy.AlterConfigsRequest(resources=[logger])).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST


def altered_broker(broker_id: int, name: str, value: str) -> alter.AlterConfigsResource:
    config = alter.AlterableConfig(name=name, config_operation=0, value=value)
    return alter.AlterConfigsResource(
        resource_type=RESOURCE_BROKER, resource_name=str(broker_id), configs=[config]
    )


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_broker_checks_rights_before_the_values_of_its_configuration(
    harness: NodeHarness, role: str
) -> None:
    """The check of a value may read the file that the value names, and its error describes that file."""
    client = client_with(harness, role=ListenerRole(role))
    resource = altered_broker(harness.node.node_id, "log.retention.ms", "not a number")
    request = alter.IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = delayed(harness, client, 1, request).responses
    assert (result.error_code, result.error_message) == (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        DEFAULT_MESSAGES[ErrorCode.CLUSTER_AUTHORIZATION_FAILED],
    )


def test_a_topic_without_an_id_is_unknown_before_the_rights(harness: NodeHarness) -> None:
    client = client_with(harness, (Operation.READ, ResourceType.GROUP, "g"))
    partitions_of_nothing = [commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    topics = [commit.OffsetCommitRequestTopic(topic_id=ZERO_UUID, partitions=partitions_of_nothing)]
    response = delayed(harness, client, 10, commit.OffsetCommitRequest(group_id="g", topics=topics))
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    response = delayed(harness, client, 13, produce_request(""))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_client_without_rights_is_denied_the_unregistration_of_the_broker_itself(
    harness: NodeHarness,
) -> None:
    request = UnregisterBrokerRequest(broker_id=harness.node.node_id)
    assert delayed(harness, client_with(harness), 0, request).error_code == (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    )
    client = client_with(harness, cluster(Operation.ALTER))
    assert delayed(harness, client, 0, request).error_code == ErrorCode.INVALID_REQUEST


def test_a_denied_follower_gets_no_privileged_fetch_session(harness: NodeHarness) -> None:
    """Otherwise a client without rights could evict the sessions of all consumers."""
    topics = [fetch.FetchTopic(topic="secret", partitions=[fetch.FetchPartition(partition=0)])]
    request = fetch.FetchRequest(session_epoch=0, replica_id=7, topics=topics)
    for rights, is_privileged in (((), False), ((cluster(Operation.CLUSTER_ACTION),), True)):
        session_id = client_with(harness, *rights).call(12, request).session_id
        assert harness.node.fetch_sessions._sessions[session_id].privileged is is_privileged


@pytest.mark.parametrize(("host", "code"), [("127.0.0.1", DENIED), ("10.0.0.9", ErrorCode.NONE)])
def test_a_forwarded_request_is_authorized_for_the_host_in_its_envelope(
    harness: NodeHarness, host: str, code: ErrorCode
) -> None:
    node = Principal("User", "node")
    empty = StandardAuthorizer(frozenset({str(node)}), allows_without_acls=False)
    allowed = Acl(
        *(ResourceType.TOPIC, "new", PatternType.LITERAL, Operation.CREATE),
        *(str(ANN), "10.0.0.9", Permission.ALLOW),
    )
    harness.node.gate.authorizer = empty.changed(added=[allowed])
    topics = [create.CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    inner = encode_request(create.CreateTopicsRequest(topics=topics, timeout_ms=1_000), 7, 1, "c")[4:]
    request = envelope(inner, ANN, host)
    client = harness.connect(role=ListenerRole.CONTROLLER, principal=node)
    response = delayed(harness, client, 0, request)
    _, forwarded = decode_response(create.CreateTopicsResponse, 7, response.response_data)
    assert [topic.error_code for topic in forwarded.topics] == [code]


def test_only_an_acl_with_a_principal_type_is_created(harness: NodeHarness) -> None:
    acls = [
        AclCreation(
            resource_type=ResourceType.TOPIC,
            resource_name="open",
            resource_pattern_type=3,
            principal=principal,
            host="*",
            operation=Operation.READ,
            permission_type=3,
        )
        for principal in ("User:bob", "bob")
    ]
    client = client_with(harness, cluster(Operation.ALTER))
    response = delayed(harness, client, 3, CreateAclsRequest(creations=acls))
    created, invalid = response.results
    assert (created.error_code, created.error_message) == (ErrorCode.NONE, "")
    assert invalid.error_code == ErrorCode.INVALID_REQUEST
    assert "no colon" in invalid.error_message


NAMES: Final = [f"name-{number}" for number in range(5_000)]


def offset_fetch_of(topics: list[OffsetFetchRequestTopic] | None) -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id="g", topics=topics)


@pytest.mark.parametrize(
    ("version", "request_"),
    [
        (0, groups.DescribeGroupsRequest(groups=NAMES)),
        (4, FindCoordinatorRequest(coordinator_keys=NAMES)),
        (
            0,
            pages.DescribeTopicPartitionsRequest(
                topics=[pages.TopicRequest(name=name) for name in NAMES], response_partition_limit=9
            ),
        ),
        (5, delete.DeleteTopicsRequest(timeout_ms=9, topic_names=NAMES)),
        (
            3,
            transaction.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="x",
                v3_and_below_topics=[
                    transaction.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in NAMES
                ],
            ),
        ),
        (7, offset_fetch_of([OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in NAMES])),
        (7, offset_fetch_of(None)),
    ],
    ids=[
        *("DescribeGroups", "FindCoordinator", "DescribeTopicPartitions", "DeleteTopics"),
        *("AddPartitionsToTxn", "OffsetFetch", "OffsetFetch of all topics"),
    ],
)
def test_a_large_request_is_authorized_in_slices(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch, version: int, request_: Message
) -> None:
    """A denied item may take a log line, so a request of some MiB would stop all other connections."""
    commits = [PartitionCommit(name, 0, 1, NO_LEADER_EPOCH, "", ZERO_UUID) for name in NAMES]
    harness.node.groups.commit_offsets(OffsetCommit("g", -1, "", None, commits, None, 8), lambda code: None)
    harness.turn()
    client = client_with(
        harness,
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x"),
        (Operation.DESCRIBE, ResourceType.GROUP, "g"),
    )
    counts, call_soon, allows = [0], harness.host.call_soon, Rights.allows

    def counting(self: Rights, *asked: Any) -> bool:
        counts[-1] += 1
        return allows(self, *asked)

    def call_in_next_turn(callback: Callable[[], None]) -> None:
        def turn() -> None:
            counts.append(0)
            callback()

        call_soon(turn)

    monkeypatch.setattr(Rights, "allows", counting)
    monkeypatch.setattr(harness.host, "call_soon", call_in_next_turn)
    assert delayed(harness, client, version, request_) is not None
    assert sum(counts) >= len(NAMES)
    assert max(counts) < 300


def test_a_large_request_returns_each_item_in_its_place(harness: NodeHarness) -> None:
    client = client_with(harness, (Operation.DESCRIBE, ResourceType.GROUP, "name-4000"))
    described = delayed(harness, client, 0, groups.DescribeGroupsRequest(groups=NAMES)).groups
    assert [one.group_id for one in described] == NAMES
    assert [one.group_id for one in described if one.error_code == ErrorCode.NONE] == ["name-4000"]
