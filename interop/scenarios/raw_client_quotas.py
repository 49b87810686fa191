"""Quotas of clients, request by request: how they are altered and described, and how they throttle."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import comparable, create_topic, fetch, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_topics import until

Entity = dict[str, str | None]
Ops = dict[str, float | None]


def entry(entity: Entity, ops: Ops) -> dict[str, Any]:
    return {
        "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in entity.items()],
        "Ops": [{"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in ops.items()],
    }


def alter(
    client: RawClient, *entries: tuple[Entity, Ops], version: int = 1, validate_only: bool = False
) -> Any:
    response = client.call(
        "AlterClientQuotas",
        version,
        Entries=[entry(*one) for one in entries],
        ValidateOnly=validate_only,
    )
    return by_entity(response)


def by_entity(response: Any) -> Any:
    """Sort what Apache Kafka returns in the order of a hash table."""
    for one in response["Entries"]:
        one["Entity"] = sorted(one["Entity"], key=lambda part: str(part["EntityType"]))
        if "Values" in one:
            one["Values"] = sorted(one["Values"], key=lambda value: str(value["Key"]))
    response["Entries"] = sorted(response["Entries"], key=lambda one: str(one["Entity"]))
    return comparable(response)


def describe(client: RawClient) -> Any:
    return by_entity(client.call("DescribeClientQuotas", 1, Components=[], Strict=False))


def settled(client: RawClient) -> Any:
    """Wait until the broker has applied all changes so far, and describe the quotas."""
    mark: Entity = {"user": "mark"}
    alter(client, (mark, {"producer_byte_rate": 1e9}))
    until(lambda: "mark" in str(describe(client)))
    seen = describe(client)
    alter(client, (mark, {"producer_byte_rate": None}))
    until(lambda: "mark" not in str(describe(client)))
    return seen


CHANGES: dict[str, list[tuple[Entity, Ops]]] = {
    "nothing": [],
    "a user": [({"user": "alice"}, {"producer_byte_rate": 1000, "consumer_byte_rate": 2000})],
    "the same again": [({"user": "alice"}, {"producer_byte_rate": 1000})],
    "all kinds": [
        ({"user": "alice", "client-id": "app"}, {"request_percentage": 12.5}),
        ({"user": "alice", "client-id": None}, {"controller_mutation_rate": 0.25}),
        ({"user": None}, {"request_percentage": 200}),
        ({"user": None, "client-id": "app"}, {"producer_byte_rate": 2.0**53}),
        ({"user": None, "client-id": None}, {"producer_byte_rate": 7}),
        ({"client-id": "app"}, {"producer_byte_rate": 1e15}),
        ({"client-id": None}, {"consumer_byte_rate": 1e15}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5}),
        ({"ip": None}, {"connection_creation_rate": 2147483647}),
    ],
    "an empty entity": [({}, {"producer_byte_rate": 1})],
    "an unknown type": [({"group": "g"}, {"producer_byte_rate": 1})],
    "an empty name": [({"user": ""}, {"producer_byte_rate": 1}), ({"ip": ""}, {})],
    "an address and a user": [({"ip": "10.0.0.1", "user": "a"}, {"connection_creation_rate": 1})],
    "no address": [({"ip": "no address"}, {"connection_creation_rate": 1})],
    "an IPv6 address": [({"ip": "::1"}, {"connection_creation_rate": 100_000})],
    "unknown keys": [
        ({"user": "bob"}, {"connection_creation_rate": 1}),
        ({"ip": "10.0.0.2"}, {"producer_byte_rate": 1}),
        ({"user": "carol"}, {"no_key": 1, "producer_byte_rate": 1}),
    ],
    "not positive": [
        ({"user": "bob"}, {"producer_byte_rate": 0}),
        ({"user": "carol"}, {"request_percentage": -1}),
        ({"ip": "10.0.0.2"}, {"connection_creation_rate": 0}),
    ],
    "fractions": [
        ({"user": "bob"}, {"producer_byte_rate": 1.5}),
        ({"user": "carol"}, {"producer_byte_rate": 1.0000001}),
        ({"ip": "10.0.0.2"}, {"connection_creation_rate": 1.5}),
    ],
    "too large": [
        ({"user": "bob"}, {"producer_byte_rate": 1e19}),
        ({"ip": "10.0.0.2"}, {"connection_creation_rate": 2147483648}),
        ({"user": "carol"}, {"request_percentage": 1e300}),
    ],
    "one of two is invalid": [
        ({"user": "bob"}, {"producer_byte_rate": 5, "consumer_byte_rate": -5}),
        ({"user": "dora"}, {"producer_byte_rate": 5}),
    ],
    "removal of what is not there": [
        ({"user": "zoe"}, {"producer_byte_rate": None}),
        ({"user": "alice"}, {"no_key": None}),
    ],
    "removals": [
        ({"user": "alice"}, {"producer_byte_rate": None}),
        ({"user": None}, {"request_percentage": None}),
        ({"ip": None}, {"connection_creation_rate": None}),
        ({"user": None, "client-id": None}, {"producer_byte_rate": None}),
    ],
}


@scenario()
def alterations(broker: Broker) -> Any:
    """Send each change, in both versions, and describe the quotas after it."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for name, entries in CHANGES.items():
            seen[f"{name}, validated"] = alter(client, *entries, validate_only=True)
            seen[name] = alter(client, *entries), alter(client, *entries, version=0), settled(client)
        left: list[tuple[Entity, Ops]] = [
            ({part["EntityType"]: part["EntityName"] for part in one["Entity"]},
             {value["Key"]: None for value in one["Values"]})
            for one in describe(client)["Entries"]
        ]  # fmt: skip
        seen["the end"] = alter(client, *left), settled(client)
    return seen


