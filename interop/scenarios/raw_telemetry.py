"""GetTelemetrySubscriptions and PushTelemetry (KIP-714).

Both brokers must compute the same subscription ids, because a client keeps its subscription id when it
connects to another broker. Each subscription matches only client instances of its scenario, so that scenarios
do not affect each other.
"""

from __future__ import annotations

import gzip
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid5

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_config_values import CLIENT_METRICS, DELETE, SET, change
from interop.wire import Fields, encode_request

NAME = "raw-telemetry"
NAMESPACE = UUID("d1a5c6cd-2a3b-4c5d-8e9f-0a1b2c3d4e5f")
GET, PUSH = "GetTelemetrySubscriptions", "PushTelemetry"
NONE, TOO_EARLY = 0, 89
SECONDS = 10.0
DEFAULT_MS = 300_000
MAX_BYTES = 1 << 20

MANY = [f"org.apache.kafka.{kind}.{what}." for kind in ("producer", "consumer") for what in "abcdefghijk"]
SUBSCRIPTIONS: dict[str, list[dict[str, str]]] = {
    "none": [],
    "one": [{"metrics": "org.apache.kafka.producer.,a", "interval.ms": "1000"}],
    "without metrics": [{"interval.ms": "2000"}],
    "default interval": [{"metrics": "b"}],
    "a longer interval": [{"metrics": "b", "interval.ms": "3600000"}],
    "twelve": [{"metrics": ",".join(MANY[:12]), "interval.ms": "100"}],
    "thirteen": [{"metrics": ",".join(MANY[:13]), "interval.ms": "100"}],
    "many": [{"metrics": ",".join(MANY), "interval.ms": "100"}],
    "overlapping": [
        {"metrics": "a,b,\u00e9", "interval.ms": "5000"},
        {"metrics": "b,c,d", "interval.ms": "4000"},
        {"metrics": "d,e", "interval.ms": "400000"},
    ],
    "all": [{"metrics": "a,b", "interval.ms": "5000"}, {"metrics": "*,x"}],
}
"""By name: configurations of subscriptions that match the client instance with this name."""

MATCHES = (
    *("client_software_name=interop-.*", "client_software_name=interop", "client_software_name=unknown"),
    *(r"client_software_version=1\.[0-9]+", "client_software_version=2.0", "client_software_version=.*"),
    *("client_id=interop", "client_id=inter", "client_id=(?i)INTEROP", "client_id=a, client_id=interop"),
    *("client_id=.*", "client_id=()", r"client_source_address=127\.0\.0\.1", "client_source_address=10.*"),
    *("client_source_port=[0-9]+", "client_source_port=0", "client_id=interop,client_software_name=no"),
    "client_id=interop, client_source_port = \\d*",
)
"""Patterns for each client property, some that match the client and some that do not."""


def client_instance_id(name: str) -> bytes:
    """Return a client instance id that depends only on the name."""
    return uuid5(NAMESPACE, name).bytes


def uuid_text(instance_id: bytes) -> str:
    return urlsafe_b64encode(instance_id)[:22].decode()


def get(client: RawClient, instance_id: bytes) -> Fields:
    return client.call(GET, 0, ClientInstanceId=instance_id)


def get_until(client: RawClient, instance_id: bytes, is_it: Callable[[Fields], bool]) -> Fields:
    """Send GetTelemetrySubscriptions until a response satisfies the condition, and return this response."""
    deadline = time.monotonic() + SECONDS
    while not is_it(response := get(client, instance_id)):
        assert time.monotonic() < deadline, response
        time.sleep(0.02)
    return response


def push(client: RawClient, instance_id: bytes, **fields: Any) -> int:
    code: int = client.call(PUSH, 0, ClientInstanceId=instance_id, **fields)["ErrorCode"]
    return code


def subscribe(client: RawClient, name: str, settings: dict[str, str]) -> None:
    wanted = [(key, SET, value) for key, value in settings.items()]
    created = change(client, CLIENT_METRICS, f"{NAME}-{name}", wanted, check=False)
    assert created[0] == 0, created


def unsubscribe(client: RawClient, name: str, settings: dict[str, str]) -> None:
    change(client, CLIENT_METRICS, f"{NAME}-{name}", [(key, DELETE, None) for key in settings], check=False)


