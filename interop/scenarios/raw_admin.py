"""Admin requests to one broker: quorum, elections, reassignments, features, loggers, config resources."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from interop.brokers import Broker
from interop.raw import comparable, create_topic, wait_for_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import Fields, versions_of

METADATA = "__cluster_metadata"
FIRST_DELETE_BY_ID = 6
ZERO_ID = bytes(16)
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
UPGRADE, SAFE, UNSAFE = 1, 2, 3


def ensure_topic(client: RawClient, name: str, partitions: int) -> None:
    topic = {
        "Name": name,
        "NumPartitions": partitions,
        "ReplicationFactor": 1,
        "Assignments": [],
        "Configs": [],
    }
    response = client.call("CreateTopics", 7, Topics=[topic], timeoutMs=10_000, validateOnly=False)
    assert response["Topics"][0]["ErrorCode"] in (0, 36), response


@scenario()
def describe_quorum(broker: Broker) -> Any:
    """Send DescribeQuorum in each version, for the metadata partition and for unknown partitions."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:

        def request(version: int, *partitions: tuple[str, list[int]]) -> Fields:
            topics = [
                {"TopicName": name, "Partitions": [{"PartitionIndex": index} for index in indexes]}
                for name, indexes in partitions
            ]
            return client.call("DescribeQuorum", version, Topics=topics)

        for version in versions_of("DescribeQuorum"):
            response = request(version, (METADATA, [0]))
            partition = response["Topics"][0]["Partitions"][0]
            voter = partition["CurrentVoters"][0]
            seen[f"caught up {version}"] = voter["LogEndOffset"] == partition["HighWatermark"] > 10
            if version > 0:
                now_ms = time.time() * 1000
                seen[f"fresh {version}"] = [
                    abs(voter.pop(name) - now_ms) < 60_000
                    for name in ("LastFetchTimestamp", "LastCaughtUpTimestamp")
                ]
            del voter["LogEndOffset"], partition["HighWatermark"], partition["LeaderEpoch"]
            for node in response.get("Nodes", ()):
                for listener in node["Listeners"]:
                    listener["Port"] -= broker.controller_port
            seen[f"quorum {version}"] = response
            seen[f"another partition {version}"] = request(version, (METADATA, [1]))
        seen["another topic"] = request(2, ("t", [0]))
        seen["nothing"] = request(2)
        seen["no partition"] = request(2, (METADATA, []))
        seen["more than one"] = request(2, (METADATA, [0]), ("t", [0]))
        seen["partitions"] = request(2, (METADATA, [0, 1]))
        seen["twice"] = request(2, (METADATA, [0, 0]))
    return seen


