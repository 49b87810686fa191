"""Configuration changes that fail, for one resource or for the complete request.

Apache Kafka's broker rejects some resources itself and forwards the others to its controller. The controller
rejects all forwarded resources if their changes need too many records, or a batch that is too large.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_config_values import wait_for
from interop.scenarios.raw_topics import until

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT, UNKNOWN = 0, 1, 2, 3, 9
NAME = "raw-config-refusals"
THROTTLED = "leader.replication.throttled.replicas"
CIPHERS = "ssl.cipher.suites"
MIN_ISR = "min.insync.replicas"
MAX_VALUE_LENGTH = 32767
MAX_RECORDS = 10_000

Change = tuple[str, int, str | None]
Resource = tuple[int, str, list[Change]]

GOOD: Resource = TOPIC, NAME, [("retention.ms", SET, "1000")]
OTHERS: list[Resource] = [
    (TOPIC, "nope", [("retention.ms", SET, "1")]),
    (TOPIC, f"{NAME}-c", [("retention.ms", SET, None)]),
    (TOPIC, "", []),
    (TOPIC, "twice", [("retention.ms", UNKNOWN, "1")]),
    (TOPIC, "twice", []),
    (BROKER, "", [("num.io.threads", UNKNOWN, "1")]),
    (BROKER, "1", [("num.io.threads", SET, "x")]),
    (LOGGER, "1", [("root", SET, "LOUD")]),
    (CLIENT_METRICS, "", []),
    (GROUP, "g", [("no.such.key", SET, "1")]),
    (64, "x", [("retention.ms", UNKNOWN, "1")]),
]


def alter(client: RawClient, *resources: Resource, check: bool, legacy: bool = False) -> list[Any]:
    """Alter the configurations of resources, and return the error of each resource.

    `check` sets validateOnly. `legacy` selects AlterConfigs instead of IncrementalAlterConfigs.
    """
    requested = [
        {
            "ResourceType": kind,
            "ResourceName": name,
            "Configs": [
                {"Name": key, "Value": value}
                if legacy
                else {"Name": key, "ConfigOperation": how, "Value": value}
                for key, how, value in changes
            ],
        }
        for kind, name, changes in resources
    ]
    api, version = ("AlterConfigs", 2) if legacy else ("IncrementalAlterConfigs", 1)
    response = client.call(api, version, Resources=requested, ValidateOnly=check)
    return [
        (one["ResourceType"], one["ResourceName"], one["ErrorCode"], one["ErrorMessage"])
        for one in response["Responses"]
    ]


def values(client: RawClient, kind: int, resource: str, *names: str) -> list[Any]:
    wanted = {"ResourceType": kind, "ResourceName": resource, "ConfigurationKeys": list(names)}
    configs = client.call("DescribeConfigs", 4, Resources=[wanted])["Results"][0]["Configs"]
    return [(config["Name"], len(config["Value"] or ""), config["Value"]) for config in configs]


@scenario()
def invalid_resources(broker: Broker) -> Any:
    """Send requests with one valid resource, preceded or followed by resources with different errors."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for name in (NAME, f"{NAME}-c"):
            create_topic(client, name)
        seen["before"] = alter(client, GOOD, *OTHERS, check=True)
        seen["behind"] = alter(client, *OTHERS, GOOD, check=True)
    return seen


