"""Changes of the ACLs during a request, which sees one version of them, and between requests."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from kwire.broker.api.request.audit_log import AuditLog
from kwire.broker.api.request.authorized_operations import authorized_operations
from kwire.broker.api.request.gate import Gate
from kwire.broker.api.request.slices import LARGE_REQUEST_BYTES
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.api.request.topic_rights import TopicRights
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_TOPIC
from kwire.broker.security.acl import ALL_OPERATIONS, Acl, PatternType, Permission
from kwire.broker.security.authorizer import SUPPORTED_OPERATIONS, Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.host.loggers import AUDIT_LOGGER, TRACE
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import add_partitions_to_txn as transaction
from kwire.wire.messages import consumer_group_heartbeat as consumer
from kwire.wire.messages import create_topics as create
from kwire.wire.messages import delete_topics as delete
from kwire.wire.messages import describe_groups as groups
from kwire.wire.messages import describe_topic_partitions as pages
from kwire.wire.messages import fetch, metadata, offset_fetch
from kwire.wire.messages import incremental_alter_configs as alter
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.envelope import EnvelopeRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kwire.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kwire.wire.registry import encode_record, encode_request
from kwire.wire.schema import Message
from tests.node_harness import NodeHarness, fetch_request, produce_request

ANN: Final = Principal("User", "ann")
NODE: Final = Principal("User", "node")
NAMES: Final = [f"{'open' if number % 2 else 'secret'}-{number:016}" for number in range(1_700)]
FEW: Final = ["open", "secret", "open-missing", "secret-missing"]
LOCALHOST: Final = ipaddress.ip_address("127.0.0.1").packed


class Rules(StandardAuthorizer):
    """Rules that deny ann everything on resources with "secret" in their names."""

    def __init__(self, on_decision: Callable[[], None] = lambda: None, *, is_inverted: bool = False) -> None:
        super().__init__(frozenset(), allows_without_acls=False)
        self._on_decision = on_decision
        self._is_inverted = is_inverted

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        self._on_decision()
        if principal != ANN:
            return True
        is_allowed = "secret" not in name and operation is not Operation.DESCRIBE_CONFIGS
        if resource_type is ResourceType.CLUSTER and operation in (Operation.CREATE, Operation.DELETE):
            is_allowed = False  # these operations would suffice instead of those on topics
        return is_allowed is not self._is_inverted

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return self.allows(principal, host, operation, resource_type, "open")


class ChangingRules:
    """The rules of a gate. They turn into their opposite after a number of decisions."""

    def __init__(self, gate: Gate, decisions: int | None = None) -> None:
        self._gate = gate
        self._left = decisions
        self.decisions = 0
        gate.authorizer = Rules(self._count)

    def _count(self) -> None:
        self.decisions += 1
        if self.decisions == self._left:
            self._gate.authorizer = Rules(self._count, is_inverted=True)


def new_harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("open", "secret")
    harness.call(0, FindCoordinatorRequest(key="open"))
    harness.turn()
    return harness


@pytest.fixture
def harness() -> NodeHarness:
    return new_harness()


def create_topics(names: list[str]) -> create.CreateTopicsRequest:
    topics = [create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return create.CreateTopicsRequest(topics=topics, timeout_ms=1_000, validate_only=True)


def in_envelope(version: int, request: Message) -> EnvelopeRequest:
    data = DefaultPrincipalData(type=ANN.type, name=ANN.name, token_authenticated=False)
    return EnvelopeRequest(
        request_data=encode_request(request, version, 1, "c")[4:],
        request_principal=encode_record(data, 0),
        client_host_address=LOCALHOST,
    )


def alter_configs() -> alter.IncrementalAlterConfigsRequest:
    named = [(RESOURCE_BROKER_LOGGER, "0"), (RESOURCE_BROKER, "0"), (RESOURCE_TOPIC, "open")]
    resources = [
        alter.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[]) for kind, name in named
    ]
    return alter.IncrementalAlterConfigsRequest(resources=resources, validate_only=True)


def metadata_request(names: list[str]) -> metadata.MetadataRequest:
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )


def offset_fetch_request(names: list[str]) -> offset_fetch.OffsetFetchRequest:
    topics = [offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in names]
    return offset_fetch.OffsetFetchRequest(
        require_stable=True,
        groups=[
            offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=topics) for name in ("open", "secret")
        ],
    )


def fetch_of(names: list[str]) -> fetch.FetchRequest:
    partitions = [fetch.FetchPartition(partition=0, partition_max_bytes=100)]
    topics = [fetch.FetchTopic(topic=name, partitions=partitions) for name in names]
    return fetch.FetchRequest(topics=topics, max_bytes=1_000)


def add_partitions(names: list[str]) -> transaction.AddPartitionsToTxnRequest:
    return transaction.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="open",
        v3_and_below_topics=[
            transaction.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names
        ],
    )


def transactional_produce() -> Message:
    request = produce_request("open", transactional=True)
    request.transactional_id = "open"
    request.topic_data += produce_request("secret").topic_data
    return request


GATE_ONLY: Final = {
    "DeleteTopics": (5, delete.DeleteTopicsRequest(timeout_ms=9, topic_names=FEW)),
    "DescribeGroups": (
        5,
        groups.DescribeGroupsRequest(groups=FEW, include_authorized_operations=True),
    ),
}
BY_HANDLER: Final = {
    "Metadata": (10, metadata_request(FEW)),
    "DescribeTopicPartitions": (
        0,
        pages.DescribeTopicPartitionsRequest(
            topics=[pages.TopicRequest(name=name) for name in FEW], response_partition_limit=9
        ),
    ),
    "OffsetFetch": (8, offset_fetch_request(FEW)),
    "Fetch": (12, fetch_of(FEW)),
    "AddPartitionsToTxn": (3, add_partitions(FEW)),
}
BY_BOTH: Final = {
    "Produce": (12, transactional_produce()),
    "CreateTopics": (7, create_topics(FEW)),
    "Envelope": (0, in_envelope(7, create_topics(FEW))),
    "IncrementalAlterConfigs": (1, alter_configs()),
}
SMALL: Final = GATE_ONLY | BY_HANDLER | BY_BOTH
LARGE: Final = {
    "DeleteTopics": (5, delete.DeleteTopicsRequest(timeout_ms=9, topic_names=NAMES)),
    "DescribeGroups": (5, groups.DescribeGroupsRequest(groups=NAMES, include_authorized_operations=True)),
    "Metadata": (10, metadata_request(NAMES)),
    "OffsetFetch": (8, offset_fetch_request(NAMES)),
    "Fetch": (12, fetch_of(NAMES)),
    "AddPartitionsToTxn": (3, add_partitions(NAMES)),
    "CreateTopics": (7, create_topics(NAMES)),
}


def response_to(version: int, request: Message, decisions: int | None = None) -> tuple[bytes, ChangingRules]:
    """Return the response of a new node whose ACLs change after a number of decisions."""
    harness = new_harness()
    is_envelope = isinstance(request, EnvelopeRequest)
    client = harness.connect(
        principal=NODE if is_envelope else ANN,
        role=ListenerRole.CONTROLLER if is_envelope else ListenerRole.BROKER,
    )
    rules = ChangingRules(harness.node.gate, decisions)
    client.send(version, request)
    for _ in range(3):
        harness.turn()
    found = client.take_bytes()
    assert found
    return found, rules


@pytest.mark.parametrize("api", SMALL)
def test_the_response_does_not_depend_on_acls_that_change_during_the_request(api: str) -> None:
    version, request = SMALL[api]
    expected, unchanged = response_to(version, request)
    assert unchanged.decisions > 1
    for decisions in range(1, unchanged.decisions):
        found, _ = response_to(version, request, decisions)
        assert found == expected, decisions


@pytest.mark.parametrize("api", LARGE)
def test_all_slices_of_a_large_request_see_one_version_of_the_acls(api: str) -> None:
    version, request = LARGE[api]
    assert len(encode_request(request, version, 1, "c")) > LARGE_REQUEST_BYTES
    expected, unchanged = response_to(version, request)
    assert unchanged.decisions >= len(NAMES)
    for decisions in (1, unchanged.decisions // 3, unchanged.decisions - 1):
        found, _ = response_to(version, request, decisions)
        assert found == expected, decisions


def test_the_topics_of_a_regular_expression_are_those_of_one_version_of_the_acls() -> None:
    for decisions in (None, 1, 2, 3):
        harness = new_harness()
        client = harness.connect(principal=ANN)
        rules = ChangingRules(harness.node.gate, decisions)
        joined = consumer.ConsumerGroupHeartbeatRequest(
            group_id="open",
            member_id="m",
            subscribed_topic_regex="open|secret",
            topic_partitions=[],
            rebalance_timeout_ms=60_000,
        )
        client.submit(1, joined)
        for _ in range(3):
            harness.turn()
        harness.host.advance(1_000)  # the interval of assignments
        assert rules.decisions > 2
        harness.node.gate.authorizer = None
        response = client.receive(1, consumer.ConsumerGroupHeartbeatRequest)
        joined.member_epoch = response.member_epoch
        client.submit(1, joined)
        harness.turn()
        assignment = client.receive(1, consumer.ConsumerGroupHeartbeatRequest).assignment
        found = [one.topic_id for one in assignment.topic_partitions]
        assert found == [harness.node.image.topics["open"].topic_id], decisions


def test_the_audit_log_has_the_rule_of_the_version_that_decided(
    harness: NodeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    acls = [
        Acl(
            *(ResourceType.TOPIC, name, PatternType.PREFIXED, ALL_OPERATIONS, f"User:{ANN.name}", "*"),
            Permission.DENY,
        )
        for name in ("", "secret")
    ]
    gate = harness.node.gate
    gate.authorizer = StandardAuthorizer(frozenset(), allows_without_acls=False).changed(added=acls[:1])
    gate.audit_log = AuditLog(harness.host)
    caplog.set_level("INFO", AUDIT_LOGGER)
    client = harness.connect(principal=ANN)
    client.submit(10, metadata_request(NAMES))
    while not caplog.records:
        harness.host.events.soon.popleft()()
    gate.authorizer = gate.authorizer.changed(acls[:1], acls[1:])
    harness.turn()
    lines = [line for one in caplog.records if " resource = Topic:" in (line := one.getMessage())]
    assert len(lines) == len(NAMES)
    assert all(line.endswith(f"rule MatchingAcl(acl={acls[0]})") for line in lines)


def test_all_kinds_of_decisions_are_logged_with_the_rule_that_decided(
    harness: NodeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Listed operations, rights on any resource, a counted topic, and a report without a line."""
    gate = harness.node.gate
    allowing = StandardAuthorizer(frozenset(), allows_without_acls=True)
    gate.authorizer = StandardAuthorizer(frozenset(), allows_without_acls=False)
    audit_log = gate.audit_log = AuditLog(harness.host)
    reported: list[str] = []
    audit_log.on_denied = lambda *denied: reported.append(str(denied[-1]))
    caplog.set_level(TRACE, AUDIT_LOGGER)
    context: Any = SimpleNamespace(
        principal=ANN, peer_host="::1", header=SimpleNamespace(api_key=ApiKey.METADATA), authorizer=None
    )
    rights = TopicRights(gate, context, Operation.READ, ["open", "secret", "secret"])
    assert not rights["open"]
    gate.authorizer = allowing
    assert not rights["secret"]
    assert not authorized_operations(gate, context, ResourceType.TOPIC, "open")
    assert not gate.allows_any(context, Operation.WRITE, ResourceType.TOPIC)
    gate.report_denied(context, Operation.IDEMPOTENT_WRITE)
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) == 2 + len(SUPPORTED_OPERATIONS[ResourceType.TOPIC]) + 1
    assert all(line.endswith("based on rule DefaultDeny") for line in lines)
    assert reported == ["DefaultDeny"] * 3


