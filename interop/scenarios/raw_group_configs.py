"""Group configurations, request by request: consumer.* (KIP-848), share.* (KIP-932), streams.* (KIP-1071)."""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.raw import comparable
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_topics import until
from interop.wire import versions_of

GROUP = 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

WRONG: dict[str, dict[str, str]] = {
    "unknown": {"no.such": "1"},
    "unknown protocol": {"classic.session.timeout.ms": "45000"},
    "broker's name": {"group.consumer.session.timeout.ms": "45000"},
    "no number": {"consumer.session.timeout.ms": "long"},
    "empty": {"consumer.session.timeout.ms": ""},
    "too large a number": {"consumer.session.timeout.ms": "2147483648"},
    "session 0": {"consumer.session.timeout.ms": "0"},
    "session low": {"consumer.session.timeout.ms": "44999"},
    "session high": {"consumer.session.timeout.ms": "60001"},
    "heartbeat 0": {"consumer.heartbeat.interval.ms": "0"},
    "heartbeat low": {"consumer.heartbeat.interval.ms": "4999"},
    "heartbeat high": {"consumer.heartbeat.interval.ms": "15001"},
    "assignment -1": {"consumer.assignment.interval.ms": "-1"},
    "assignment high": {"consumer.assignment.interval.ms": "15001"},
    "both": {"consumer.session.timeout.ms": "44999", "consumer.heartbeat.interval.ms": "15001"},
    "both, the other way": {
        "consumer.heartbeat.interval.ms": "15001",
        "consumer.session.timeout.ms": "44999",
    },
    "no number and low": {"consumer.session.timeout.ms": "1", "consumer.heartbeat.interval.ms": "x"},
    "share and consumer": {"share.session.timeout.ms": "1", "consumer.session.timeout.ms": "1"},
    "share session": {"share.session.timeout.ms": "60001"},
    "share heartbeat": {"share.heartbeat.interval.ms": "4999"},
    "share locks": {"share.partition.max.record.locks": "4001"},
    "share locks at all": {"share.partition.max.record.locks": "99"},
    "share deliveries": {"share.delivery.count.limit": "11"},
    "share deliveries at all": {"share.delivery.count.limit": "1"},
    "share lock duration": {"share.record.lock.duration.ms": "14999"},
    "share lock duration at all": {"share.record.lock.duration.ms": "999"},
    "share reset": {"share.auto.offset.reset": "none"},
    "share reset by no duration": {"share.auto.offset.reset": "by_duration:1h"},
    "share reset by negative duration": {"share.auto.offset.reset": "by_duration:-PT1H"},
    "share isolation": {"share.isolation.level": "READ_COMMITTED"},
    "share renewal": {"share.renew.acknowledge.enable": "yes"},
    "streams standbys": {"streams.num.standby.replicas": "3"},
    "streams session": {"streams.session.timeout.ms": "1"},
    "streams delay": {"streams.initial.rebalance.delay.ms": "-1"},
}