def bytes_of(response: Any) -> int:
    """Return the size of the records in a Fetch response."""
    return sum(len(part["Records"] or b"") for topic in response["Responses"] for part in topic["Partitions"])


@scenario()
def byte_rates(broker: Broker) -> Any:
    """Produce and fetch 100 KB with quotas of 20 KB/s. Throttle times are compared in seconds."""
    quotas: Ops = {"producer_byte_rate": 20_000, "consumer_byte_rate": 20_000}
    batch = Batch(records=[Record(value=b"x" * 100_000)]).encode()
    with RawClient(broker.bootstrap) as admin, RawClient(broker.bootstrap) as client:
        create_topic(admin, "raw-quotas", 1)
        seen: list[Any] = [alter(admin, ({"user": "ANONYMOUS"}, quotas))]
        settled(admin)
        for _ in range(3):
            begun = time.monotonic()
            response = produce(client, "raw-quotas", batch)
            seen.append(["produce", round(response["ThrottleTimeMs"] / 1000), time.monotonic() - begun < 1])
        alter(admin, ({"user": "ANONYMOUS"}, {"producer_byte_rate": None}))
        settled(admin)
        with RawClient(broker.bootstrap) as consumer:
            for _ in range(4):
                answer = fetch(consumer, "raw-quotas", 0)
                seen.append(["fetch", round(answer["ThrottleTimeMs"] / 1000), bytes_of(answer)])
        alter(admin, ({"user": "ANONYMOUS"}, {"consumer_byte_rate": None}))
        settled(admin)
    return seen


@scenario()
def mutation_rates(broker: Broker) -> Any:
    """Create and delete topics and partitions beyond a quota of 0.1 per second, with a burst of 1.1."""
    owner: Entity = {"user": "ANONYMOUS"}

    def topics(client: RawClient, version: int, *names: str, count: int = 2) -> Any:
        return client.call(
            "CreateTopics",
            version,
            Topics=[
                {
                    "Name": name,
                    "NumPartitions": count,
                    "ReplicationFactor": 1,
                    "Assignments": [],
                    "Configs": [],
                }
                for name in names
            ],
            timeoutMs=10_000,
        )

    def outcome(response: Any, items: str, name: str) -> Any:
        errors = [(one[name], one["ErrorCode"], one.get("ErrorMessage")) for one in response[items]]
        return sorted(errors), round(response["ThrottleTimeMs"] / 5000)

    with RawClient(broker.bootstrap) as admin:
        create_topic(admin, "raw-mutations", 1)
        seen: list[Any] = [alter(admin, (owner, {"controller_mutation_rate": 0.1}))]
        settled(admin)
    calls: list[Callable[[RawClient], Any]] = [
        lambda client: outcome(topics(client, 7, "m1", "m2", "m3"), "Topics", "Name"),
        lambda client: outcome(topics(client, 5, "m4"), "Topics", "Name"),
        lambda client: outcome(
            client.call(
                "CreatePartitions",
                3,
                Topics=[{"Name": "raw-mutations", "Count": 3, "Assignments": None}],
                TimeoutMs=10_000,
                ValidateOnly=False,
            ),
            "Results",
            "Name",
        ),
        lambda client: outcome(
            client.call(
                "DeleteTopics", 6, Topics=[{"Name": "raw-mutations", "TopicId": bytes(16)}], TimeoutMs=10_000
            ),
            "Responses",
            "Name",
        ),
    ]
    for call in calls:
        with RawClient(broker.bootstrap) as client:  # a throttled connection is muted
            seen.append(call(client))
    with RawClient(broker.bootstrap) as admin:
        seen.append(alter(admin, (owner, {"controller_mutation_rate": None})))
        settled(admin)
    return seen