def test_a_delayed_fetch_ends_as_it_began_and_the_next_one_sees_new_acls(harness: NodeHarness) -> None:
    client = harness.connect(principal=ANN)
    gate = harness.node.gate
    gate.authorizer = Rules()
    request = fetch_request("open")
    request.min_bytes = 1
    client.submit(12, request)
    gate.authorizer = Rules(is_inverted=True)
    harness.produce("open")
    harness.turn()
    codes = [_fetch_error(client.receive(12, fetch.FetchRequest)), _fetch_error(client.call(12, request))]
    assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def _fetch_error(response: Any) -> int:
    code: int = response.responses[0].partitions[0].error_code
    return code


def test_a_repeated_fetch_of_a_session_sees_new_acls(harness: NodeHarness) -> None:
    client = harness.connect(principal=ANN)
    gate = harness.node.gate
    gate.authorizer = Rules()
    begun = client.call(12, fetch.FetchRequest(session_epoch=0, topics=fetch_of(["open"]).topics))
    for epoch, rules, code in (
        (1, gate.authorizer, None),
        (2, Rules(is_inverted=True), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (3, Rules(), None),
    ):
        gate.authorizer = rules
        request = fetch.FetchRequest(session_id=begun.session_id, session_epoch=epoch)
        codes = [data.partitions[0].error_code for data in client.call(12, request).responses]
        assert [one for one in codes if one] == ([] if code is None else [code])


def heartbeating(harness: NodeHarness, client: VirtualClient) -> HeartbeatRequest:
    """Join a classic group, and return the heartbeat of its member."""
    join = JoinGroupRequest(
        group_id="open",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    client.submit(3, join)
    harness.host.advance(5_000)  # group.initial.rebalance.delay.ms
    joined = client.receive(3, JoinGroupRequest)
    assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
    sync = SyncGroupRequest(
        group_id="open",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=assignments,
    )
    client.submit(3, sync)
    harness.turn()
    assert client.receive(3, SyncGroupRequest).error_code == ErrorCode.NONE
    return HeartbeatRequest(group_id="open", member_id=joined.member_id, generation_id=joined.generation_id)


def test_a_repeated_heartbeat_sees_new_acls(harness: NodeHarness) -> None:
    client = harness.connect(principal=ANN)
    gate = harness.node.gate
    gate.authorizer = Rules()
    request = heartbeating(harness, client)
    for rules, code in (
        (gate.authorizer, ErrorCode.NONE),
        (gate.authorizer, ErrorCode.NONE),
        (Rules(is_inverted=True), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (Rules(), ErrorCode.NONE),
    ):
        gate.authorizer = rules
        assert client.call(4, request).error_code == code
        assert (client.channel.repeated_request is not None) is (code == ErrorCode.NONE)


def test_a_request_before_the_acls_are_loaded_fails_completely(harness: NodeHarness) -> None:
    gate = harness.node.gate
    unloaded = StandardAuthorizer(frozenset({"User:node"}), allows_without_acls=True, is_loaded=False)
    gate.authorizer = unloaded
    request = metadata_request(["open"])
    assert [one.error_code for one in harness.connect(principal=NODE).call(10, request).topics] == [0]
    client = harness.connect(principal=ANN)
    for rules, code in ((unloaded, ErrorCode.UNKNOWN_SERVER_ERROR), (unloaded.changed(), ErrorCode.NONE)):
        gate.authorizer = rules
        assert [one.error_code for one in client.call(10, request).topics] == [code]