@scenario()
def elect_leaders(broker: Broker) -> Any:
    """Send ElectLeaders in each version, for both election types. The preferred replicas already lead."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        ensure_topic(client, "raw-elections", 2)

        def elect(version: int, kind: int, topics: Any, timeout_ms: int = 10_000) -> Any:
            more = {"ElectionType": kind} if version else {}
            response = client.call(
                "ElectLeaders", version, TopicPartitions=topics, TimeoutMs=timeout_ms, **more
            )
            if topics is None:
                names = {result["Topic"] for result in response.pop("ReplicaElectionResults")}
                response["named"] = "raw-elections" in names
            return response

        requested = [
            {"Topic": "raw-elections", "Partitions": [0, 1, 5, -1]},
            {"Topic": "nowhere", "Partitions": [0]},
        ]
        for version in versions_of("ElectLeaders"):
            for kind in (0, 1, 2, -1) if version else (0,):
                seen[f"some {version} {kind}"] = elect(version, kind, requested)
                seen[f"all {version} {kind}"] = elect(version, kind, None)
            for timeout_ms in (0, -1):
                seen[f"late {version} {timeout_ms}"] = elect(version, 0, requested, timeout_ms)
                seen[f"all late {version} {timeout_ms}"] = elect(version, 0, None, timeout_ms)
        repeated = [
            {"Topic": "raw-elections", "Partitions": [0, 0]},
            {"Topic": "raw-elections", "Partitions": [1]},
        ]
        seen["repeated"] = elect(2, 0, repeated)
        seen["no partitions"] = elect(2, 0, [{"Topic": "raw-elections", "Partitions": []}])
        seen["no topics"] = elect(2, 7, [], 0)
    return seen


@scenario()
def partition_reassignments(broker: Broker) -> Any:
    """Send AlterPartitionReassignments and ListPartitionReassignments to a cluster with one broker."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        ensure_topic(client, "raw-moves", 2)

        def move(
            version: int, *topics: tuple[str, Sequence[tuple[int, list[int] | None]]], **more: Any
        ) -> Fields:
            requested = [
                {
                    "Name": name,
                    "Partitions": [
                        {"PartitionIndex": index, "Replicas": replicas} for index, replicas in partitions
                    ],
                }
                for name, partitions in topics
            ]
            return client.call(
                "AlterPartitionReassignments", version, **{"TimeoutMs": 10_000, "Topics": requested, **more}
            )

        cases: dict[str, list[tuple[str, list[tuple[int, list[int] | None]]]]] = {
            "stay": [("raw-moves", [(0, [1]), (1, [1])])],
            "stop": [("raw-moves", [(0, None), (5, None)]), ("nowhere", [(0, None)])],
            "unknown": [("raw-moves", [(5, [1]), (-1, [1])]), ("nowhere", [(0, [1])])],
            "nobody": [("raw-moves", [(0, []), (1, [2])])],
            "twice": [("raw-moves", [(0, [1, 1]), (1, [1, 2])])],
            "negative": [("raw-moves", [(0, [-1])])],
            "again": [("raw-moves", [(0, [1]), (0, [1])])],
            "no partitions": [("raw-moves", [])],
            "no topics": [],
        }
        for version in versions_of("AlterPartitionReassignments"):
            for label, requested in cases.items():
                seen[f"{label} {version}"] = move(version, *requested)
            seen[f"late {version}"] = move(version, ("raw-moves", [(0, [1]), (1, None)]), TimeoutMs=0)
        one_more = ("raw-moves", [(0, [1, 2])])
        seen["same factor"] = move(1, ("raw-moves", [(0, [1])]), AllowReplicationFactorChange=False)
        seen["more replicas"] = move(1, one_more, AllowReplicationFactorChange=False)
        seen["same factor of nothing"] = move(1, AllowReplicationFactorChange=False)
        seen["same factor, late"] = move(
            1, ("raw-moves", [(0, [1])]), AllowReplicationFactorChange=False, TimeoutMs=0
        )
        for topics in (
            None,
            [],
            [{"Name": "raw-moves", "PartitionIndexes": [0, 7]}],
            [{"Name": "nowhere", "PartitionIndexes": [0]}],
        ):
            for timeout_ms in (10_000, 0):
                seen[f"list {topics} {timeout_ms}"] = client.call(
                    "ListPartitionReassignments", 0, TimeoutMs=timeout_ms, Topics=topics
                )
    return seen


