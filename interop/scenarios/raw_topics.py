"""Metadata, topic administration and topic configurations, request by request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from interop.brokers import Broker
from interop.raw import WAIT_S, comparable, create_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import versions_of

TOPIC_CONFIG = 1
"""The source of a configuration in DescribeConfigs if it is set on the topic."""


def create(client: RawClient, *topics: dict[str, Any], version: int = 7, validate_only: bool = False) -> Any:
    """Create topics and return the response by topic name, with configurations by key."""
    answer = comparable(
        client.call(
            "CreateTopics", version, Topics=list(topics), timeoutMs=10_000, validateOnly=validate_only
        )
    )
    seen = {}
    for topic in answer["Topics"]:
        if topic.get("Configs"):
            topic["Configs"] = {entry.pop("Name"): entry for entry in topic["Configs"]}
        seen[topic.pop("Name")] = topic
    return seen


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"Name": name, "NumPartitions": partitions, "ReplicationFactor": replicas, **more}


def settings(**configs: str | None) -> list[dict[str, Any]]:
    return [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()]


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true, because the broker may apply changes later. Fail after `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)


@scenario()
def create_topics(broker: Broker) -> Any:
    """Create topics with valid and invalid names, partitions, replicas, assignments and configurations."""
    name = "raw-topics-create"
    requested: dict[str, list[dict[str, Any]]] = {
        "plain": [topic(f"{name}-plain")],
        "defaults": [topic(f"{name}-defaults", -1, -1)],
        "exists": [topic(f"{name}-plain")],
        "exists, other shape": [topic(f"{name}-plain", 5)],
        "no partitions": [topic(f"{name}-none", 0)],
        "partitions -2": [topic(f"{name}-none", -2)],
        "no replicas": [topic(f"{name}-none", 1, 0)],
        "replicas -2": [topic(f"{name}-none", 1, -2)],
        "two replicas": [topic(f"{name}-none", 1, 2)],
        "twice in one request": [topic(f"{name}-twice"), topic(f"{name}-twice")],
        "assigned": [
            topic(f"{name}-assigned", -1, -1, Assignments=[{"PartitionIndex": 0, "BrokerIds": [1]}]),
        ],
        "assigned and counted": [
            topic(f"{name}-bad", 1, -1, Assignments=[{"PartitionIndex": 0, "BrokerIds": [1]}]),
        ],
        "assigned to no broker": [
            topic(f"{name}-bad", -1, -1, Assignments=[{"PartitionIndex": 0, "BrokerIds": []}])
        ],
        "assigned to an unknown broker": [
            topic(f"{name}-bad", -1, -1, Assignments=[{"PartitionIndex": 0, "BrokerIds": [9]}]),
        ],
        "assigned twice": [
            topic(f"{name}-bad", -1, -1, Assignments=[{"PartitionIndex": 0, "BrokerIds": [1, 1]}]),
        ],
        "assigned with a gap": [
            topic(f"{name}-bad", -1, -1, Assignments=[{"PartitionIndex": 1, "BrokerIds": [1]}]),
        ],
        "internal name": [topic("__consumer_offsets")],
        "metadata name": [topic("__cluster_metadata")],
    }
    for bad in ("", ".", "..", "a b", "ä", "a/b", "x" * 249, "x" * 250, "raw.topics_collide"):
        requested[f"name {bad[:20]!r} ({len(bad)})"] = [topic(bad)]
    for count in (124, 125, 249):
        requested[f"name of {count} outside of the first plane"] = [topic("\U0001f600" * count)]
    requested["colliding name"] = [topic("raw_topics.collide")]
    configurations: dict[str, dict[str, str | None]] = {
        "retention": {"retention_ms": "1000"},
        "unknown key": {"no_such_key": "1"},
        "null value": {"retention_ms": None},
        "not a number": {"retention_ms": "soon"},
        "below range": {"retention_ms": "-2"},
        "segment of 200": {"segment_bytes": "200"},
        "policy": {"cleanup_policy": "compact, delete"},
        "bad policy": {"cleanup_policy": "keep"},
        "empty policy": {"cleanup_policy": ""},
        "compression": {"compression_type": "zstd"},
        "bad compression": {"compression_type": "rar"},
        "compression level": {"compression_type": "gzip", "compression_gzip_level": "42"},
        "timestamp type": {"message_timestamp_type": "LogAppendTime"},
        "bad timestamp type": {"message_timestamp_type": "Now"},
        "ISR of 2": {"min_insync_replicas": "2"},
        "ISR of 0": {"min_insync_replicas": "0"},
        "bool": {"preallocate": "maybe"},
        "ratio": {"min_cleanable_dirty_ratio": "1.5"},
        "lag pair": {"min_compaction_lag_ms": "10", "max_compaction_lag_ms": "5"},
        "remote storage": {"remote_storage_enable": "true"},
        "local retention": {"local_retention_ms": "5000", "retention_ms": "1000"},
        "throttled replicas": {"leader_replication_throttled_replicas": "x"},
        "removed key": {"message_format_version": "3.0"},
        "white space": {"retention_ms": " 1000 "},
    }
    for index, (label, configs) in enumerate(configurations.items()):
        requested[f"config: {label}"] = [topic(f"{name}-config-{index}", Configs=settings(**configs))]
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for label, topics in requested.items():
            seen[f"validate: {label}"] = create(client, *topics, validate_only=True)
            seen[label] = create(client, *topics)
        for version in versions_of("CreateTopics"):
            seen[f"v{version}"] = create(
                client, topic(f"{name}-v{version}", 2), topic(f"{name}-plain"), version=version
            )
        seen["nothing"] = comparable(client.call("CreateTopics", 7, Topics=[], timeoutMs=1000))
    return seen


@scenario()
def creation_limits(broker: Broker) -> Any:
    """Create more partitions or records than one request may create. Record which topics fail."""
    name = "raw-topics-much"
    once, twice = topic(f"{name}-once"), [topic(f"{name}-twice")] * 2
    metadata = topic("__cluster_metadata")
    requested: dict[str, list[dict[str, Any]]] = {
        "partitions": [once, *twice, topic(f"{name}-x", 10_000)],
        "partitions of invalid topics only": [topic("a b", 10_000), topic(f"{name}-x", 1, 0)],
        "partitions of a repeated topic": [topic(f"{name}-x", 10_000), once, topic(f"{name}-x", 10_000)],
        "records": [*twice, topic(f"{name}-x", 9_998), topic("a b"), once],
        "as many partitions as may be, but too many records": [topic(f"{name}-x", 10_000)],
        "as many records as may be": [topic(f"{name}-x", 9_999), topic("a b"), *twice, metadata],
        "partitions, and metadata": [metadata, once, topic(f"{name}-x", 10_000)],
    }
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for version in versions_of("CreateTopics"):
            for label, topics in requested.items():
                answer = client.call(
                    "CreateTopics", version, Topics=topics, timeoutMs=10_000, validateOnly=True
                )
                for one in answer["Topics"]:
                    one.pop("Configs", None)
                seen[f"{label}, v{version}"] = comparable(answer)
    return seen


@scenario()
def growth_limits(broker: Broker) -> Any:
    """Validate additions of partitions that need as many records as one request may write, or more."""
    name = "raw-topics-growth"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for one in "abc":
            create_topic(client, f"{name}-{one}")

        def grow(version: int, *topics: tuple[str, int], assign: Any = None) -> Any:
            results = client.call(
                "CreatePartitions",
                version,
                Topics=[{"Name": f"{name}-{one}", "Count": to, "Assignments": assign} for one, to in topics],
                TimeoutMs=10_000,
                ValidateOnly=True,
            )["Results"]
            return sorted(results, key=lambda result: str(result["Name"]))

        for version in versions_of("CreatePartitions"):
            seen[f"by as many as may be, v{version}"] = grow(version, ("a", 10_001))
            seen[f"by one more, v{version}"] = grow(version, ("a", 10_002))
        seen["assigned"] = grow(3, ("a", 10_002), assign=[{"BrokerIds": [1]}] * 10_001)
        seen["last one assigned to an unknown broker"] = grow(
            3, ("a", 10_003), assign=[*[{"BrokerIds": [1]}] * 10_001, {"BrokerIds": [5]}]
        )
        most = [(f"nowhere-{index}", 2) for index in range(10_000)]
        for label, topics in {
            "as many topics as may be": most,
            "as many, and one twice": [*most, ("a", 2), ("a", 3)],
            "one topic more": [*most, ("a", 2)],
            "one topic more, and one twice": [*most, ("a", 2), ("b", 2), ("b", 2)],
        }.items():
            answer = sorted(grow(3, *topics), key=lambda result: result["Name"])
            seen[label] = len(answer), answer[:3], answer[-3:]
    return seen


@scenario()
def delete_topics(broker: Broker) -> Any:
    """Delete topics by name in every version, by id, twice, by name and id, and by neither."""
    name = "raw-topics-delete"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for version in versions_of("DeleteTopics"):
            create_topic(client, f"{name}-{version}")
            names = [f"{name}-{version}", f"{name}-nowhere"]
            if version >= 6:
                answer = client.call(
                    "DeleteTopics", version, TimeoutMs=10_000, Topics=[{"Name": n} for n in names]
                )
            else:
                answer = client.call("DeleteTopics", version, TimeoutMs=10_000, TopicNames=names)
            answer["Responses"].sort(key=lambda response: response["Name"])
            seen[f"v{version}"] = comparable(answer)

        def by_id(*topics: dict[str, Any]) -> Any:
            answer = client.call("DeleteTopics", 6, TimeoutMs=10_000, Topics=list(topics))
            answer["Responses"].sort(key=lambda response: (response["ErrorCode"], response["Name"] or ""))
            return comparable(answer)

        topic_id = create_topic(client, f"{name}-id")
        seen["by id and name"] = by_id({"Name": f"{name}-id", "TopicId": topic_id})
        seen["by id"] = by_id({"Name": None, "TopicId": topic_id})
        seen["by id again"] = by_id({"Name": None, "TopicId": topic_id})
        seen["by neither"] = by_id({"Name": None, "TopicId": bytes(16)})
        other = create_topic(client, f"{name}-twice")
        seen["by name twice"] = by_id({"Name": f"{name}-twice"}, {"Name": f"{name}-twice"})
        seen["by name and by id"] = by_id({"Name": f"{name}-twice"}, {"Name": None, "TopicId": other})
        seen["internal"] = by_id({"Name": "__cluster_metadata"})
        again = create_topic(client, f"{name}-id")
        seen["made again has another id"] = again != topic_id
        seen["metadata by the old id"] = comparable(
            client.call(
                "Metadata", 12, Topics=[{"Name": None, "TopicId": topic_id}], AllowAutoTopicCreation=False
            )["Topics"]
        )
    return seen


@scenario()
def create_partitions(broker: Broker) -> Any:
    name = "raw-topics-partitions"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, name, 2)

        def grow(
            count: int, *, version: int = 3, target: str = name, validate: bool = False, assign: Any = None
        ) -> Any:
            wanted = {"Name": target, "Count": count, "Assignments": assign}
            answer = client.call(
                "CreatePartitions", version, Topics=[wanted], TimeoutMs=10_000, ValidateOnly=validate
            )
            return comparable(answer)

        for count in (0, -1, 1, 2):
            seen[f"to {count}"] = grow(count)
        seen["validate 3"] = grow(3, validate=True)
        for version in versions_of("CreatePartitions"):
            seen[f"to {3 + version}, v{version}"] = grow(3 + version, version=version)
        seen["unknown topic"] = grow(3, target="raw-topics-nowhere")
        seen["assigned"] = grow(7, assign=[{"BrokerIds": [1]}])
        seen["assigned to an unknown broker"] = grow(8, assign=[{"BrokerIds": [5]}])
        seen["too few assigned"] = grow(9, assign=[{"BrokerIds": [1]}])
        seen["assigned to no broker"] = grow(8, assign=[{"BrokerIds": []}])
        seen["internal"] = grow(99, target="__cluster_metadata")
        twice = [{"Name": name, "Count": 20, "Assignments": None}] * 2
        seen["twice"] = comparable(client.call("CreatePartitions", 3, Topics=twice, TimeoutMs=1000))
        for label, names in {
            "several": ["t1", "t2", "t3", "t4"],
            "several, one of no name": ["x", "", "y"],
            "several, some twice": ["y", "x", "b", "y", "a", "x", "raw-topics-nowhere"],
            "many": [f"raw-topics-{index}" for index in range(30)],
        }.items():
            many = [{"Name": target, "Count": 20, "Assignments": None} for target in names]
            answer = client.call("CreatePartitions", 3, Topics=many, TimeoutMs=1000)
            answer["Results"].sort(key=lambda result: result["Name"])
            seen[label] = comparable(answer)

        def partitions() -> int:
            return len(client.call("Metadata", 9, Topics=[{"Name": name}])["Topics"][0]["Partitions"])

        until(lambda: partitions() >= 7)
        seen["in the end"] = partitions()
    return seen


@scenario()
def metadata(broker: Broker) -> Any:
    """Request one topic, an unknown topic, no topic, and all topics, in every version."""
    name = "raw-topics-metadata"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        topic_id = create_topic(client, name, 2)

        def request(version: int, **fields: Any) -> Any:
            return comparable(client.call("Metadata", version, **fields))

        for version in versions_of("Metadata"):
            fields: dict[str, Any] = {} if version < 4 else {"AllowAutoTopicCreation": False}
            seen[f"v{version} one"] = request(version, Topics=[{"Name": name}], **fields)
            seen[f"v{version} bad name"] = request(version, Topics=[{"Name": "a b"}], **fields)
            nobody = request(version, Topics=[], **fields)
            seen[f"v{version} empty list"] = "all" if nobody["Topics"] else "none"
            if version >= 1:
                every = client.call("Metadata", version, Topics=None, **fields)["Topics"]
                seen[f"v{version} null"] = name in {topic["Name"] for topic in every}
            if version >= 4:
                seen[f"v{version} unknown"] = request(
                    version, Topics=[{"Name": "raw-topics-nowhere"}], **fields
                )
        seen["by id"] = request(12, Topics=[{"Name": None, "TopicId": topic_id}])
        seen["by unknown id"] = request(12, Topics=[{"Name": None, "TopicId": bytes(15) + b"\7"}])
        seen["by id and name"] = request(12, Topics=[{"Name": name, "TopicId": topic_id}])
        seen["by wrong id and name"] = request(12, Topics=[{"Name": name, "TopicId": bytes(15) + b"\7"}])
        seen["twice"] = len(request(12, Topics=[{"Name": name}, {"Name": name}])["Topics"])
        seen["by id in v10"] = request(10, Topics=[{"Name": name, "TopicId": topic_id}])
        seen["operations"] = [
            request(version, Topics=[{"Name": name}], **{requested: True})
            for version in (8, 9, 10)
            for requested in ("IncludeTopicAuthorizedOperations", "IncludeClusterAuthorizedOperations")
        ]
        seen["operations, v12"] = request(12, Topics=[{"Name": name}], IncludeTopicAuthorizedOperations=True)
    return seen


@scenario()
def auto_creation(broker: Broker) -> Any:
    """Let Metadata create topics automatically, unless the request or the topic name forbids it."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:

        def request(name: str, version: int, **fields: Any) -> Any:
            return comparable(
                client.call("Metadata", version, Topics=[{"Name": name}], **fields)["Topics"][0]
            )

        seen["forbidden"] = request("raw-topics-auto-no", 9, AllowAutoTopicCreation=False)
        seen["allowed"] = request("raw-topics-auto", 9, AllowAutoTopicCreation=True)
        until(lambda: request("raw-topics-auto", 9, AllowAutoTopicCreation=False)["ErrorCode"] == 0)
        seen["made"] = request("raw-topics-auto", 9, AllowAutoTopicCreation=False)
        seen["old versions allow"] = request("raw-topics-auto-old", 1)
        until(lambda: request("raw-topics-auto-old", 9, AllowAutoTopicCreation=False)["ErrorCode"] == 0)
        bad_names = ("", "a b", "..", "__cluster_metadata")
        for bad in bad_names:
            seen[f"name {bad!r}"] = request(bad, 9, AllowAutoTopicCreation=True)
        # The broker creates topics in request order. When the last topic exists, it has rejected the others.
        request("raw-topics-auto-last", 9, AllowAutoTopicCreation=True)
        until(lambda: request("raw-topics-auto-last", 9, AllowAutoTopicCreation=False)["ErrorCode"] == 0)
        for bad in bad_names:
            seen[f"name {bad!r}, later"] = request(bad, 9, AllowAutoTopicCreation=False)

        # The configurations of the share coordinator's own topic are fixed.
        own = "__share_group_state"
        seen["own"] = request(own, 9, AllowAutoTopicCreation=True)
        until(lambda: request(own, 9, AllowAutoTopicCreation=False)["ErrorCode"] == 0)
        seen["own, made"] = request(own, 9, AllowAutoTopicCreation=False)
        described = client.call("DescribeConfigs", 4, Resources=[{"ResourceType": 2, "ResourceName": own}])
        configs = described["Results"][0]["Configs"]
        seen["own, settings"] = {c["Name"]: c["Value"] for c in configs if c["ConfigSource"] == TOPIC_CONFIG}
        seen["own, deleted"] = comparable(client.call("DeleteTopics", 1, TopicNames=[own], TimeoutMs=30_000))
    return seen


