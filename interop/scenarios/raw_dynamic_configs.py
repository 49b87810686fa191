"""Dynamic broker configurations: rejected values with their messages, and descriptions (KIP-226)."""

from __future__ import annotations

import time
from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.scenario import scenario

SET, DELETE = 0, 1
BROKER = 4
THROTTLES = [
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
]
PER_BROKER_ONLY = [
    "cordoned.log.dirs",
    "ssl.provider",
    "ssl.cipher.suites",
    "listener.name.plaintext.ssl.provider",
]
SECONDS = 10.0


def alter(
    client: RawClient, resource: str, name: str, value: str | None, *, validate_only: bool = False
) -> list[Any]:
    """Set the key `name`, or delete the key if the value is None. Return the error code and message."""
    operation = DELETE if value is None else SET
    change = {"Name": name, "ConfigOperation": operation, "Value": value}
    response = client.call(
        "IncrementalAlterConfigs",
        1,
        ValidateOnly=validate_only,
        Resources=[{"ResourceType": BROKER, "ResourceName": resource, "Configs": [change]}],
    )["Responses"][0]
    return [response["ErrorCode"], response["ErrorMessage"]]


def described_configs(client: RawClient, resource: str, names: list[str]) -> dict[str, Any]:
    """Describe these keys without their documentation."""
    response = client.call(
        "DescribeConfigs",
        4,
        Resources=[{"ResourceType": BROKER, "ResourceName": resource, "ConfigurationKeys": names}],
        IncludeSynonyms=True,
        IncludeDocumentation=False,
    )["Results"][0]
    assert response["ErrorCode"] == 0, response
    return {entry["Name"]: entry for entry in response["Configs"]}


@scenario()
def rejected_values(broker: Broker) -> Any:
    """Send values, most of them invalid, with validateOnly."""
    requested = [
        *((name, value) for name in THROTTLES for value in ("x", "-1", "", "0")),
        *((name, "") for name in PER_BROKER_ONLY),
        ("cordoned.log.dirs", "/nowhere"),
        ("log.cleaner.threads", "9"),
        ("log.cleaner.threads", "2"),
        ("num.io.threads", "999"),
        ("ssl.keystore.location", "x"),
        ("ssl.engine.factory.class", "x"),
        ("ssl.client.auth", "x"),
    ]
    with RawClient(broker.bootstrap) as client:
        return {
            f"{name}={value} of {resource or 'all'}": alter(client, resource, name, value, validate_only=True)
            for name, value in requested
            for resource in ("1", "")
        }


@scenario()
def dynamic_configs(broker: Broker) -> Any:
    """Set dynamic configurations, which must override static ones in DescribeConfigs, and delete them."""
    changes = [
        ("", THROTTLES[0], "5000000"),
        ("1", THROTTLES[1], "6000000"),
        ("", "log.retention.ms", "86400000"),
        ("1", "log.roll.ms", "100000000"),
        ("", "nonsense", "1"),
    ]
    names = [
        *(name for _, name, _ in changes),
        "log.retention.minutes",
        "log.retention.hours",
        "log.roll.hours",
    ]
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for resource, name, value in changes:
            assert alter(client, resource, name, value) == [0, None]
        try:
            deadline = time.monotonic() + SECONDS
            while "nonsense" not in described_configs(client, "1", names):
                assert time.monotonic() < deadline, "never shown"
                time.sleep(0.05)
            seen = {"one": described_configs(client, "1", names), "all": described_configs(client, "", names)}
        finally:
            for resource, name, _ in changes:
                alter(client, resource, name, None)
        while "nonsense" in described_configs(client, "1", names):
            assert time.monotonic() < deadline + SECONDS, "still shown"
            time.sleep(0.05)
        seen["afterwards"] = described_configs(client, "1", names)
    return seen
