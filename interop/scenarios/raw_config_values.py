"""Configuration values, key by key: accepted or rejected, and the error messages.

Every key of a topic and every dynamic key of a broker gets the same values, alone and combined with others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from interop.brokers import Broker
from interop.raw import comparable, create_topic
from interop.raw_client import RawClient
from interop.scenario import scenario

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SECONDS = 10.0
NAME = "raw-config-values"

VALUES = (
    *("", "x", "-2", "-1", "0", "1", "2", "5", "20", "1048577", "99999999999", "9223372036854775808"),
    *("0.5", "1e3", "NaN", "+5", " 1 ", "1_0", "0x10", "\u0661", "\u00a01", "TRUE", " true "),
    *(",", "a,b", "*", "*,*", "0:1, 1:2", "0:1,x", "compact,compact", "DELETE", "zstd", "LogAppendTime"),
)
EDITS = ("", ",", "x", "a,b", "delete", "compact,compact", "x,")

OVERRIDES = "max.connections.per.ip.overrides"
HOSTS = (
    *("127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:0", "127.0.0.1:-1", "127.0.0.1:99999999999"),
    *("no.such.host:5", "a b:5", "a/b:1", "[::1]:5", "::1:5", ":5", "a:1,a:2", ",a:1", "a:1,", "a:1,,b:2"),
    *(" a:1 , b:2 ", "a: +1"),
)
DOUBLES = ("0x1p-3", "1f", ".5", "5.", "+NaN", "Infinity", "infinity", "nan", "1e-5", "123456789", "1e400")
THREADS = (
    *("num.io.threads", "num.network.threads", "num.replica.fetchers", "background.threads"),
    *("num.recovery.threads.per.data.dir", "log.cleaner.threads", "remote.log.reader.threads"),
    *(f"remote.log.manager.{kind}.thread.pool.size" for kind in ("copier", "expiration", "follower")),
)

SUBSCRIBED = {
    "metrics": (" a , b,a", "*", "a, b", "a,", ",", "", " ", "a,,b"),
    "interval.ms": (" 00500 ", "+500", "5_00", "\u0665\u0660\u0660", "", " ", "1.0", "99", "99999999999"),
    "match": (
        *(" client_id = a , client_source_port=1, client_id = a", "client_id=a,,client_id=b", "client_id=a,"),
        *(
            "client_id=a=",
            "client_id= =",
            "client_id=a===",
            "client_id=a=b",
            "=a",
            "=",
            "client_id=",
            " ",
            ",",
        ),
        *("client_id=*", "client_id=[", "client_id=x++", "client_id=(a|b)?", "Client_Id=a"),
    ),
}
"""Values for the keys of client metrics subscriptions."""

LIMITS = "max.connections", "max.connection.creation.rate"

Settings = Sequence[tuple[str, str]]

BROKER_COMBINATIONS: list[Settings] = [
    *([(OVERRIDES, hosts), *zero] for hosts in HOSTS for zero in ([], [("max.connections.per.ip", "0")])),
    *([(name, str(count))] for name in THREADS for count in (1, 2, 3, 4, 5, 6, 16, 17, 20, 21)),
    *([("log.cleaner.min.cleanable.ratio", text)] for text in DOUBLES),
    *(
        [(f"log.local.retention.{unit}", local), (f"log.retention.{unit}", whole)]
        for unit, local, whole in product(("ms", "bytes"), ("-2", "-1", "5", "6"), ("-1", "1", "5"))
    ),
    *(
        [("log.cleaner.threads", threads), ("log.cleaner.dedupe.buffer.size", size)]
        for threads, size in product(("1", "2", "3"), ("1048576", "1048577", "2097153", "2097154", "-5"))
    ),
    *(
        [(f"group.{kind}.assignment.interval.ms", interval)]
        for kind, interval in product(("consumer", "share", "streams"), ("15000", "15001"))
    ),
    *(
        [(f"listener.name.{listener}.{name}", value)]
        for listener, name, value in product(
            ("plaintext", "PLAINTEXT", "other", ""),
            (
                "max.connections",
                "max.connection.creation.rate",
                "num.network.threads",
                "num.partitions",
                "nope",
            ),
            ("", "x", "0", "5", "999"),
        )
    ),
    [("listener.name.x", "1")],
    [("listener.name.plaintext.ssl.provider", "x")],
    [("message.max.bytes", "x"), ("log.segment.bytes", "x")],
    [("log.segment.bytes", "x"), ("message.max.bytes", "x")],
    [("num.io.threads", "99"), ("log.cleaner.threads", "9")],
    [("num.io.threads", "99"), ("num.network.threads", "99")],
    [("max.connections", "0"), ("max.connection.creation.rate", "0")],
    [("num.partitions", "x"), ("message.max.bytes", "x")],
    [("log.roll.ms", "0"), ("log.retention.ms", "0")],
    [("log.retention.minutes", "5")],
    [("cordoned.log.dirs", "*,/x")],
    [("cordoned.log.dirs", "/x,/y")],
    [("metric.reporters", "x,y")],
    [("config.providers", ",")],
]
TOPIC_COMBINATIONS: list[Settings] = [
    [("segment.bytes", "x"), ("retention.ms", "x")],
    [("retention.ms", "x"), ("segment.bytes", "x")],
    [("retention.ms", "x"), ("nope", "1")],
    [("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")],
    [("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4"), ("retention.ms", "x")],
    [("remote.storage.enable", "true"), ("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")],
    [("local.retention.ms", "5"), ("retention.ms", "4")],
]

IP = "max.connections.per.ip"
STEPS: list[tuple[str, str, str | None]] = [
    ("", OVERRIDES, "127.0.0.1:900"),
    ("1", IP, "0"),
    ("", OVERRIDES, None),
    ("1", IP, None),
    ("", OVERRIDES, None),
    ("", IP, "0"),
    ("", "num.io.threads", "16"),
    ("1", "num.io.threads", "33"),
    ("1", "num.io.threads", "32"),
    ("", "num.io.threads", None),
    ("1", "num.io.threads", "16"),
    ("1", "num.io.threads", None),
    ("", "log.retention.ms", "100000"),
    ("1", "log.local.retention.ms", "100001"),
    ("1", "log.local.retention.ms", "100000"),
    ("", "log.retention.ms", "99999"),
    ("", "log.retention.ms", None),
    ("1", "log.local.retention.ms", None),
    ("", "max.connections", "5000"),
    ("1", "listener.name.plaintext.max.connections", "4000"),
    ("1", "listener.name.plaintext.max.connections", "0"),
    ("1", "listener.name.plaintext.max.connections", None),
    ("", "max.connections", None),
]
"""Cluster and broker configurations, set one by one. The broker validates each with all earlier ones."""


def change(
    client: RawClient,
    kind: int,
    resource: str,
    settings: Iterable[tuple[str, int, str | None]],
    *,
    check: bool = True,
) -> list[Any]:
    configs = [{"Name": name, "ConfigOperation": how, "Value": value} for name, how, value in settings]
    wanted = {"ResourceType": kind, "ResourceName": resource, "Configs": configs}
    response = client.call("IncrementalAlterConfigs", 1, Resources=[wanted], ValidateOnly=check)["Responses"][
        0
    ]
    return [response["ErrorCode"], response["ErrorMessage"]]


def entries(client: RawClient, kind: int, resource: str, names: Sequence[str] | None = None) -> list[Any]:
    wanted = {"ResourceType": kind, "ResourceName": resource, "ConfigurationKeys": names}
    response = client.call("DescribeConfigs", 4, Resources=[wanted], IncludeSynonyms=True)
    found: list[Any] = comparable(response)["Results"][0]["Configs"]
    return found


def comparable_outcome(name: str, value: str | None, outcome: list[Any]) -> list[Any] | int:
    """Return the error code and the message without ports, or only the code if the message varies."""
    if name == "listener.security.protocol.map" and outcome[1] is not None:
        return [outcome[0], re.sub(r"(//[0-9.]+):\d+", r"\1:<Port>", outcome[1])]
    if name == "log.cleaner.threads" and value is not None and value.strip() == "0":
        # The JVM omits the message of an ArithmeticException after it has compiled the code.
        return int(outcome[0])
    return outcome


def ensure_topic(client: RawClient) -> None:
    topic = {"Name": NAME, "NumPartitions": 1, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
    response = client.call("CreateTopics", 7, Topics=[topic], timeoutMs=10000)["Topics"][0]
    assert response["ErrorCode"] in (0, 36), response


@scenario(seconds=120)
def topic_values(broker: Broker) -> Any:
    """Set each topic key to each value, with AlterConfigs and IncrementalAlterConfigs."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        ensure_topic(client)
        deadline = time.monotonic() + SECONDS
        while not (keys := entries(client, TOPIC, NAME)):
            assert time.monotonic() < deadline, "never there"
        for entry in keys:
            name = entry["Name"]
            for value in VALUES:
                configs = [{"Name": name, "Value": value}]
                wanted = {"ResourceType": TOPIC, "ResourceName": NAME, "Configs": configs}
                response = client.call("AlterConfigs", 2, Resources=[wanted], ValidateOnly=True)["Responses"][
                    0
                ]
                seen[f"{name}={value!r}"] = [
                    change(client, TOPIC, NAME, [(name, SET, value)]),
                    [response["ErrorCode"], response["ErrorMessage"]],
                ]
            for how, value in product((APPEND, SUBTRACT), EDITS):
                seen[f"{name} {how} {value!r}"] = change(client, TOPIC, NAME, [(name, how, value)])
        for settings in TOPIC_COMBINATIONS:
            seen[repr(settings)] = change(client, TOPIC, NAME, [(name, SET, text) for name, text in settings])
    return seen