@scenario()
def describe_configs(broker: Broker) -> Any:
    """Describe all topic keys with synonyms and documentation, chosen keys, and unknown resources."""
    name = "raw-topics-configs"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, name, 1, {"retention.ms": "12345", "cleanup.policy": "compact"})

        def describe(version: int, kind: int, resource: str, keys: Any = None, **fields: Any) -> Any:
            wanted = {"ResourceType": kind, "ResourceName": resource, "ConfigurationKeys": keys}
            answer = comparable(client.call("DescribeConfigs", version, Resources=[wanted], **fields))
            result = answer["Results"][0]
            for entry in result["Configs"]:
                if entry.get("Documentation"):
                    entry["Documentation"] = "<text>"
            result["Configs"] = {entry.pop("Name"): entry for entry in result["Configs"]}
            return result

        for version in versions_of("DescribeConfigs"):
            seen[f"v{version}"] = describe(version, 2, name)
        seen["with all"] = describe(4, 2, name, IncludeSynonyms=True, IncludeDocumentation=True)
        seen["chosen"] = describe(4, 2, name, ["retention.ms", "no.such.key"], IncludeSynonyms=True)
        seen["no keys"] = describe(4, 2, name, [])
        seen["unknown topic"] = describe(4, 2, "raw-topics-nowhere")
        seen["bad topic name"] = describe(4, 2, "a b")
        seen["empty topic name"] = describe(4, 2, "")
        seen["unknown broker"] = describe(4, 4, "7")
        seen["broker not a number"] = describe(4, 4, "one")
        some = [
            "num.partitions",
            "log.retention.hours",
            "node.id",
            "auto.create.topics.enable",
            "no.such.key",
        ]
        seen["broker, chosen"] = describe(4, 4, "1", some, IncludeSynonyms=True)
        seen["cluster default"] = describe(4, 4, "")
        seen["unknown type"] = describe(4, 99, "x")
        seen["type 0"] = describe(4, 0, "x")
        seen["group"] = describe(4, 32, "raw-topics-group")
        seen["broker keys"] = sorted(describe(4, 4, "1")["Configs"])
    return seen