def replicas(size: int, first: int) -> str:
    """Return a throttled-replicas list of `size` characters. Its partition numbers start at `first`."""
    text = ",".join(f"{partition}:1" for partition in range(first, first + size // 8))
    return f"{text},{'7' * (size - len(text) - 3)}:1"


@scenario(seconds=120)
def values_too_long(broker: Broker) -> Any:
    """Append to lists until the value is too long for a metadata record."""
    seen: dict[str, Any] = {}
    other: Resource = CLIENT_METRICS, NAME, [("interval.ms", SET, "1000")]
    with RawClient(broker.bootstrap) as client:
        create_topic(client, f"{NAME}-long")
        whole = replicas(30_000, 10_000)
        seen["long"] = alter(client, (TOPIC, f"{NAME}-long", [(THROTTLED, SET, whole)]), check=False)
        for size in (MAX_VALUE_LENGTH - 1, MAX_VALUE_LENGTH, MAX_VALUE_LENGTH + 1, 40_000):
            more = replicas(size - len(whole) - 1, 50_000)
            grown = THROTTLED, APPEND, more
            for beside in ([], [("retention.ms", APPEND, "1")], [("retention.ms", SET, "x")]):
                resource: Resource = TOPIC, f"{NAME}-long", [grown, *beside]
                seen[f"{size} beside {beside}"] = alter(client, resource, other, check=True)
            for name in ("nope", "", "a b"):
                seen[f"{size} of {name}"] = alter(
                    client, (TOPIC, name, [(THROTTLED, APPEND, more)]), check=True
                )
        seen["refused"] = alter(client, (TOPIC, f"{NAME}-long", [grown]), other, check=False)
        until(lambda: values(client, CLIENT_METRICS, NAME, "interval.ms") == [("interval.ms", 4, "1000")])
        seen["undone"] = alter(client, (CLIENT_METRICS, NAME, [("interval.ms", DELETE, None)]), check=False)
        seen["kept"] = [length for _, length, _ in values(client, TOPIC, f"{NAME}-long", THROTTLED)]
    return seen


@scenario(seconds=120)
def too_many_records(broker: Broker) -> Any:
    """Send requests that need too many records, some of them records that clear eligible leader replicas."""
    seen: dict[str, Any] = {}
    several: list[Resource] = [
        (CLIENT_METRICS, f"{NAME}-{number}", [("interval.ms", SET, "1000")])
        for number in range(MAX_RECORDS + 1)
    ]
    with RawClient(broker.bootstrap) as client:
        create_topic(client, f"{NAME}-many")
        own: list[Resource] = [
            (TOPIC, f"{NAME}-many", [(MIN_ISR, SET, "1")]),
            (TOPIC, f"{NAME}-many", [(MIN_ISR, DELETE, None)]),
            (TOPIC, "nope", [(MIN_ISR, SET, "1")]),
            (BROKER, "", [(MIN_ISR, SET, "1")]),
            (BROKER, "1", [(MIN_ISR, SET, "1")]),
            (GROUP, "g", [(MIN_ISR, SET, "1")]),
            (64, "x", []),
        ]

        def summarize(*resources: Resource, check: bool = True, legacy: bool = False) -> Any:
            """Count the errors for client metrics subscriptions, and list the errors of other resources."""
            outcome = alter(client, *resources, check=check, legacy=legacy)
            counted = Counter((code, message) for kind, _, code, message in outcome if kind == CLIENT_METRICS)
            return sorted(counted.items()), [one for one in outcome if one[0] != CLIENT_METRICS]

        for legacy, resource in product((False, True), own):
            if legacy and resource[2][:1] == [(MIN_ISR, DELETE, None)]:
                continue
            for count in (MAX_RECORDS - 2, MAX_RECORDS - 1):
                label = f"{count} and {resource}, {legacy}"
                seen[label] = summarize(*several[:count], resource, legacy=legacy)
        for legacy in (False, True):
            seen[f"too many, {legacy}"] = summarize(*several, *own[2:], check=False, legacy=legacy)
        keys: list[Change] = [(f"key{number}", SET, "1") for number in range(MAX_RECORDS + 1)]
        for kind, resource_name in ((BROKER, "1"), (BROKER, ""), (TOPIC, f"{NAME}-many"), (GROUP, "g")):
            for count in (MAX_RECORDS, MAX_RECORDS + 1):
                responses = alter(client, (kind, resource_name, keys[:count]), (GROUP, "h", []), check=True)
                seen[f"{count} keys of {kind} {resource_name}"] = [code for _, _, code, _ in responses]
        # These changes need few records, but the records are too large for a batch of the metadata log.
        wide: list[Change] = [("metrics", SET, "x" * 32_000)]
        for check in (True, False):
            long: list[Resource] = [(CLIENT_METRICS, f"{NAME}-{number}", wide) for number in range(262)]
            seen[f"too long together, {check}"] = summarize(*long, (GROUP, "g", []), check=check)
        seen["no subscription exists"] = values(client, CLIENT_METRICS, f"{NAME}-1", "interval.ms", "metrics")
    return seen


FIXED = (
    "broker.id",
    "log.dirs",
    "listeners",
    "ssl.cipher.suites",
    "ssl.keystore.password",
    "ssl.keystore.location",
)
PER_IP, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"


@scenario()
def broker_configs(broker: Broker) -> Any:
    """Set several invalid keys of a broker in one request, and replace all stored configurations."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for names, resource, legacy in product(combinations(FIXED, 3), ("", "1"), (True, False)):
            changes: list[Change] = [(name, SET, "x") for name in names]
            [(_, _, code, message)] = alter(client, (BROKER, resource, changes), check=True, legacy=legacy)
            text, _, listed = message.rstrip("]").partition("[")
            seen[f"{names} of {resource!r}, {legacy}"] = code, text, sorted(listed.split(", "))
        stored: list[Change] = [(OVERRIDES, SET, "127.0.0.1:900"), (PER_IP, SET, "0")]
        seen["stored"] = alter(client, (BROKER, "", stored), check=False)
        for name, _, value in stored:
            wait_for(client, "", name, value)
        for kept in ([], stored[:1], stored[1:], stored):
            replaced: Resource = BROKER, "", [*kept, (MIN_ISR, SET, "1")]
            seen[f"replaced by {kept}"] = alter(client, replaced, check=True, legacy=True)
        for name in (PER_IP, OVERRIDES):
            seen[f"undone {name}"] = alter(client, (BROKER, "", [(name, DELETE, None)]), check=False)
            wait_for(client, "", name, None)
    return seen