@scenario()
def config_resources(broker: Broker) -> Any:
    """Send ListConfigResources for each type, for combinations of types, and for unknown types."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        ensure_topic(client, "raw-resources", 1)
        group = {
            "ResourceType": GROUP,
            "ResourceName": "raw-resources-group",
            "Configs": [{"Name": "consumer.session.timeout.ms", "ConfigOperation": SET, "Value": "50000"}],
        }
        client.call("IncrementalAlterConfigs", 1, Resources=[group], ValidateOnly=False)
        seen["version 0"] = client.call("ListConfigResources", 0)

        def listed(*kinds: int) -> Any:
            response = client.call("ListConfigResources", 1, ResourceTypes=list(kinds))
            mine = [
                (one["ResourceType"], one["ResourceName"])
                for one in response.pop("ConfigResources")
                if one["ResourceType"] in (BROKER, LOGGER) or one["ResourceName"].startswith("raw-resources")
            ]
            return response | {"mine": mine}

        deadline = time.monotonic() + 10
        while len(listed(GROUP)["mine"]) < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        seen["all"] = listed()
        for kind in (0, 1, TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP, 64, -1):
            seen[f"type {kind}"] = listed(kind)
        seen["some"] = listed(TOPIC, TOPIC, BROKER, CLIENT_METRICS, GROUP)
        seen["some unknown"] = listed(TOPIC, 64)
    return seen


@contextlib.contextmanager
def restored_feature_levels(client: RawClient) -> Iterator[None]:
    """Set group.version and transaction.version to their initial levels at the end of the block."""
    try:
        yield
    finally:
        updates = [
            {"Feature": "transaction.version", "MaxVersionLevel": 2, "UpgradeType": UPGRADE},
            {"Feature": "group.version", "MaxVersionLevel": 1, "UpgradeType": UPGRADE},
        ]
        client.call("UpdateFeatures", 2, timeoutMs=10_000, FeatureUpdates=updates, ValidateOnly=False)


@scenario()
def update_features(broker: Broker) -> Any:
    """Send UpdateFeatures with each error, and then valid upgrades and downgrades."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client, restored_feature_levels(client):

        def update(
            *updates: tuple[str, int, int], version: int = 2, only: bool = False, timeout_ms: int = 10_000
        ) -> Fields:
            requested: list[Fields] = []
            for name, level, kind in updates:
                one: Fields = {"Feature": name, "MaxVersionLevel": level}
                one |= {"UpgradeType": kind} if version else {"AllowDowngrade": kind > UPGRADE}
                requested.append(one)
            more = {"ValidateOnly": only} if version else {}
            return client.call(
                "UpdateFeatures", version, timeoutMs=timeout_ms, FeatureUpdates=requested, **more
            )

        def finalized(until: dict[str, int]) -> dict[str, int]:
            """Wait at most 5 s until ApiVersions returns the levels in `until`. Return the last levels."""
            deadline = time.monotonic() + 5
            while True:
                response = client.call(
                    "ApiVersions", 4, ClientSoftwareName="interop", ClientSoftwareVersion="1"
                )
                levels = {
                    one["Name"]: one["MaxVersionLevel"]
                    for one in response["FinalizedFeatures"]
                    if one["Name"] in ("group.version", "metadata.version", "transaction.version")
                }
                if levels == until | {"metadata.version": 30} or time.monotonic() > deadline:
                    return levels
                time.sleep(0.05)

        for version in versions_of("UpdateFeatures"):
            for updates in (
                [],
                [("group.version", 1, UPGRADE)],
                [("group.version", 2, UPGRADE)],
                [("nope.version", 1, UPGRADE)],
                [("nope.version", 0, UPGRADE)],
                [("metadata.version", 31, UPGRADE)],
                [("metadata.version", 30, UPGRADE)],
                [("group.version", -1, UPGRADE)],
                [("", 1, UPGRADE)],
                [("transaction.version", 0, UPGRADE)],
                [("transaction.version", 9, UPGRADE), ("group.version", 1, UPGRADE)],
            ):
                seen[f"{version} {updates}"] = update(*updates, version=version)
        for kind in (-1, 0, UPGRADE, SAFE, UNSAFE, 4):
            for name, levels in (
                ("transaction.version", (0, 1, 2, 3)),
                ("metadata.version", (0, 6, 7, 25, 29, 30)),
                ("kraft.version", (0, 1, 2)),
                ("eligible.leader.replicas.version", (0, 1)),
                ("share.version", (0, 1, 2)),
            ):
                for level in levels:
                    one = (name, level, kind)
                    seen[f"validated {one}"] = update(one, only=True)
        seen["down 0"] = update(("transaction.version", 1, SAFE), version=0)
        seen["down 1"] = update(("transaction.version", 1, SAFE), version=1)
        seen["is down"] = finalized({"group.version": 1, "transaction.version": 1})
        seen["off"] = update(("transaction.version", 0, UNSAFE))
        seen["is off"] = finalized({"group.version": 1})
        mixed = [("transaction.version", 2, UPGRADE), ("group.version", 2, UPGRADE)]
        seen["one is wrong"] = update(*mixed)
        seen["nothing happened"] = finalized({"group.version": 1})
        seen["up"] = update(("transaction.version", 2, UPGRADE))
        repeated = [("transaction.version", 2, UPGRADE), ("transaction.version", 1, SAFE)]
        seen["repeated"] = update(*repeated, version=1)
        seen["the last counts"] = finalized({"group.version": 1, "transaction.version": 1})
        seen["late"] = update(("transaction.version", 2, UPGRADE), timeout_ms=0)
        seen["not too late"] = finalized({"group.version": 1, "transaction.version": 2})
    return seen