RIGHT: dict[str, dict[str, str]] = {
    "consumer": {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"},
    "consumer interval": {"consumer.assignment.interval.ms": "0"},
    "share": {
        "share.auto.offset.reset": "by_duration:PT1H30M",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "FALSE",
    },
    "share reset": {"share.auto.offset.reset": "earliest"},
    "share reset in capitals": {"share.auto.offset.reset": "EARLIEST"},
    "streams": {"streams.num.standby.replicas": "2", "streams.initial.rebalance.delay.ms": "0"},
    "spaces": {"consumer.session.timeout.ms": " 51000 "},
}


def described(client: RawClient, group: str, version: int = 4, **fields: Any) -> Any:
    wanted = {"ResourceType": GROUP, "ResourceName": group, "ConfigurationKeys": None}
    answer = comparable(client.call("DescribeConfigs", version, Resources=[wanted], **fields))
    result = answer["Results"][0]
    for entry in result["Configs"]:
        # The documentation texts differ between brokers.
        entry["Documentation"] = bool(entry.get("Documentation"))
    result["Configs"] = {entry.pop("Name"): entry for entry in result["Configs"]}
    return result


def group_overrides(client: RawClient, group: str) -> dict[str, str]:
    """Return the configurations that are set for the group."""
    entries = described(client, group)["Configs"].items()
    return {name: entry["Value"] for name, entry in entries if entry["ConfigSource"] == 8}


def alter(
    client: RawClient,
    group: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    check: bool = False,
) -> Any:
    configs = [{"Name": key, "ConfigOperation": how, "Value": value} for key, how, value in changes]
    wanted = {"ResourceType": GROUP, "ResourceName": group, "Configs": configs}
    return codes_and_messages(
        client.call("IncrementalAlterConfigs", version, Resources=[wanted], ValidateOnly=check)
    )


def replace(client: RawClient, group: str, configs: dict[str, str | None], *, check: bool = False) -> Any:
    listed = [{"Name": key, "Value": value} for key, value in configs.items()]
    wanted = {"ResourceType": GROUP, "ResourceName": group, "Configs": listed}
    return codes_and_messages(client.call("AlterConfigs", 2, Resources=[wanted], ValidateOnly=check))


def codes_and_messages(answer: dict[str, Any]) -> list[tuple[int, str | None]]:
    """Return error codes and messages. kwire's messages must equal Kafka's, because users read them."""
    return [(response["ErrorCode"], response["ErrorMessage"]) for response in answer["Responses"]]


@scenario()
def described_configs(broker: Broker) -> Any:
    """Describe a group without configurations, in each version, with and without synonyms."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for version in versions_of("DescribeConfigs"):
            seen[f"v{version}"] = described(client, "raw-group-configs-none", version)
        seen["all"] = described(
            client, "raw-group-configs-none", IncludeSynonyms=True, IncludeDocumentation=True
        )
        seen["no name"] = described(client, "")
    return seen


@scenario()
def rejected_configs(broker: Broker) -> Any:
    """Set invalid configurations with AlterConfigs and IncrementalAlterConfigs."""
    seen: dict[str, Any] = {}
    group = "raw-group-configs-wrong"
    with RawClient(broker.bootstrap) as client:
        for label, configs in WRONG.items():
            changes = [(name, SET, value) for name, value in configs.items()]
            seen[label] = alter(client, group, *changes), replace(client, group, {**configs})
        key = "consumer.session.timeout.ms"
        seen["append"] = alter(client, group, (key, APPEND, "1"))
        seen["subtract"] = alter(client, group, (key, SUBTRACT, "1"))
        seen["no value"] = alter(client, group, (key, SET, None))
        seen["twice"] = alter(client, group, (key, SET, "50000"), (key, SET, "51000"))
        seen["no name"] = alter(client, "", (key, SET, "50000"))
        seen["replace: no value"] = replace(client, group, {key: None})
        seen["replace: no name"] = replace(client, "", {key: "50000"})
        seen["after"] = group_overrides(client, group)
    return seen


@scenario()
def altered_configs(broker: Broker) -> Any:
    """Set, change, replace and delete configurations of a group."""
    seen: dict[str, Any] = {}
    key = "consumer.session.timeout.ms"
    with RawClient(broker.bootstrap) as client:
        for index, (label, configs) in enumerate(RIGHT.items()):
            group = f"raw-group-configs-{index}"
            changes = [(name, SET, value) for name, value in configs.items()]
            seen[f"{label}: checked"] = (
                alter(client, group, *changes, check=True),
                group_overrides(client, group),
            )
            [(code, message)] = alter(client, group, *changes)
            seen[f"{label}: set"] = code, message
            wanted = 0 if code else len(configs)
            until(lambda group=group, wanted=wanted: len(group_overrides(client, group)) == wanted)  # type: ignore[misc]
            seen[f"{label}: then"] = group_overrides(client, group)
        group = "raw-group-configs-0"
        seen["synonyms"] = described(client, group, IncludeSynonyms=True)["Configs"][key]
        seen["delete one"] = alter(client, group, ("consumer.heartbeat.interval.ms", DELETE, None))
        until(lambda: len(group_overrides(client, group)) == 1)
        seen["one remaining"] = group_overrides(client, group)
        seen["delete an unset key"] = alter(client, group, ("share.session.timeout.ms", DELETE, None))
        seen["delete an unknown key"] = alter(client, group, ("no.such", DELETE, None))
        seen["replace checked"] = replace(client, group, {"streams.num.standby.replicas": "1"}, check=True)
        seen["replace"] = replace(client, group, {"streams.num.standby.replicas": "1"})
        until(lambda: key not in group_overrides(client, group))
        seen["replaced"] = group_overrides(client, group)
        seen["replace by nothing"] = replace(client, group, {})
        until(lambda: not group_overrides(client, group))
        seen["bare"] = group_overrides(client, group)
    return seen