@scenario(seconds=120)
def broker_values(broker: Broker) -> Any:
    """Set each dynamic broker key to each value, for one broker and for the cluster."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        keys = [entry["Name"] for entry in entries(client, BROKER, "1") if not entry["ReadOnly"]]
        for name, resource in product([*keys, "process.roles", "num.partitions"], ("1", "")):
            for value in VALUES:
                response = change(client, BROKER, resource, [(name, SET, value)])
                seen[f"{name}={value!r} of {resource!r}"] = comparable_outcome(name, value, response)
            if name == "process.roles":
                continue  # this list has no default, so Kafka fails on append and subtract (decision 0007)
            for how, value in product((APPEND, SUBTRACT), EDITS):
                response = change(client, BROKER, resource, [(name, how, value)])
                seen[f"{name} {how} {value!r} of {resource!r}"] = comparable_outcome(name, None, response)
        for settings, resource in product(BROKER_COMBINATIONS, ("1", "")):
            changes = [(name, SET, text) for name, text in settings]
            seen[f"{settings!r} of {resource!r}"] = change(client, BROKER, resource, changes)
        for resource in ("01", "+1", " 1", "1_0", "\u0661", "1x", "-1", "2"):
            seen[f"broker {resource!r}"] = change(client, BROKER, resource, [("num.io.threads", SET, "8")])
    return seen


@scenario()
def successive_changes(broker: Broker) -> Any:
    """Set cluster and broker configurations alternately. Invalid combinations must be rejected."""
    seen: list[Any] = []
    names = sorted({name for _, name, _ in STEPS})
    with RawClient(broker.bootstrap) as client:
        for resource, name, value in STEPS:
            step = (name, DELETE if value is None else SET, value)
            response = change(client, BROKER, resource, [step], check=False)
            if response[0] == 0:
                wait_for(client, resource, name, value)
            shown = {where: entries(client, BROKER, where, names) for where in ("1", "")}
            for found in shown.values():
                found.sort(key=lambda entry: str(entry["Name"]))
            seen.append([resource, name, value, response, shown])
    return seen


def wait_for(client: RawClient, resource: str, name: str, value: str | None) -> None:
    """Wait until the key has this value at the broker or cluster. For None, wait until it is not set."""
    source = 2 if resource else 3
    deadline = time.monotonic() + SECONDS
    while True:
        values = [
            synonym["Value"]
            for entry in entries(client, BROKER, resource, [name])
            for synonym in entry["Synonyms"]
            if synonym["Source"] == source and synonym["Name"] == name
        ]
        if values == ([] if value is None else [value]):
            return
        assert time.monotonic() < deadline, (resource, name, value, values)
        time.sleep(0.05)


@scenario()
def list_operations(broker: Broker) -> Any:
    """Append to and subtract from cleanup.policy, which the topic does not set.

    The operations must change Kafka's default for topics, not the cluster's log.cleanup.policy.
    """
    seen: list[Any] = []
    policy = "log.cleanup.policy"
    with RawClient(broker.bootstrap) as client:
        ensure_topic(client)
        assert change(client, BROKER, "", [(policy, SET, "compact")], check=False) == [0, None]
        try:
            wait_for(client, "", policy, "compact")
            for how, value in (
                (APPEND, "compact"),
                (SUBTRACT, "delete"),
                (SUBTRACT, "compact"),
                (DELETE, None),
            ):
                response = change(client, TOPIC, NAME, [("cleanup.policy", how, value)], check=False)
                time.sleep(0.2)
                seen.append([response, entries(client, TOPIC, NAME, ["cleanup.policy"])])
        finally:
            change(client, BROKER, "", [(policy, DELETE, None)], check=False)
        wait_for(client, "", policy, None)
    return seen


@scenario()
def described_keys(broker: Broker) -> Any:
    """Describe all keys, chosen keys, and an internal topic key, which is described only if it is set."""
    topic = f"{NAME}-keys"
    three = ["retention.ms", "segment.bytes", "cleanup.policy"]
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)

        def names(kind: int, resource: str, requested: Sequence[str] | None = None) -> list[str]:
            return sorted(entry["Name"] for entry in entries(client, kind, resource, requested))

        seen["topic"] = names(TOPIC, topic)
        seen["three of a topic"] = names(TOPIC, topic, three)
        seen["group"] = names(GROUP, NAME)
        create_topic(
            client, f"{topic}-set", configs={"internal.segment.bytes": "100000", "retention.ms": "5"}
        )
        seen["topic with settings"] = names(TOPIC, f"{topic}-set")
    return seen


def wait_until_set(client: RawClient, name: str, *, is_set: bool) -> None:
    """Wait until a key of the client metrics subscription is set, or with `is_set=False` is not set."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = entries(client, CLIENT_METRICS, f"{NAME}-s", [name])
        if is_set == any(entry["Synonyms"] for entry in found):
            return
        assert time.monotonic() < deadline, (name, is_set, found)
        time.sleep(0.02)


@scenario()
def subscriptions(broker: Broker) -> Any:
    """Configure a client metrics subscription, also with several errors, and describe a missing one."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        seen["none"] = entries(client, CLIENT_METRICS, f"{NAME}-none")
        for name, texts in SUBSCRIBED.items():
            for text in texts:
                set_to = change(client, CLIENT_METRICS, f"{NAME}-s", [(name, SET, text)], check=False)
                if set_to[0] == 0:
                    wait_until_set(client, name, is_set=True)
                seen[f"{name}={text}"] = set_to, entries(client, CLIENT_METRICS, f"{NAME}-s")
                change(client, CLIENT_METRICS, f"{NAME}-s", [(name, DELETE, None)], check=False)
                wait_until_set(client, name, is_set=False)
        for values in product(("1000", "99", "x"), ("a", ","), ("", "x", ","), (None, "1")):
            named = zip(("interval.ms", "metrics", "match", "no.such.key"), values, strict=True)
            settings = [(name, SET, text) for name, text in named if text is not None]
            seen[f"together {values}"] = change(client, CLIENT_METRICS, f"{NAME}-s", settings)
    return seen