BROKER_NAMES = (
    " 1",
    "1 ",
    "1_0",
    "+1",
    "01",
    "-1",
    "\u0661",
    "\uff11",
    "1\u00a0",
    "0x1",
    "1.0",
    "+",
    "99999999999",
)
"""Resource names of brokers: some are numbers that Java can parse, and some are not."""


def config_responses_for_broker(client: RawClient, node: str) -> list[Fields]:
    """Send each configuration request for the broker resource `node`, and return the responses."""
    resource = {"ResourceType": BROKER, "ResourceName": node}
    change = {"Name": "num.io.threads", "Value": "8"}
    wanted = {**resource, "ConfigurationKeys": ["num.io.threads"]}
    replaced = {**resource, "Configs": [change]}
    changed = {**resource, "Configs": [{**change, "ConfigOperation": SET}]}
    return [
        client.call("DescribeConfigs", 4, Resources=[wanted]),
        client.call("AlterConfigs", 2, Resources=[replaced], ValidateOnly=True),
        client.call("IncrementalAlterConfigs", 1, Resources=[changed], ValidateOnly=True),
    ]


@scenario()
def loggers(broker: Broker) -> Any:
    """Describe the root logger and set its level, also with each error."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:

        def describe(version: int, name: str, *, documented: bool = True) -> Fields:
            resource = {"ResourceType": LOGGER, "ResourceName": name, "ConfigurationKeys": ["root", "nope"]}
            more = {"IncludeDocumentation": documented} if version > 2 else {}
            return client.call("DescribeConfigs", version, Resources=[resource], IncludeSynonyms=True, **more)

        def alter(*changes: tuple[str, int, str | None], node: str = "1", only: bool = False) -> Fields:
            resource = {
                "ResourceType": LOGGER,
                "ResourceName": node,
                "Configs": [
                    {"Name": name, "ConfigOperation": operation, "Value": value}
                    for name, operation, value in changes
                ],
            }
            return client.call("IncrementalAlterConfigs", 1, Resources=[resource], ValidateOnly=only)

        seen["start"] = alter(("root", SET, "ERROR"))
        for version in versions_of("DescribeConfigs"):
            for node in ("1", "2", "", "x"):
                seen[f"describe {version} {node}"] = describe(version, node)
        seen["undocumented"] = describe(4, "1", documented=False)
        seen["validated only"] = alter(("root", SET, "WARN"), only=True)
        seen["unchanged"] = describe(4, "1")
        for level in ("TRACE", "DEBUG", "INFO", "WARN", "FATAL", "ERROR"):
            seen[f"to {level}"] = alter(("root", SET, level))
            seen[f"at {level}"] = describe(4, "1")
        for value in ("debug", "Warn", "OFF", "ALL", "", None, "LOUD"):
            seen[f"refused {value!r}"] = alter(("root", SET, value))
        for operation in (DELETE, APPEND, SUBTRACT):
            for name in ("root", "nope", ""):
                for value in (None, "INFO"):
                    change = (name, operation, value)
                    seen[f"refused {change}"] = alter(change)
        seen["unknown"] = alter(("nope", SET, "INFO"))
        seen["second unknown"] = alter(("root", SET, "INFO"), ("nope", SET, "INFO"))
        seen["repeated"] = alter(("root", SET, "INFO"), ("root", SET, "WARN"))
        seen["nothing"] = alter()
        for node in ("2", "", "x"):
            seen[f"node {node}"] = alter(("root", SET, "INFO"), node=node)
        for node in BROKER_NAMES:
            seen[f"node {node!r}"] = alter(("root", SET, "ERROR"), node=node, only=True), describe(4, node)
            seen[f"broker {node!r}"] = config_responses_for_broker(client, node)
        legacy = {
            "ResourceType": LOGGER,
            "ResourceName": "1",
            "Configs": [{"Name": "root", "Value": "INFO"}],
        }
        seen["legacy"] = client.call("AlterConfigs", 2, Resources=[legacy], ValidateOnly=False)
        whole = {
            "ResourceType": LOGGER,
            "ResourceName": "1",
            "Configs": [{"Name": "root", "ConfigOperation": SET, "Value": "INFO"}],
        }
        other = {
            "ResourceType": BROKER,
            "ResourceName": "1",
            "Configs": [{"Name": "num.io.threads", "ConfigOperation": SET, "Value": "9"}],
        }
        for label, resources in {
            "the same resource twice": [whole, whole],
            "two kinds": [whole, other],
        }.items():
            seen[label] = client.call("IncrementalAlterConfigs", 1, Resources=resources, ValidateOnly=True)
        seen["still"] = describe(4, "1")
    return seen


@scenario()
def expired_timeouts(broker: Broker) -> Any:
    """Send controller requests whose timeout has already expired, and unregister unknown brokers."""
    seen: dict[str, Any] = {}

    def new(name: str) -> Fields:
        return {
            "Name": name,
            "NumPartitions": 1,
            "ReplicationFactor": 1,
            "Assignments": [],
            "Configs": [],
        }

    def more(name: str) -> Fields:
        return {"Name": name, "Count": 3, "Assignments": None}

    with RawClient(broker.bootstrap) as client:
        for names in (["late"], ["late", "late"], ["late", "late", "once"], [], [METADATA]):
            for timeout_ms in (0, -1):
                seen[f"create {names} {timeout_ms}"] = client.call(
                    "CreateTopics",
                    7,
                    Topics=[new(name) for name in names],
                    timeoutMs=timeout_ms,
                    validateOnly=False,
                )
                seen[f"grow {names} {timeout_ms}"] = client.call(
                    "CreatePartitions",
                    3,
                    Topics=[more(name) for name in names],
                    TimeoutMs=timeout_ms,
                    ValidateOnly=False,
                )
                seen[f"delete {names} {timeout_ms}"] = client.call(
                    "DeleteTopics",
                    6,
                    Topics=[{"Name": name, "TopicId": ZERO_ID} for name in names],
                    TimeoutMs=timeout_ms,
                )
        nothing = [{"Name": None, "TopicId": ZERO_ID}]
        seen["delete nothing"] = client.call("DeleteTopics", 6, Topics=nothing, TimeoutMs=0)
        seen["delete 1"] = client.call("DeleteTopics", 1, TopicNames=["late"], TimeoutMs=0)
        for broker_id in (2, -1, 2**31 - 1):
            seen[f"unregister {broker_id}"] = client.call("UnregisterBroker", 0, BrokerId=broker_id)
    return seen


@scenario()
def topic_deletion_disabled(broker: Broker) -> Any:
    """Send DeleteTopics with delete.topic.enable=false."""
    seen: dict[str, Any] = {}
    own = type(broker)({"delete.topic.enable": "false"})
    own.start()
    try:
        with RawClient(own.bootstrap) as client:
            topic_id = create_topic(client, "kept")
            cases: dict[str, list[tuple[str | None, bytes]]] = {
                "one": [("kept", ZERO_ID)],
                "several": [("nope", ZERO_ID), ("kept", ZERO_ID), ("kept", ZERO_ID), ("", ZERO_ID)],
                "by id": [(None, topic_id), (None, b"x" * 16), (None, ZERO_ID)],
                "by both": [("kept", topic_id), ("nope", topic_id)],
                "nothing": [],
            }
            for timeout_ms, (label, topics) in product((10_000, 0), cases.items()):
                for version in versions_of("DeleteTopics"):
                    fields: dict[str, Any] = {"TopicNames": [name for name, _ in topics if name is not None]}
                    if version >= FIRST_DELETE_BY_ID:
                        fields = {"Topics": [{"Name": name, "TopicId": each_id} for name, each_id in topics]}
                    response = client.call("DeleteTopics", version, TimeoutMs=timeout_ms, **fields)
                    seen[f"{label} {version} {timeout_ms}"] = comparable(response)
    finally:
        own.stop()
    return seen


@scenario()
def unusual_requests(broker: Broker) -> Any:
    """Send duplicate items, empty lists, unknown types, and invalid client metrics subscriptions."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        ensure_topic(client, "raw-odd", 2)
        wait_for_topic(client, "raw-odd", 2)

        def delete(*topics: tuple[str, Sequence[tuple[int, int]]]) -> Any:
            requested = [
                {
                    "Name": name,
                    "Partitions": [
                        {"PartitionIndex": index, "Offset": offset} for index, offset in partitions
                    ],
                }
                for name, partitions in topics
            ]
            response = client.call("DeleteRecords", 2, Topics=requested, TimeoutMs=10_000)
            return [
                (topic["Name"], sorted(topic["Partitions"], key=lambda one: int(one["PartitionIndex"])))
                for topic in response["Topics"]
            ]

        seen["records twice"] = delete(("raw-odd", [(0, 0), (0, 0)]))
        seen["records of a topic twice"] = delete(("raw-odd", [(0, 0)]), ("raw-odd", [(0, 0), (1, 0)]))
        seen["the last counts"] = delete(("raw-odd", [(0, 0), (0, 7)]), ("raw-odd", [(1, 7), (1, -1)]))
        seen["records of nothing"] = delete(("raw-odd", []))
        for kind in (-1, 0, 1, 64):
            unknown = {"ResourceType": kind, "ResourceName": "x", "ConfigurationKeys": None}
            seen[f"describe type {kind}"] = client.call(
                "DescribeConfigs",
                4,
                Resources=[unknown],
                IncludeSynonyms=False,
                IncludeDocumentation=False,
            )
        several = [
            {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": ["retention.ms", "no.such.key"]}
            for kind, name in ((TOPIC, "raw-odd"), (64, "x"), (TOPIC, "nope"), (BROKER, "9"), (0, ""))
        ]
        for version in versions_of("DescribeConfigs"):
            # If one resource has an unknown type, the broker describes no resource of the request.
            for chosen in (several, several[:2], several[1:], several[2:4]):
                kinds = [resource["ResourceType"] for resource in chosen]
                seen[f"describe {version} {kinds}"] = client.call(
                    "DescribeConfigs", version, Resources=chosen, IncludeSynonyms=False
                )
        for name, value in (
            ("no.such.key", "1"),
            ("interval.ms", "x"),
            ("interval.ms", "99"),
            ("interval.ms", "100"),
            ("interval.ms", "3600001"),
            ("interval.ms", "9999999999"),
            ("metrics", "a,b"),
            ("metrics", ""),
            ("match", "x"),
            ("match", "client_id"),
            ("match", "client_id="),
            ("match", "client_id=a.*"),
            ("match", "client_id=["),
            ("match", "client_id=a=b"),
            ("match", "client_id=a,client_software_name=b"),
            ("match", "no_such=a"),
            ("match", ""),
        ):
            configs = [{"Name": name, "ConfigOperation": SET, "Value": value}]
            resource = {"ResourceType": CLIENT_METRICS, "ResourceName": "raw-odd", "Configs": configs}
            seen[f"subscribe {name}={value}"] = client.call(
                "IncrementalAlterConfigs", 1, Resources=[resource], ValidateOnly=True
            )
    return seen
