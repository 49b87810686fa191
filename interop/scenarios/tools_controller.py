"""The controller listener: the APIs that it serves, and tools with `--bootstrap-controller` (KIP-919)."""

from __future__ import annotations

import re
import socket
from typing import Any

from interop.brokers import Broker
from interop.raw import by_api, comparable
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_config_values import BROKER, SET, TOPIC
from interop.scenarios.tools_cluster import FEATURES, QUORUM, without_unadvertised
from interop.tools import TOOLS, another, errors_only, lines_of, run, until
from interop.wire import Fields, api_keys, encode_request, versions_of

CONTROLLER_APIS = (
    *("ApiVersions", "CreateTopics", "DeleteTopics", "DescribeConfigs", "AlterConfigs", "CreatePartitions"),
    *("ElectLeaders", "IncrementalAlterConfigs", "AlterPartitionReassignments", "DescribeQuorum"),
    *("ListPartitionReassignments", "UpdateFeatures", "DescribeCluster", "UnregisterBroker"),
)
"""The APIs for clients on this listener. Both controllers serve more APIs, most of them for other nodes."""
BROKER_APIS = ("Produce", "ListOffsets", "Metadata", "FindCoordinator", "DescribeTopicPartitions")
LOGGER = 8
METADATA = "__cluster_metadata"


def controller_of(broker: Broker) -> str:
    return f"127.0.0.1:{broker.controller_port}"


def controller_tool_output(broker: Broker, main: str, *arguments: str) -> list[str]:
    """Run a tool with --bootstrap-controller, and return its normalized output lines."""
    return lines_of(run(main, "--bootstrap-controller", controller_of(broker), *arguments))


@scenario()
def api_versions(broker: Broker) -> Any:
    """Send ApiVersions in each version. Record the APIs that both controllers serve on this listener."""
    seen: dict[str, Any] = {}
    for version in versions_of("ApiVersions"):
        fields = {"ClientSoftwareName": "interop", "ClientSoftwareVersion": "1.0"} if version >= 3 else {}
        with RawClient(controller_of(broker)) as client:
            response = client.call("ApiVersions", version, **fields)
        ranges = by_api(response)
        features = {
            kind: {
                entry["Name"]: entry for entry in response.get(kind, ()) if entry["Name"] in SERVED_FEATURES
            }
            for kind in ("SupportedFeatures", "FinalizedFeatures")
        }
        seen[f"v{version}"] = {
            "error": response["ErrorCode"],
            "apis": {name: ranges.get(name) for name in (*CONTROLLER_APIS, *BROKER_APIS)},
            "unknown at the epoch": response.get("FinalizedFeaturesEpoch", 0) < 0,
            **features,
        }
    return seen


SERVED_FEATURES = ("group.version", "kraft.version", "metadata.version", "transaction.version")


@scenario()
def broker_only_apis(broker: Broker) -> Any:
    """Send APIs of brokers, and unsupported versions. The controller must close the connection."""
    seen: dict[str, Any] = {}
    for api in BROKER_APIS:
        with RawClient(controller_of(broker)) as client:
            seen[api] = client.outcome(
                encode_request(api, versions_of(api)[-1], {}), api, versions_of(api)[-1]
            )
    for api in CONTROLLER_APIS[1:]:
        version = versions_of(api).stop
        frame = api_keys()[api].to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0" * 16
        with RawClient(controller_of(broker)) as client:
            seen[f"{api} {version}"] = client.outcome(frame, api, version - 1)
    with RawClient(controller_of(broker)) as client:
        client.send("ApiVersions", 0)
        client.send("Metadata", 12, Topics=[])
        seen["before it"] = [client.receive("ApiVersions", 0)["ErrorCode"], client.answer("Metadata", 12)]
    return seen


@scenario()
def cluster_and_quorum(broker: Broker) -> Any:
    """Send DescribeCluster in each version and for each endpoint type, and DescribeQuorum."""
    seen: dict[str, Any] = {}
    with RawClient(controller_of(broker)) as client:
        for version in versions_of("DescribeCluster"):
            for kind in (1, 2, 3) if version else (1,):
                for flag in (False, True):
                    fields: dict[str, Any] = {"IncludeClusterAuthorizedOperations": flag}
                    fields |= {"EndpointType": kind} if version else {}
                    fields |= {"IncludeFencedBrokers": flag} if version > 1 else {}
                    response = client.call("DescribeCluster", version, **fields)
                    seen[f"v{version} {kind} {flag}"] = comparable(with_named_ports(broker, response))
        for version in versions_of("DescribeQuorum"):
            for index in (0, 1):
                requested = [{"TopicName": METADATA, "Partitions": [{"PartitionIndex": index}]}]
                response = client.call("DescribeQuorum", version, Topics=requested)
                partition = response["Topics"][0]["Partitions"][0]
                del partition["HighWatermark"], partition["LeaderEpoch"]
                for voter in partition["CurrentVoters"]:
                    for name in ("LogEndOffset", "LastFetchTimestamp", "LastCaughtUpTimestamp"):
                        voter.pop(name, None)
                seen[f"quorum v{version} {index}"] = with_named_ports(broker, response)
    return seen


