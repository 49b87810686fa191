"""CreateTopics, DeleteTopics and CreatePartitions, with the errors of Apache Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import (
    TOO_MANY_RECORDS,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Fault,
    TopicToDelete,
)
from kwire.broker.controller.controller import Controller
from kwire.broker.controller.topics import TopicDefaults
from kwire.broker.metadata.image import RESOURCE_TOPIC
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from kwire.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from kwire.wire.primitives import Uuid
from tests.broker.controller.conftest import StubConfigRules


def topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    *,
    assignments: list[tuple[int, list[int]]] | None = None,
    configs: list[tuple[str, str | None]] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in assignments or []
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs or []],
    )


def assigned(*assignments: tuple[int, list[int]], partitions: int = -1, factor: int = -1) -> CreatableTopic:
    return topic("t", partitions, factor, assignments=list(assignments))


ILLEGAL = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"

REFUSED_TOPICS: list[tuple[CreatableTopic, ErrorCode, str]] = [
    (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
    (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '.' is not allowed"),
    (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '..' is not allowed"),
    (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: 'a b' {ILLEGAL}"),
    (topic("ü"), ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: 'ü' {ILLEGAL}"),
    (
        topic("x" * 250),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed length 249",
    ),
    # Java counts two characters for each one outside of the basic multilingual plane.
    (
        topic("😀" * 125),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Topic name is invalid: the length of '{'😀' * 125}' is longer than the max allowed length 249",
    ),
    (
        topic("😀" * 124),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Topic name is invalid: '{'😀' * 124}' {ILLEGAL}",
    ),
    (topic("here"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'here' already exists."),
    (
        topic("my.topic_x"),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'my.topic_x' collides with existing topic: my_topic.x",
    ),
    (topic("my_topic.x"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'my_topic.x' already exists."),
    (
        topic("t", 0),
        ErrorCode.INVALID_PARTITIONS,
        "Number of partitions was set to an invalid non-positive value.",
    ),
    (
        topic("t", 0, 0),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Replication factor must be larger than 0, or -1 to use the default value.",
    ),
    (
        topic("t", 1, 2),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached "
        "because only 1 broker(s) are registered or some brokers have all their log directories cordoned.",
    ),
    (
        topic("t", configs=[("retention.ms", None), ("segment.ms", None)]),
        ErrorCode.INVALID_CONFIG,
        "Null value not supported for topic configs: retention.ms,segment.ms",
    ),
    (topic("t", configs=[("nope", "1")]), ErrorCode.INVALID_CONFIG, "Unknown topic config name: nope"),
    (
        assigned((0, [1]), factor=1),
        ErrorCode.INVALID_REQUEST,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    ),
    (
        assigned((0, [1]), partitions=1),
        ErrorCode.INVALID_REQUEST,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    ),
    (
        assigned((0, [1]), (0, [1])),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Found multiple manual partition assignments for partition 0",
    ),
    (
        assigned((0, [1]), (2, [1])),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "partitions should be a consecutive 0-based integer sequence",
    ),
    (
        assigned((0, [9])),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes broker 9, but no such broker is registered.",
    ),
    (
        assigned((0, [1, 1])),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes the broker 1 more than once.",
    ),
    (
        assigned((0, [])),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes an empty replica list.",
    ),
]


@pytest.mark.parametrize(
    ("requested", "code", "message"), REFUSED_TOPICS, ids=[text[:60] for _, _, text in REFUSED_TOPICS]
)
def test_an_invalid_topic_is_refused(
    cluster: Any, requested: CreatableTopic, code: ErrorCode, message: str
) -> None:
    cluster.create("here")
    cluster.create("my_topic.x")
    [result] = cluster.run(CreateTopics([requested]))
    assert (result.name, result.error_code, result.error_message) == (requested.name, code, message)
    assert (result.num_partitions, result.replication_factor) == (-1, -1)
    assert cluster.records == []


def test_names_that_differ_only_in_case_are_refused_if_the_file_system_ignores_case(cluster: Any) -> None:
    cluster.create("orders")
    names = ("Orders", "payments", "PAYMENTS", "orders")

    def codes() -> list[ErrorCode]:
        results = cluster.run(CreateTopics([topic(name) for name in names], validate_only=True))
        return [result.error_code for result in results]

    exists = ErrorCode.TOPIC_ALREADY_EXISTS
    assert codes() == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, exists]
    cluster.controller = Controller(1, StubConfigRules(), TopicDefaults(1, 1, ignores_case=lambda: True))
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert codes() == [invalid, ErrorCode.NONE, invalid, exists]
    [result] = cluster.run(CreateTopics([topic("ORDERS")]))
    assert result.error_message == (
        "Topic 'ORDERS' differs only in case from existing topic 'orders', and the file system of the data "
        "directory does not distinguish case: choose another name."
    )


def test_topic_records_are_in_kafkas_order(cluster: Any) -> None:
    requested = topic("t", 2, configs=[("retention.ms", "1"), ("retention.ms", "2")])
    [result] = cluster.run(CreateTopics([requested]))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)
    kinds = [(type(record).__name__, version) for record, version in cluster.records]
    assert kinds == [("TopicRecord", 0), ("ConfigRecord", 0), ("PartitionRecord", 2), ("PartitionRecord", 2)]
    created = cluster.image.topics["t"]
    assert created.topic_id == result.topic_id
    assert cluster.image.config(RESOURCE_TOPIC, "t") == {"retention.ms": "2"}
    partition = created.partitions[1]
    assert (partition.replicas, partition.isr, partition.leader) == ((1,), (1,), 1)
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert partition.directories == cluster.image.brokers[1].log_dirs


def test_defaults_apply_to_minus_one(cluster: Any) -> None:
    [result] = cluster.run(CreateTopics([topic("t", -1, -1)]))
    assert (result.num_partitions, result.replication_factor) == (1, 1)


def test_validate_only_writes_no_records(cluster: Any) -> None:
    good, bad = cluster.run(CreateTopics([topic("t"), topic("a b")], validate_only=True))
    assert (good.error_code, good.num_partitions) == (0, 1)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert cluster.records == []


def test_the_partition_limit_counts_the_whole_request(cluster: Any) -> None:
    with pytest.raises(ApiError, match="POLICY_VIOLATION: Excessively large number of partitions"):
        cluster.decide(CreateTopics([topic("a", 5_000), topic("b", -1), topic("c", 5_000)]))


def test_the_record_limit_counts_the_whole_request(cluster: Any) -> None:
    with pytest.raises(ApiError, match="POLICY_VIOLATION: Unable to perform excessively large batch"):
        cluster.decide(CreateTopics([topic("a", 5_000), topic("a b"), topic("c", 4_999)]))
    good, bad, last = cluster.decide(
        CreateTopics([topic("a", 5_000), topic("a b"), topic("c", 4_998)], validate_only=True)
    ).response
    assert (good.error_code, last.error_code) == (0, 0)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_partitions_and_leaders_are_spread_over_brokers(cluster: Any) -> None:
    for broker_id in (2, 3):
        cluster.start(broker_id)
    created = cluster.create("t", 6, 2)
    assert sorted(partition.leader for partition in created.partitions) == [1, 1, 2, 2, 3, 3]
    assert [partition.leader for partition in created.partitions] == [
        p.replicas[0] for p in created.partitions
    ]
    assert all(len(set(partition.replicas)) == 2 for partition in created.partitions)


def test_fenced_brokers_take_replicas_but_do_not_lead(cluster: Any) -> None:
    cluster.register(2)
    created = cluster.create("t", 2, 2)
    assert [(p.leader, p.replicas, p.isr) for p in created.partitions] == [(1, (1, 2), (1,))] * 2


def test_topic_ids_never_begin_with_a_dash(cluster: Any) -> None:
    ids = {cluster.create(f"t{number}").topic_id for number in range(300)}
    assert len(ids) == 300
    assert all(topic_id[0] >> 2 != 62 and topic_id[6] >> 4 == 4 for topic_id in ids)


# --- delete


def outcomes(replies: list[Any]) -> dict[tuple[str | None, Uuid | None], tuple[ErrorCode, str | None] | None]:
    return {(reply.name, reply.topic_id): reply.fault and tuple(reply.fault) for reply in replies}


def test_delete_by_name_and_by_id(cluster: Any) -> None:
    first = cluster.create("first.x").topic_id
    second = cluster.create("second").topic_id
    cluster.run(CreateTopics([topic("third", configs=[("retention.ms", "5")])]))
    requested = [TopicToDelete("first.x", None), TopicToDelete(None, second), TopicToDelete("third", None)]
    replies = cluster.run(DeleteTopics(requested))
    assert all(reply.fault is None for reply in replies)
    assert {reply.name for reply in replies} == {"first.x", "second", "third"}
    assert {reply.topic_id for reply in replies} >= {first, second}
    assert dict(cluster.image.topics) == {}
    assert dict(cluster.image.configs).keys() == {(4, "")}
    assert dict(cluster.image.colliding_names) == {}
    assert {gone.name for gone in cluster.delta.deleted_topics} == {"first.x", "second", "third"}


def test_an_invalid_deletion_is_refused(cluster: Any) -> None:
    known = cluster.create("known").topic_id
    both = cluster.create("both").topic_id
    unknown = Uuid(b"u" * 16)
    twice = Uuid(b"w" * 16)
    replies = cluster.run(
        DeleteTopics(
            [
                TopicToDelete("nope", None),
                TopicToDelete("twice", None),
                TopicToDelete("twice", None),
                TopicToDelete(None, unknown),
                TopicToDelete(None, twice),
                TopicToDelete(None, twice),
                TopicToDelete(None, None),
                TopicToDelete("known", known),
                TopicToDelete("both", None),
                TopicToDelete(None, both),
            ]
        )
    )
    assert outcomes(replies) == {
        ("nope", None): (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        ),
        ("twice", None): (ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        (None, unknown): (ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."),
        (None, twice): (ErrorCode.INVALID_REQUEST, "Duplicate topic id."),
        (None, None): (ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."),
        ("known", known): (ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."),
        ("both", both): (
            ErrorCode.INVALID_REQUEST,
            "The provided topic name maps to an ID that was already supplied.",
        ),
    }
    assert set(cluster.image.topics) == {"known", "both"}


def test_a_recreated_topic_has_a_new_id(cluster: Any) -> None:
    before = cluster.create("t", 3)
    cluster.run(DeleteTopics([TopicToDelete("t", None)]))
    after = cluster.create("t", 1)
    assert before.topic_id != after.topic_id
    assert before.topic_id not in cluster.image.topics_by_id


# --- create partitions


def new_partitions(
    name: str, count: int, assignments: list[list[int]] | None = None
) -> CreatePartitionsTopic:
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=(
            None
            if assignments is None
            else [CreatePartitionsAssignment(broker_ids=broker_ids) for broker_ids in assignments]
        ),
    )


REFUSED_GROWTH: list[tuple[CreatePartitionsTopic, ErrorCode, str | None]] = [
    (new_partitions("t", 3), ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s)."),
    (
        new_partitions("t", 2),
        ErrorCode.INVALID_PARTITIONS,
        "The topic t currently has 3 partition(s); 2 would not be an increase.",
    ),
    (new_partitions("nope", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    (
        new_partitions("t", 5, [[1]]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
    ),
    (
        new_partitions("t", 4, [[7]]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes broker 7, but no such broker is registered.",
    ),
    (
        new_partitions("t", 4, [[1, 2]]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes a partition with 2 replica(s), but this is not consistent "
        "with previous partitions, which have 1 replica(s).",
    ),
]


@pytest.mark.parametrize(("requested", "code", "message"), REFUSED_GROWTH)
def test_an_invalid_number_of_partitions_is_refused(
    cluster: Any, requested: CreatePartitionsTopic, code: ErrorCode, message: str | None
) -> None:
    cluster.start(2)
    cluster.create("t", 3)
    assert cluster.run(CreatePartitions([requested])) == [(requested.name, Fault(code, message))]
    assert cluster.records == []


def test_new_partitions_keep_existing_ones(cluster: Any) -> None:
    before = cluster.create("t", 1)
    assert cluster.run(CreatePartitions([new_partitions("t", 3)], validate_only=True)) == [("t", None)]
    assert len(cluster.image.topics["t"].partitions) == 1
    assert cluster.run(CreatePartitions([new_partitions("t", 3, [[1], [1]])])) == [("t", None)]
    after = cluster.image.topics["t"]
    assert after.partitions[0] is before.partitions[0]
    assert len(after.partitions) == 3
    [change] = cluster.delta.altered_topics
    assert (change.before, change.after) == (before, after)


def test_new_partitions_beyond_the_record_limit_are_refused(cluster: Any) -> None:
    for name in "abcd":
        cluster.create(name)
    unknown = Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    requested = [
        new_partitions("a", 9_001),
        new_partitions("b", 1_002),
        new_partitions("nope", 2),
        new_partitions("c", 1_001),
        new_partitions("d", 2**31 - 1),
    ]
    expected = [("a", None), ("b", TOO_MANY_RECORDS), ("nope", unknown), ("c", None), ("d", TOO_MANY_RECORDS)]
    assert cluster.run(CreatePartitions(requested, validate_only=True)) == expected
    assert cluster.records == []
    assert cluster.run(CreatePartitions(requested)) == expected
    assert {name: len(topic.partitions) for name, topic in cluster.image.topics.items()} == {
        "a": 9_001,
        "b": 1,
        "c": 1_001,
        "d": 1,
    }


def test_create_partitions_for_too_many_topics_is_refused(cluster: Any) -> None:
    requested = [new_partitions(f"nope{index}", 2) for index in range(10_001)]
    assert len(cluster.decide(CreatePartitions(requested[1:])).response) == 10_000
    with pytest.raises(ApiError, match="POLICY_VIOLATION: Unable to perform excessively large batch"):
        cluster.decide(CreatePartitions(requested))
