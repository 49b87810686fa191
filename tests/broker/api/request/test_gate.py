"""A gate that denies one topic to one client: on every path, and for every API that names topics."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kwire.broker.api.request.needs import ItemNeed, Need
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, ListenerRole
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import alter_configs as legacy
from kwire.wire.messages import consumer_group_heartbeat as consumer
from kwire.wire.messages import create_partitions as partitions
from kwire.wire.messages import create_topics as create
from kwire.wire.messages import delete_records as records
from kwire.wire.messages import delete_topics as delete
from kwire.wire.messages import describe_configs as configs
from kwire.wire.messages import describe_producers as producers
from kwire.wire.messages import describe_topic_partitions as described
from kwire.wire.messages import fetch, heartbeat, list_offsets, metadata, produce
from kwire.wire.messages import incremental_alter_configs as incremental
from kwire.wire.messages import offset_commit as commit
from kwire.wire.messages import offset_delete as offset_deletion
from kwire.wire.messages import offset_fetch as offsets
from kwire.wire.messages import offset_for_leader_epoch as epochs
from kwire.wire.messages import txn_offset_commit as txn_commit
from kwire.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.envelope import EnvelopeRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.primitives import Uuid
from kwire.wire.registry import API_VERSIONS, decode_response, encode_record, encode_request
from kwire.wire.schema import fields_of
from tests.node_harness import NodeHarness, produce_request

ANN = Principal("User", "ann")
NODE = Principal("User", "node")
TOPIC_RESOURCE = 2
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
LOCALHOST = ipaddress.ip_address("127.0.0.1").packed


class OneTopicDenied(StandardAuthorizer):
    """Rules that deny the topic "secret" to ann, and allow everything else."""

    def __init__(self) -> None:
        super().__init__(frozenset(), allows_without_acls=False)

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        assert host == "127.0.0.1"
        if principal != ANN:
            return True
        if resource_type is ResourceType.CLUSTER:
            # These operations would suffice instead of those on topics.
            return operation not in (Operation.CREATE, Operation.DELETE, Operation.CLUSTER_ACTION)
        return not (resource_type is ResourceType.TOPIC and name == "secret")

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return True


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("open", "secret")
    harness.call(0, FindCoordinatorRequest(key="g"))
    harness.turn()
    harness.node.gate.authorizer = OneTopicDenied()
    return harness


def client_of(harness: NodeHarness) -> VirtualClient:
    return harness.connect(principal=ANN)


class Case(NamedTuple):
    """A request that names topics, and the part of its response that has the result of each topic."""

    api_key: ApiKey
    version: int
    request: Callable[[list[str], Callable[[str], Uuid]], Any]
    results: Callable[[Any], Iterator[tuple[Any, int]]]
    allowed: ErrorCode = ErrorCode.NONE
    """The result of the topic that is allowed."""


def by_partition(field: str = "topics", name: str = "name", partitions: str = "partitions") -> Any:
    """Return a function for the results of partitions, in a list of topics."""

    def results(response: Any) -> Iterator[tuple[Any, int]]:
        for topic in getattr(response, field):
            for partition in getattr(topic, partitions):
                code = getattr(partition, "partition_error_code", None)
                yield getattr(topic, name), partition.error_code if code is None else code

    return results


def by_topic(field: str = "topics", name: str = "name") -> Any:
    return lambda response: ((getattr(one, name), one.error_code) for one in getattr(response, field))


def records_of(name: str) -> Any:
    return produce_request(name).topic_data[0]


CASES = [
    Case(
        ApiKey.PRODUCE,
        12,
        lambda names, id_of: produce.ProduceRequest(
            acks=-1, timeout_ms=1, topic_data=[records_of(name) for name in names]
        ),
        by_partition("responses", partitions="partition_responses"),
    ),
    Case(
        ApiKey.PRODUCE,
        13,
        lambda names, id_of: produce.ProduceRequest(
            acks=-1,
            timeout_ms=1,
            topic_data=[
                produce.TopicProduceData(topic_id=id_of(name), partition_data=records_of(name).partition_data)
                for name in names
            ],
        ),
        by_partition("responses", "topic_id", "partition_responses"),
    ),
    Case(
        ApiKey.FETCH,
        12,
        lambda names, id_of: fetch.FetchRequest(
            topics=[
                fetch.FetchTopic(topic=name, partitions=[fetch.FetchPartition(partition=0)]) for name in names
            ]
        ),
        by_partition("responses", "topic"),
    ),
    Case(
        ApiKey.FETCH,
        13,
        lambda names, id_of: fetch.FetchRequest(
            topics=[
                fetch.FetchTopic(topic_id=id_of(name), partitions=[fetch.FetchPartition(partition=0)])
                for name in names
            ]
        ),
        by_partition("responses", "topic_id"),
    ),
    Case(
        ApiKey.LIST_OFFSETS,
        5,
        lambda names, id_of: list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=name, partitions=[list_offsets.ListOffsetsPartition(timestamp=-1)]
                )
                for name in names
            ],
        ),
        by_partition(),
    ),
    Case(
        ApiKey.METADATA,
        12,
        lambda names, id_of: metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name) for name in names]
        ),
        by_topic(),
    ),
    Case(
        ApiKey.METADATA,
        13,
        lambda names, id_of: metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(topic_id=id_of(name), name=None) for name in names]
        ),
        by_topic(name="topic_id"),
    ),
    Case(
        ApiKey.OFFSET_COMMIT,
        9,
        lambda names, id_of: commit.OffsetCommitRequest(
            group_id="g",
            topics=[
                commit.OffsetCommitRequestTopic(name=name, partitions=[commit.OffsetCommitRequestPartition()])
                for name in names
            ],
        ),
        by_partition(),
    ),
    Case(
        ApiKey.OFFSET_COMMIT,
        10,
        lambda names, id_of: commit.OffsetCommitRequest(
            group_id="g",
            topics=[
                commit.OffsetCommitRequestTopic(
                    topic_id=id_of(name), partitions=[commit.OffsetCommitRequestPartition()]
                )
                for name in names
            ],
        ),
        by_partition(name="topic_id"),
    ),
    Case(
        ApiKey.OFFSET_FETCH,
        7,
        lambda names, id_of: offsets.OffsetFetchRequest(
            group_id="g",
            topics=[offsets.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in names],
        ),
        by_partition(),
    ),
    Case(
        ApiKey.OFFSET_FETCH,
        10,
        lambda names, id_of: offsets.OffsetFetchRequest(
            groups=[
                offsets.OffsetFetchRequestGroup(
                    group_id="g",
                    topics=[
                        offsets.OffsetFetchRequestTopics(topic_id=id_of(name), partition_indexes=[0])
                        for name in names
                    ],
                )
            ]
        ),
        lambda response: by_partition(name="topic_id")(response.groups[0]),
    ),
    Case(
        ApiKey.CREATE_TOPICS,
        7,
        lambda names, id_of: create.CreateTopicsRequest(
            timeout_ms=1_000, topics=[create.CreatableTopic(name=name, num_partitions=1) for name in names]
        ),
        by_topic(),
        ErrorCode.TOPIC_ALREADY_EXISTS,
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        5,
        lambda names, id_of: delete.DeleteTopicsRequest(timeout_ms=1_000, topic_names=names),
        by_topic("responses"),
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        6,
        lambda names, id_of: delete.DeleteTopicsRequest(
            timeout_ms=1_000,
            topics=[delete.DeleteTopicState(name=None, topic_id=id_of(name)) for name in names],
        ),
        by_topic("responses", "topic_id"),
    ),
    Case(
        ApiKey.DELETE_RECORDS,
        2,
        lambda names, id_of: records.DeleteRecordsRequest(
            timeout_ms=1_000,
            topics=[
                records.DeleteRecordsTopic(name=name, partitions=[records.DeleteRecordsPartition(offset=0)])
                for name in names
            ],
        ),
        by_partition(),
    ),
    Case(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        lambda names, id_of: epochs.OffsetForLeaderEpochRequest(
            topics=[
                epochs.OffsetForLeaderTopic(topic=name, partitions=[epochs.OffsetForLeaderPartition()])
                for name in names
            ]
        ),
        by_partition(name="topic"),
    ),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        lambda names, id_of: AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names],
        ),
        by_partition("results_by_topic_v3_and_below", partitions="results_by_partition"),
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    ),
    Case(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        lambda names, id_of: txn_commit.TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="",
            topics=[
                txn_commit.TxnOffsetCommitRequestTopic(
                    name=name, partitions=[txn_commit.TxnOffsetCommitRequestPartition()]
                )
                for name in names
            ],
        ),
        by_partition(),
        ErrorCode.INVALID_GROUP_ID,
    ),
    Case(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        lambda names, id_of: configs.DescribeConfigsRequest(
            resources=[
                configs.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name)
                for name in names
            ]
        ),
        by_topic("results", "resource_name"),
    ),
    Case(
        ApiKey.ALTER_CONFIGS,
        2,
        lambda names, id_of: legacy.AlterConfigsRequest(
            resources=[
                legacy.AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name)
                for name in names
            ]
        ),
        by_topic("responses", "resource_name"),
    ),
    Case(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        lambda names, id_of: incremental.IncrementalAlterConfigsRequest(
            resources=[
                incremental.AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name)
                for name in names
            ]
        ),
        by_topic("responses", "resource_name"),
    ),
    Case(
        ApiKey.CREATE_PARTITIONS,
        3,
        lambda names, id_of: partitions.CreatePartitionsRequest(
            timeout_ms=1_000,
            topics=[partitions.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names],
        ),
        by_topic("results"),
    ),
    Case(
        ApiKey.OFFSET_DELETE,
        0,
        lambda names, id_of: offset_deletion.OffsetDeleteRequest(
            group_id="g",
            topics=[
                offset_deletion.OffsetDeleteRequestTopic(
                    name=name, partitions=[offset_deletion.OffsetDeleteRequestPartition()]
                )
                for name in names
            ],
        ),
        by_partition(),
    ),
    Case(
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        lambda names, id_of: producers.DescribeProducersRequest(
            topics=[producers.TopicRequest(name=name, partition_indexes=[0]) for name in names]
        ),
        by_partition(),
    ),
    Case(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda names, id_of: described.DescribeTopicPartitionsRequest(
            topics=[described.TopicRequest(name=name) for name in names]
        ),
        by_topic(),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.api_key.name}-v{case.version}")
def test_a_denied_topic_gets_an_error_and_others_are_served(harness: NodeHarness, case: Case) -> None:
    stored = {name: topic.topic_id for name, topic in harness.node.image.topics.items()}
    if case.api_key in (ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE):
        (commit_case,) = (one for one in CASES if (one.api_key, one.version) == (ApiKey.OFFSET_COMMIT, 9))
        harness.call(9, commit_case.request(["open", "secret"], stored.__getitem__))
    for names in (["open", "secret"], ["secret", "open"], ["secret"]):
        client = client_of(harness)
        client.submit(case.version, case.request(names, stored.__getitem__))
        for _ in range(3):
            harness.turn()
        response = client.receive(case.version, API_VERSIONS[case.api_key].request_class)
        # Responses with topic ids have no names.
        names_by_key: dict[Any, str] = {stored[name]: name for name in names} | {name: name for name in names}
        found = {names_by_key[key]: code for key, code in case.results(response)}
        assert found.pop("secret") == DENIED
        if case.api_key not in (ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS) or names[0] == "open":
            assert found == dict.fromkeys({"open"} & {*names}, case.allowed)
    assert "secret" in harness.node.image.topics
    assert harness.latest_offset("secret").offset == 0


def test_the_cases_cover_every_need_for_a_topic() -> None:
    """Other APIs are tested below, since they do not return one result per topic."""
    covered = {case.api_key for case in CASES} | {ApiKey.CONSUMER_GROUP_HEARTBEAT}
    for key, api in SUPPORTED_APIS.items():
        for need in api.needs:
            if isinstance(need, Need | ItemNeed) and need.resource_type in (ResourceType.TOPIC, None):
                assert key in covered, key


def test_the_name_of_a_resource_that_a_request_needs_cannot_be_null() -> None:
    """The gate would skip the need of a resource without a name. A null list of names is no need."""
    for key, api in SUPPORTED_APIS.items():
        fields = {one.name: one for one in fields_of(API_VERSIONS[key].request_class)}
        for need in api.needs:
            if isinstance(need, Need) and need.field:
                one = fields[need.field]
                assert one.is_list or not any(version in one.nullable for version in api.accepted_versions), (
                    key
                )


def test_a_denied_topic_is_missing_where_all_topics_are_requested(harness: NodeHarness) -> None:
    client = client_of(harness)
    for version, everything in ((0, []), (12, None)):
        response = client.call(version, metadata.MetadataRequest(topics=everything))
        assert {topic.name for topic in response.topics} == {"__consumer_offsets", "open"}
        assert response.brokers
    response = client.call(0, described.DescribeTopicPartitionsRequest(topics=[]))
    assert {topic.name for topic in response.topics} == {"__consumer_offsets", "open"}


def test_a_topic_id_does_not_reveal_the_name_of_a_denied_topic(harness: NodeHarness) -> None:
    topic_id = harness.node.image.topics["secret"].topic_id
    requested = [metadata.MetadataRequestTopic(topic_id=topic_id, name=None)]
    (topic,) = client_of(harness).call(12, metadata.MetadataRequest(topics=requested)).topics
    assert (topic.name, topic.error_code, topic.partitions) == (None, DENIED, [])
    state = delete.DeleteTopicState(name=None, topic_id=topic_id)
    client = client_of(harness)
    client.submit(6, delete.DeleteTopicsRequest(timeout_ms=1_000, topics=[state]))
    harness.turn()
    (result,) = client.receive(6, delete.DeleteTopicsRequest).responses
    assert (result.name, result.topic_id, result.error_code) == (None, topic_id, DENIED)


def test_a_denied_topic_is_not_created_automatically(harness: NodeHarness) -> None:
    class CreationDenied(OneTopicDenied):
        def allows(
            self,
            principal: Principal,
            host: str,
            operation: Operation,
            resource_type: ResourceType,
            name: str,
        ) -> bool:
            return operation is Operation.DESCRIBE or (
                resource_type is ResourceType.TOPIC and name != "hidden"
            )

    harness.node.gate.authorizer = CreationDenied()
    names = ["new", "hidden"]
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=name) for name in names])
    codes = {topic.name: topic.error_code for topic in client_of(harness).call(12, request).topics}
    assert codes == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "hidden": DENIED}
    harness.turn()
    assert set(harness.node.image.topics) == {"__consumer_offsets", "open", "secret", "new"}


def test_a_forwarded_request_is_authorized_for_the_principal_in_its_envelope(harness: NodeHarness) -> None:
    topics = [create.CreatableTopic(name=name, num_partitions=1) for name in ("secret", "new")]
    inner = encode_request(create.CreateTopicsRequest(topics=topics, timeout_ms=1_000), 7, 1, "c")[4:]
    for principal, code in ((ANN, DENIED), (NODE, ErrorCode.TOPIC_ALREADY_EXISTS)):
        data = DefaultPrincipalData(type=principal.type, name=principal.name, token_authenticated=False)
        envelope = EnvelopeRequest(
            request_data=inner, request_principal=encode_record(data, 0), client_host_address=LOCALHOST
        )
        response = harness.connect(role=ListenerRole.CONTROLLER, principal=NODE).call(0, envelope)
        _, forwarded = decode_response(create.CreateTopicsResponse, 7, response.response_data)
        results = {topic.name: topic.error_code for topic in forwarded.topics}
        assert results["secret"] == code


def test_an_envelope_needs_cluster_action(harness: NodeHarness) -> None:
    client = harness.connect(role=ListenerRole.CONTROLLER, principal=ANN)
    response = client.call(0, EnvelopeRequest(request_data=b"", client_host_address=LOCALHOST))
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_fetch_session_forgets_no_denial(harness: NodeHarness) -> None:
    harness.node.gate.authorizer = None
    client = client_of(harness)
    topics = [
        fetch.FetchTopic(topic=name, partitions=[fetch.FetchPartition(partition=0)])
        for name in ("open", "secret")
    ]
    begun = client.call(12, fetch.FetchRequest(session_epoch=0, topics=topics))
    assert begun.session_id
    harness.node.gate.authorizer = OneTopicDenied()
    request = fetch.FetchRequest(session_id=begun.session_id, session_epoch=1)
    found = by_partition("responses", "topic")(client.call(12, request))
    assert dict(found) == {"secret": DENIED}


def test_a_follower_without_cluster_action_gets_an_error_for_each_partition(harness: NodeHarness) -> None:
    topics = [fetch.FetchTopic(topic="open", partitions=[fetch.FetchPartition(partition=0)])]
    response = client_of(harness).call(12, fetch.FetchRequest(replica_id=7, topics=topics))
    assert dict(by_partition("responses", "topic")(response)) == {"open": DENIED}


def test_a_consumer_cannot_subscribe_to_a_denied_topic(harness: NodeHarness) -> None:
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g",
        subscribed_topic_names=["open", "secret"],
        topic_partitions=[],
        rebalance_timeout_ms=1_000,
    )
    assert client_of(harness).call(0, request).error_code == DENIED


class GroupDenied(OneTopicDenied):
    """Rules that also deny the group "g"."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return not (resource_type is ResourceType.GROUP and name == "g")