@scenario()
def alter_configs(broker: Broker) -> Any:
    """Set, delete, append and subtract with IncrementalAlterConfigs, with invalid values and resources."""
    name = "raw-topics-alter"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, name)

        def alter(
            *changes: Any, resource: str = name, kind: int = 2, version: int = 1, validate: bool = False
        ) -> Any:
            configs = [{"Name": key, "ConfigOperation": how, "Value": value} for key, how, value in changes]
            wanted = {"ResourceType": kind, "ResourceName": resource, "Configs": configs}
            return comparable(
                client.call("IncrementalAlterConfigs", version, Resources=[wanted], ValidateOnly=validate)
            )["Responses"]

        def current() -> Any:
            wanted = {"ResourceType": 2, "ResourceName": name, "ConfigurationKeys": None}
            configs = client.call("DescribeConfigs", 4, Resources=[wanted])["Results"][0]["Configs"]
            return {entry["Name"]: entry["Value"] for entry in configs if entry["ConfigSource"] == 1}

        set_, delete, append, subtract = range(4)
        seen["set"] = alter(("retention.ms", set_, "1000"))
        seen["validate"] = alter(("retention.ms", set_, "2000"), validate=True)
        seen["v0"] = alter(("segment.ms", set_, "3000"), version=0)
        seen["append"] = alter(("cleanup.policy", append, "compact"))
        until(lambda: len(current()) == 3)
        seen["so far"] = current()
        seen["append an existing element"] = alter(("cleanup.policy", append, "compact"))
        seen["subtract"] = alter(("cleanup.policy", subtract, "delete"))
        seen["subtract an absent element"] = alter(("cleanup.policy", subtract, "delete"))
        seen["append to a number"] = alter(("retention.ms", append, "1"))
        seen["delete"] = alter(("retention.ms", delete, None))
        seen["delete an unset key"] = alter(("flush.ms", delete, None))
        seen["set null"] = alter(("flush.ms", set_, None))
        seen["unknown key"] = alter(("no.such.key", set_, "1"))
        seen["bad value"] = alter(("retention.ms", set_, "soon"))
        seen["one key twice"] = alter(("retention.ms", set_, "1"), ("retention.ms", set_, "2"))
        seen["nothing"] = alter()
        seen["unknown topic"] = alter(("retention.ms", set_, "1"), resource="raw-topics-nowhere")
        seen["bad topic name"] = alter(("retention.ms", set_, "1"), resource="a b")
        seen["unknown type"] = alter(("retention.ms", set_, "1"), kind=99)
        seen["unknown broker"] = alter(("log.cleaner.threads", set_, "2"), kind=4, resource="9")
        seen["read-only broker key"] = alter(("node.id", set_, "2"), kind=4, resource="1")
        until(lambda: "retention.ms" not in current())
        seen["in the end"] = current()
    return seen