@scenario()
def subscription_responses(broker: Broker) -> Any:
    """Send GetTelemetrySubscriptions with new and known instance ids. Repeat requests too early."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        first = get(client, bytes(16))
        assert first["ClientInstanceId"][6] >> 4 == 4, "a random id"
        seen["an id"] = sorted(first), first["ErrorCode"], first["PushIntervalMs"], first["RequestedMetrics"]
        seen["again"] = get(client, first["ClientInstanceId"])
        seen["another"] = get(client, bytes(16))["ErrorCode"]
        seen["id one"] = get(client, bytes(15) + b"\x01")
        own = client_instance_id("told")
        seen["generated id"] = get(client, own)
        seen["generated id, again"] = get(client, own)
        with RawClient(broker.bootstrap) as another:
            seen["by another connection"] = get(another, own)["ErrorCode"]
    with RawClient(broker.bootstrap) as client:
        # The broker forgets a client instance soon after the connection of the instance has closed.
        seen["by a later connection"] = get_until(client, own, lambda response: response["ErrorCode"] == NONE)
    return seen


def is_subscription(metrics: set[str], interval_ms: int, response: Fields) -> bool:
    """Return whether the response requests these metrics with this push interval."""
    return (set(response["RequestedMetrics"]), response["PushIntervalMs"]) == (metrics, interval_ms)


@scenario()
def subscription_kinds(broker: Broker) -> Any:
    """Create subscriptions with different configurations, and get each one as the client that it matches."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for name, subscriptions in SUBSCRIPTIONS.items():
            own = client_instance_id(name)
            created = [
                (f"{number}", {**settings, "match": f"client_instance_id={uuid_text(own)}"})
                for number, settings in enumerate(subscriptions)
            ]
            for number, settings in created:
                subscribe(client, number, settings)
            every = [
                metric for one in subscriptions for metric in one.get("metrics", "").split(",") if metric
            ]
            wanted = {"*"} if "*" in every else set(every)
            interval_ms = min(
                [DEFAULT_MS, *(int(one.get("interval.ms", DEFAULT_MS)) for one in subscriptions)]
            )

            seen[name] = get_until(client, own, partial(is_subscription, wanted, interval_ms))
            for number, settings in created:
                unsubscribe(client, number, settings)
            if created:
                seen[f"{name}, deleted"] = get_until(
                    client,
                    own,
                    lambda response: not response["ErrorCode"] and not response["RequestedMetrics"],
                )
    return seen