def test_a_request_is_not_repeated_after_the_rules_have_changed(harness: NodeHarness) -> None:
    client = client_of(harness)
    joined = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g", subscribed_topic_names=["open"], topic_partitions=[], rebalance_timeout_ms=60_000
    )
    client.submit(0, joined)
    for _ in range(3):
        harness.turn()
    member = client.receive(0, consumer.ConsumerGroupHeartbeatRequest)
    assert member.error_code == ErrorCode.NONE
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member.member_id, member_epoch=member.member_epoch
    )
    for _ in range(2):
        assert client.call(0, request).error_code == ErrorCode.NONE
    assert client.channel.repeated_request is not None
    harness.node.gate.authorizer = GroupDenied()
    assert client.call(0, request).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert client.channel.repeated_request is None


def test_a_denied_group_fails_its_requests(harness: NodeHarness) -> None:
    harness.node.gate.authorizer = GroupDenied()
    request = heartbeat.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
    assert client_of(harness).call(4, request).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    (commit_case,) = (one for one in CASES if (one.api_key, one.version) == (ApiKey.OFFSET_COMMIT, 9))
    response = client_of(harness).call(9, commit_case.request(["open", "secret"], lambda name: Uuid(b"")))
    assert dict(by_partition()(response)) == dict.fromkeys(
        ["open", "secret"], ErrorCode.GROUP_AUTHORIZATION_FAILED
    )


def test_a_produce_without_acks_to_a_denied_topic_closes_the_connection(harness: NodeHarness) -> None:
    client = client_of(harness)
    client.send(12, produce_request("secret", acks=0))
    client.take_bytes()
    assert client.channel.closing