@scenario()
def cluster(broker: Broker) -> Any:
    """Send DescribeCluster in every version, for brokers, controllers and an unknown endpoint type."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for version in versions_of("DescribeCluster"):
            for kind in (1, 2, 3):
                if version == 0 and kind != 1:
                    continue
                fields = {} if version == 0 else {"EndpointType": kind}
                for operations in (False, True):
                    seen[f"v{version} kind {kind} {operations}"] = comparable(
                        client.call(
                            "DescribeCluster",
                            version,
                            IncludeClusterAuthorizedOperations=operations,
                            **fields,
                        )
                    )
    return seen


@scenario()
def describe_topic_partitions(broker: Broker) -> Any:
    """Page through topics with cursors (KIP-966)."""
    name = "raw-topics-describe"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, f"{name}-a", 3)
        create_topic(client, f"{name}-b", 2)

        def request(names: list[str], limit: int = 2000, cursor: Any = None) -> Any:
            return comparable(
                client.call(
                    "DescribeTopicPartitions",
                    0,
                    Topics=[{"Name": topic} for topic in names],
                    ResponsePartitionLimit=limit,
                    Cursor=cursor,
                )
            )

        both = [f"{name}-b", f"{name}-a"]
        seen["both"] = request(both)
        seen["first page"] = request(both, 2)
        seen["second page"] = request(both, 2, {"TopicName": f"{name}-a", "PartitionIndex": 2})
        seen["page from a later topic"] = request(both, 9, {"TopicName": f"{name}-b", "PartitionIndex": 0})
        seen["cursor past the end"] = request(both, 9, {"TopicName": f"{name}-b", "PartitionIndex": 7})
        seen["cursor of no topic"] = request(both, 9, {"TopicName": f"{name}-aa", "PartitionIndex": 1})
        seen["cursor below zero"] = request(both, 9, {"TopicName": f"{name}-a", "PartitionIndex": -1})
        seen["unknown"] = request(["raw-topics-nowhere"])
        seen["bad name"] = request(["a b"])
        seen["limit 0"] = request(both, 0)
        seen["limit -1"] = request(both, -1)
        seen["twice"] = request([f"{name}-b", f"{name}-b"])
        every = request([])["Topics"]
        seen["all"] = [topic["Name"] for topic in every if topic["Name"].startswith(name)]
    return seen


@scenario()
def log_dirs(broker: Broker) -> Any:
    """Send DescribeLogDirs for all, some and unknown partitions."""
    name = "raw-topics-dirs"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, name, 2)
        for version in versions_of("DescribeLogDirs"):
            for label, topics in {
                "one": [{"Topic": name, "Partitions": [0, 1]}],
                "one partition": [{"Topic": name, "Partitions": [1]}],
                "unknown": [{"Topic": "raw-topics-nowhere", "Partitions": [0]}],
                "none": [],
            }.items():
                answer = client.call("DescribeLogDirs", version, Topics=topics)
                for directory in answer["Results"]:
                    for entry in directory["Topics"]:
                        entry["Partitions"].sort(key=lambda partition: partition["PartitionIndex"])
                seen[f"v{version} {label}"] = comparable(answer)
            every = client.call("DescribeLogDirs", version, Topics=None)["Results"][0]["Topics"]
            seen[f"v{version} all"] = name in {entry["Name"] for entry in every}
    return seen