def with_sorted_lists(value: Any) -> Any:
    """Sort the lists in a response, which are in the order of a Java map."""
    if isinstance(value, dict):
        return {key: with_sorted_lists(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted(map(with_sorted_lists, value), key=repr)
    return value


def with_named_ports(broker: Broker, value: Any) -> Any:
    """Replace the two ports of the node in a response by the names `controller` and `broker`."""
    if isinstance(value, dict):
        return {
            "At" if key == "Port" else key: named_port(broker, item)
            if key == "Port"
            else with_named_ports(broker, item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [with_named_ports(broker, item) for item in value]
    return value


def named_port(broker: Broker, port: int) -> Any:
    return {broker.port: "broker", broker.controller_port: "controller"}.get(port, port)


@scenario(seconds=60)
def controller_changes(broker: Broker) -> Any:
    """Change topics, configurations, leaders, replicas and features through the controller."""
    name = "tools-controller"
    seen: dict[str, Any] = {}
    with RawClient(controller_of(broker)) as client, RawClient(broker.bootstrap) as other:

        def request(label: str, api: str, version: int, **fields: Any) -> None:
            seen[label] = with_sorted_lists(comparable(client.call(api, version, **fields)))

        def topic(name: str, partitions: int = 2, replicas: int = 1) -> dict[str, Any]:
            return {"Name": name, "NumPartitions": partitions, "ReplicationFactor": replicas}

        def settings(*resources: tuple[int, str, str, str]) -> list[dict[str, Any]]:
            return [
                {
                    "ResourceType": kind,
                    "ResourceName": resource,
                    "Configs": [{"Name": key, "ConfigOperation": SET, "Value": value}],
                }
                for kind, resource, key, value in resources
            ]

        requested = [topic(name), topic(name + "/x"), topic(name + "-3", replicas=3), topic(name + "-0", 0)]
        request(
            "create, validate only", "CreateTopics", 7, Topics=requested, timeoutMs=10_000, validateOnly=True
        )
        request("create", "CreateTopics", 7, Topics=requested, timeoutMs=10_000)
        request("create again", "CreateTopics", 5, Topics=requested[:1], timeoutMs=10_000)
        more = [{"Name": name, "Count": 3}, {"Name": "tools-nothing", "Count": 3}]
        request("partitions", "CreatePartitions", 3, Topics=more, TimeoutMs=10_000)
        request("fewer", "CreatePartitions", 3, Topics=[{"Name": name, "Count": 1}], TimeoutMs=10_000)
        for label, one in {
            "topic": (TOPIC, name, "retention.ms", "1000"),
            "unknown topic": (TOPIC, "tools-nothing", "retention.ms", "1000"),
            "no number": (TOPIC, name, "retention.ms", "many"),
            "another broker": (BROKER, "77", "log.retention.ms", "1000"),
            "no broker": (BROKER, "x", "log.retention.ms", "1000"),
            "nothing": (99, "x", "a", "b"),
            "logger of another broker": (LOGGER, "77", "kwire", "INFO"),
        }.items():
            asked_for = settings(one)
            request(f"set {label}", "IncrementalAlterConfigs", 1, Resources=asked_for)
        twice = settings((TOPIC, name, "retention.ms", "1"), (TOPIC, name, "retention.ms", "2"))
        request("set twice", "IncrementalAlterConfigs", 1, Resources=twice)
        request("leaders", "ElectLeaders", 2, ElectionType=0, TimeoutMs=10_000, TopicPartitions=[
            {"Topic": name, "Partitions": [0, 7]},
            {"Topic": "tools-nothing", "Partitions": [0]}])  # fmt: skip
        request("moves", "ListPartitionReassignments", 0, TimeoutMs=10_000, Topics=None)
        request("move", "AlterPartitionReassignments", 1, TimeoutMs=10_000, Topics=[
            {"Name": name, "Partitions": [
                {"PartitionIndex": 0, "Replicas": [1]}, {"PartitionIndex": 1, "Replicas": [7]},
                {"PartitionIndex": 2, "Replicas": None}]}])  # fmt: skip
        request("feature", "UpdateFeatures", 2, timeoutMs=10_000, ValidateOnly=True, FeatureUpdates=[
            {"Feature": "transaction.version", "MaxVersionLevel": 1, "UpgradeType": 2}])  # fmt: skip
        request("unregister an unknown broker", "UnregisterBroker", 0, BrokerId=77)
        for kind, resource, keys in (
            (TOPIC, name, ["retention.ms", "cleanup.policy"]),
            (TOPIC, "tools-nothing", None),
            (BROKER, "1", ["log.retention.ms", "num.partitions"]),
            (BROKER, "77", ["num.partitions"]),
            (BROKER, "", ["num.partitions"]),
        ):
            what = {"ResourceType": kind, "ResourceName": resource, "ConfigurationKeys": keys}
            request(f"described {kind} {resource}", "DescribeConfigs", 4, Resources=[what])
        seen["broker sees it"] = [
            one["ErrorCode"] for one in other.call("Metadata", 9, Topics=[{"Name": name}])["Topics"]
        ]
        removed = [{"Name": name}, {"Name": "tools-nothing"}]
        request("delete", "DeleteTopics", 6, Topics=removed, TimeoutMs=10_000)
    return seen


@scenario(seconds=120)
def tools(broker: Broker) -> Any:
    """Run kafka-cluster, -metadata-quorum, -features, -configs and -topics against the controller."""
    cluster = f"{TOOLS}.ClusterTool"
    configs = "kafka.admin.ConfigCommand"
    broker_configs = ("--entity-type", "brokers", "--entity-name", "1")
    seen: dict[str, Any] = {
        "id": controller_verb_output(broker, cluster, "cluster-id"),
        "endpoints": controller_verb_output(broker, cluster, "list-endpoints"),
        "fenced": controller_verb_output(broker, cluster, "list-endpoints", "--include-fenced-brokers"),
        "unregister an unknown broker": controller_verb_output(broker, cluster, "unregister", "--id", "77"),
        "features": without_unadvertised(controller_tool_output(broker, FEATURES, "describe")),
        "feature": controller_tool_output(
            broker, FEATURES, "downgrade", "--feature", "transaction.version=1", "--dry-run"
        ),
        "versions": errors_only(controller_tool_output(broker, f"{TOOLS}.BrokerApiVersionsCommand")),
    }
    status = controller_tool_output(broker, QUORUM, "describe", "--status")
    seen["status"] = [re.sub(r"(HighWatermark|LeaderEpoch): \d+", r"\1: <n>", line) for line in status]
    replicas = controller_tool_output(broker, QUORUM, "describe", "--replication")
    rows = [line.split(" ") for line in replicas[1:-1]]
    seen["replication"] = [replicas[0], [[row[0], row[1], row[3], row[-1]] for row in rows], replicas[-1]]
    alter = ("--alter", *broker_configs, "--add-config", "log.cleaner.threads=2")
    seen["alter"] = controller_tool_output(broker, configs, *alter)

    def described_threads() -> list[str]:
        """Describe the changed key alone: other scenarios change configurations of the shared broker."""
        lines = controller_tool_output(broker, configs, "--describe", *broker_configs)
        return [line for line in lines if "=" not in line or line.startswith("log.cleaner.threads=")]

    # Before Apache Kafka's controller has applied the change, the new synonyms may come with the old value.
    until(lambda: any(line.startswith("log.cleaner.threads=2") for line in described_threads()))
    seen["altered"] = described_threads()
    seen["back"] = controller_tool_output(
        broker, configs, "--alter", *broker_configs, "--delete-config", "log.cleaner.threads"
    )
    described = controller_tool_output(broker, configs, "--describe", "--all", *broker_configs)
    seen["all"] = [line.split(" ")[0] for line in described if line.startswith("num.partitions=")]
    seen["not at the broker"] = errors_only(
        lines_of(run(cluster, "list-endpoints", "--bootstrap-controller", broker.bootstrap))
    )
    return seen


def controller_verb_output(broker: Broker, main: str, verb: str, *arguments: str) -> list[str]:
    """Run a tool as `controller_tool_output` does, but with its verb before its options."""
    outcome = run(main, verb, "--bootstrap-controller", controller_of(broker), *arguments)
    text = outcome.stdout.replace(str(broker.controller_port), "<controller>")
    return lines_of(outcome._replace(stdout=text))


@scenario(seconds=120)
def wildcard_listener(broker: Broker) -> Any:
    """Describe a controller that listens on all interfaces, and check that its port closes when it stops."""
    with another(broker) as own:
        own.stop()
        own.properties["listeners"] = f"PLAINTEXT://127.0.0.1:{own.port},CONTROLLER://:{own.controller_port}"
        own.start()
        seen: dict[str, Any] = {}
        with RawClient(controller_of(own)) as client:

            def controllers() -> Fields:
                return client.call("DescribeCluster", 1, EndpointType=2)

            # Apache Kafka's controller registers some time after its start.
            until(lambda: bool(controllers()["Brokers"]))
            response = with_named_ports(own, controllers())
            for known in response["Brokers"]:
                known["Host"] = socket.gethostbyname(known["Host"])
            seen["controllers"] = comparable(response)
            requested = [{"TopicName": METADATA, "Partitions": [{"PartitionIndex": 0}]}]
            seen["quorum"] = with_named_ports(
                own, client.call("DescribeQuorum", 2, Topics=requested)["Nodes"]
            )
        own.stop()
        with socket.socket() as probe:
            seen["closed"] = probe.connect_ex(("127.0.0.1", own.controller_port)) != 0
    return seen