@scenario()
def client_matches(broker: Broker) -> Any:
    """Create subscriptions that match a client by each of its properties, and some that do not match."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for pattern in MATCHES:
            known, unknown, marker = (
                client_instance_id(f"{pattern}, {identity}") for identity in ("known", "unknown", "marker")
            )
            settings = {
                "metrics": "found",
                "match": f"client_instance_id={uuid_text(known)}|{uuid_text(unknown)},{pattern}",
            }
            subscribe(client, "matched", settings)
            marked = {"metrics": "marker", "match": f"client_instance_id={uuid_text(marker)}"}
            subscribe(client, "marker", marked)
            get_until(client, marker, lambda response: response["RequestedMetrics"] == ["marker"])
            with RawClient(broker.bootstrap) as one:
                software = {"ClientSoftwareName": "interop-client", "ClientSoftwareVersion": "1.17"}
                one.call("ApiVersions", 3, **software)
                found = [get(one, known)["RequestedMetrics"]]
            with RawClient(broker.bootstrap) as one:
                one.send_frame(encode_request(GET, 0, {"ClientInstanceId": unknown}, client_id=None))
                found.append(one.answer(GET, 0)["RequestedMetrics"])
            seen[pattern] = found
            unsubscribe(client, "matched", settings)
            unsubscribe(client, "marker", marked)
    return seen


@scenario()
def pushes(broker: Broker) -> Any:
    """Send PushTelemetry with valid and with invalid metrics."""
    seen: dict[str, Any] = {}
    garbage = b"\xff" * 100
    with RawClient(broker.bootstrap) as client:
        seen["invalid ids"] = [push(client, bytes(16)), push(client, bytes(15) + b"\x01")]

        def fresh(name: str) -> tuple[bytes, int]:
            own = client_instance_id(f"pushed {name}")
            return own, get(client, own)["SubscriptionId"]

        own, known = fresh("in order")
        seen["in order"] = [
            push(client, own, SubscriptionId=known),
            push(client, own, SubscriptionId=known),
            get(client, own)["ErrorCode"],
            push(client, own, SubscriptionId=known, Terminating=True),
            push(client, own, SubscriptionId=known, Terminating=True),
            push(client, own, SubscriptionId=known),
            push(client, own, SubscriptionId=known),
            get(client, own)["ErrorCode"],
        ]
        own, known = fresh("of another subscription")
        seen["of another subscription"] = [
            push(client, own, SubscriptionId=known + 1),
            get(client, own),
            push(client, own, SubscriptionId=known),
            push(client, own, SubscriptionId=known, Terminating=True),
            get(client, own)["ErrorCode"],
        ]
        for codec in (-1, 5, 127):
            own, known = fresh(f"codec {codec}")
            seen[f"codec {codec}"] = [
                push(client, own, SubscriptionId=known, CompressionType=codec),
                get(client, own)["ErrorCode"],
                push(client, own, SubscriptionId=known, CompressionType=codec),
                push(client, own, SubscriptionId=known, CompressionType=codec, Terminating=True),
            ]
        bombs = {
            "largest": (0, bytes(MAX_BYTES)),
            "too large": (0, bytes(MAX_BYTES + 1)),
            "grows to the largest": (1, gzip.compress(bytes(MAX_BYTES))),
            "grows too large": (1, gzip.compress(bytes(MAX_BYTES + 1))),
            "nothing": (0, b""),
            "nothing, gzip": (1, b""),
            "garbage": (0, garbage),
            **{f"garbage {codec}": (codec, garbage) for codec in (1, 2, 3, 4)},
        }
        for name, (codec, data) in bombs.items():
            own, known = fresh(name)
            seen[name] = [
                push(client, own, SubscriptionId=known, CompressionType=codec, Metrics=data),
                get(client, own)["ErrorCode"],
                push(client, own, SubscriptionId=known, CompressionType=codec, Metrics=data),
                push(
                    client, own, SubscriptionId=known, CompressionType=codec, Metrics=data, Terminating=True
                ),
            ]
        own, known = fresh("several faults")
        faulty = {"CompressionType": 5, "Metrics": bytes(MAX_BYTES + 1)}
        seen["several faults"] = [
            push(client, own, SubscriptionId=known + 1, **faulty),
            push(client, own, SubscriptionId=known, **faulty, Terminating=True),
            push(client, own, SubscriptionId=known + 1, **faulty),
        ]
        # This broker does not know the client instance, as when a client has changed its broker.
        for name in ("pushed unasked", "pushed unasked, and wrongly"):
            own = client_instance_id(name)
            with RawClient(broker.bootstrap) as another:
                known = get(another, own)["SubscriptionId"]
            get_until(client, own, lambda response: response["ErrorCode"] == NONE)
            seen[name] = push(client, own, SubscriptionId=known + ("wrongly" in name))
    return seen


@scenario()
def subscription_changes(broker: Broker) -> Any:
    """Change a subscription between two pushes of its client."""
    own = client_instance_id("changed")
    settings = {"metrics": "a", "interval.ms": "60000", "match": f"client_instance_id={uuid_text(own)}"}
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        subscribe(client, "changed", settings)
        before = get_until(client, own, lambda response: response["RequestedMetrics"] == ["a"])
        seen["pushed"] = push(client, own, SubscriptionId=before["SubscriptionId"])
        seen["too early"] = push(client, own, SubscriptionId=before["SubscriptionId"])
        subscribe(client, "changed", {"metrics": "b"})
        deadline = time.monotonic() + SECONDS
        while (code := push(client, own, SubscriptionId=before["SubscriptionId"])) == TOO_EARLY:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        seen["after the change"] = code
        after = seen["new subscription"] = get(client, own)
        seen["pushed then"] = [push(client, own, SubscriptionId=after["SubscriptionId"]) for _ in range(2)]
        unsubscribe(client, "changed", settings)
        seen["deleted"] = get_until(client, own, lambda response: response["ErrorCode"] == NONE)
    return seen
