"""Names of the maximum length. An error message that contains such a name does not fit into the response.

Apache Kafka then returns UNKNOWN_SERVER_ERROR for the complete request, and keeps the connection open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import Fields, encode_request, versions_of

LONGEST = "A" * 32_767
SHOWN = 40
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
JOIN: Fields = {
    "GroupId": "raw-too-long",
    "MemberId": "m",
    "MemberEpoch": 0,
    "RebalanceTimeoutMs": 1000,
    "SubscribedTopicNames": ["x"],
    "TopicPartitions": [],
}


def shorten(value: Any) -> Any:
    """Replace each long text in a response by its beginning, its end and its length."""
    if isinstance(value, dict):
        return {name: shorten(one) for name, one in value.items() if name != "TopicId"}
    if isinstance(value, list):
        return [shorten(one) for one in value]
    if isinstance(value, str) and len(value) > 2 * SHOWN:
        return f"{value[:SHOWN]} ... {value[-SHOWN:]} ({len(value)})"
    return value


def observe(broker: Broker, requested: Iterator[tuple[str, str, int, Fields]]) -> Any:
    """Send the requests, each a label, API, version and fields. Return the shortened responses.

    Reconnect only after a closed connection or a timeout.
    """
    seen: dict[str, Any] = {}
    client = RawClient(broker.bootstrap)
    for what, api, version, fields in requested:
        response = client.outcome(encode_request(api, version, fields), api, version)
        name = f"{api} v{version} {what}"
        assert name not in seen, name
        seen[name] = shorten(response)
        if response in ("closed", "silence"):
            client.socket.close()
            client = RawClient(broker.bootstrap)
    client.socket.close()
    return seen


@scenario(seconds=120)
def topics(broker: Broker) -> Any:
    """Create, change, move and describe topics with long names."""

    def requested() -> Iterator[tuple[str, str, int, Fields]]:
        for version in versions_of("CreateTopics"):
            for length in (32_686, 32_687, 32_767):
                topic = {"Name": "A" * length, "NumPartitions": 1, "ReplicationFactor": 1}
                several = [topic, {**topic, "Name": "raw-too-long"}]
                yield str(length), "CreateTopics", version, {"Topics": several, "validateOnly": True}
        partitions = [{"PartitionIndex": 0, "Offset": 0}]
        for version in versions_of("CreatePartitions"):
            yield "", "CreatePartitions", version, {"Topics": [{"Name": LONGEST, "Count": 3}]}
        for version in versions_of("DeleteTopics"):
            names: Fields = {"TopicNames": [LONGEST]} if version < 6 else {"Topics": [{"Name": LONGEST}]}
            yield "", "DeleteTopics", version, names
        for version in versions_of("DeleteRecords"):
            yield "", "DeleteRecords", version, {"Topics": [{"Name": LONGEST, "Partitions": partitions}]}
        for version in versions_of("ElectLeaders"):
            yield "", "ElectLeaders", version, {"TopicPartitions": [{"Topic": LONGEST, "Partitions": [0, 1]}]}
        for version in versions_of("AlterPartitionReassignments"):
            moved = [{"PartitionIndex": index, "Replicas": [1]} for index in (0, 1)]
            name = "AlterPartitionReassignments"
            yield "", name, version, {"Topics": [{"Name": LONGEST, "Partitions": moved}]}
        yield "", "DescribeProducers", 0, {"Topics": [{"Name": LONGEST, "PartitionIndexes": [0, 1]}]}
        yield "", "DescribeTopicPartitions", 0, {"Topics": [{"Name": LONGEST}], "ResponsePartitionLimit": 5}
        yield "", "DescribeLogDirs", 1, {"Topics": [{"Topic": LONGEST, "Partitions": [0]}]}

    seen: dict[str, Any] = observe(broker, requested())
    logs = seen.pop("DescribeLogDirs v1 ")
    return {**seen, "directories": [[one["ErrorCode"], one["Topics"]] for one in logs["Results"]]}


@scenario(seconds=120)
def configurations(broker: Broker) -> Any:
    """Use long resource names, keys, values and feature names."""
    resources = {
        TOPIC: ("raw-too-long-topic", "retention.ms"),
        BROKER: ("1", "log.retention.ms"),
        LOGGER: ("1", "root"),
        METRICS: ("raw-too-long", "interval.ms"),
        GROUP: ("raw-too-long", "consumer.session.timeout.ms"),
    }

    def requested() -> Iterator[tuple[str, str, int, Fields]]:
        for kind, (name, key) in resources.items():
            for what, named, config, value in (
                ("name", LONGEST, key, "1"),
                ("key", name, LONGEST, "1"),
                ("value", name, key, LONGEST),
            ):
                resource = {"ResourceType": kind, "ResourceName": named}
                for version in versions_of("IncrementalAlterConfigs"):
                    configs = [{"Name": config, "ConfigOperation": 0, "Value": value}]
                    fields = {"Resources": [{**resource, "Configs": configs}], "ValidateOnly": True}
                    yield f"{kind} {what}", "IncrementalAlterConfigs", version, fields
                for version in versions_of("AlterConfigs"):
                    configs = [{"Name": config, "Value": value}]
                    fields = {"Resources": [{**resource, "Configs": configs}], "ValidateOnly": True}
                    yield f"{kind} {what}", "AlterConfigs", version, fields
            if kind in (TOPIC, BROKER, LOGGER):
                for version in versions_of("DescribeConfigs"):
                    resource = {"ResourceType": kind, "ResourceName": LONGEST, "ConfigurationKeys": None}
                    yield f"{kind}", "DescribeConfigs", version, {"Resources": [resource]}
        for version in versions_of("UpdateFeatures"):
            yield (
                "",
                "UpdateFeatures",
                version,
                {"FeatureUpdates": [{"Feature": LONGEST, "MaxVersionLevel": 3}]},
            )

    with RawClient(broker.bootstrap) as client:
        create_topic(client, "raw-too-long-topic")
    return observe(broker, requested())


@scenario(seconds=120)
def groups(broker: Broker) -> Any:
    """Use long group ids, member ids, instance ids, assignors, topics and expressions."""

    def requested() -> Iterator[tuple[str, str, int, Fields]]:
        for version in versions_of("ConsumerGroupHeartbeat"):
            for what, fields in (
                ("topic", {"SubscribedTopicNames": [LONGEST]}),
                ("assignor", {"ServerAssignor": LONGEST}),
                ("group", {"GroupId": LONGEST, "MemberEpoch": 3}),
                ("no member", {"MemberId": LONGEST, "MemberEpoch": 3}),
                ("instance", {"InstanceId": LONGEST, "MemberId": "m2", "RackId": LONGEST}),
                ("instance again", {"InstanceId": LONGEST, "MemberId": "m3", "RackId": LONGEST}),
            ):
                group = f"{JOIN['GroupId']}-{version}"
                yield what, "ConsumerGroupHeartbeat", version, {**JOIN, "GroupId": group, **fields}
        expression = {"SubscribedTopicRegex": "(" + LONGEST[1:], "SubscribedTopicNames": None}
        yield "expression", "ConsumerGroupHeartbeat", 1, {**JOIN, **expression}
        for version in versions_of("ConsumerGroupDescribe"):
            yield "", "ConsumerGroupDescribe", version, {"GroupIds": [LONGEST]}
        for version in versions_of("DescribeGroups"):
            yield "", "DescribeGroups", version, {"Groups": [LONGEST]}
        for version in versions_of("DeleteGroups"):
            yield "", "DeleteGroups", version, {"GroupsNames": [LONGEST]}
        yield "", "DescribeTransactions", 0, {"TransactionalIds": [LONGEST]}

    with RawClient(broker.bootstrap) as client:
        wait_for_coordinator(client, "raw-too-long")
    seen: dict[str, Any] = observe(broker, requested())
    for name, response in seen.items():
        if name.startswith("ConsumerGroupHeartbeat") and isinstance(response, dict):
            # Member epochs and assignments depend on which members have joined before.
            seen[name] = {key: response[key] for key in ("ErrorCode", "ErrorMessage", "MemberId")}
    return seen
