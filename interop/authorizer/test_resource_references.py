"""The audit log for requests that name a resource several times. The matrix compares it for all others."""

from __future__ import annotations

from typing import Any

from interop.authorizer.comparison import Worlds, compare_worlds
from interop.authorizer.rights import cluster, group, topic, transactional_id
from interop.authorizer.world import World
from interop.batches import Batch
from interop.scenario import Difference
from interop.wire import Fields

RIGHTS = (
    *(topic(operation) for operation in ("READ", "WRITE", "DELETE", "ALTER", "DESCRIBE_CONFIGS")),
    *(group(operation) for operation in ("READ", "DELETE")),
    transactional_id("WRITE"),
    cluster("DESCRIBE_CONFIGS"),
)
NAMES = ("orders", "hidden", "orders")
"""The topics of a request. One occurs twice, and each has two partitions."""


def test_the_audit_log_counts_the_references_to_a_resource(
    worlds: Worlds, differences: list[Difference]
) -> None:
    compare_worlds("resource_ref_count", worlds, _observe, differences)


def _observe(world: World) -> dict[str, Any]:
    """Return the lines of each request. Responses are not compared: some requests are invalid."""
    world.set_acls(RIGHTS)
    seen = {}
    for (api, version), fields in _requests(world).items():
        world.audit_trail.skip()
        world.client("broker", "alice").call(api, version, **fields)
        seen[f"{api} v{version}"] = world.audit_trail.read("User:alice", api)
    return seen


def _topics(
    world: World,
    of_partition: Fields | None = None,
    names: tuple[str, ...] = NAMES,
    *,
    name_field: str = "Name",
    field: str = "Partitions",
    index: str = "PartitionIndex",
    by_id: bool = False,
) -> list[Fields]:
    """Return an item for each topic, with two partitions."""
    numbers = (0, 1)
    partitions = list(numbers) if of_partition is None else [{**of_partition, index: one} for one in numbers]
    return [
        {name_field: name, **({"TopicId": world.ids[name]} if by_id else {}), field: partitions}
        for name in names
    ]


def _requests(world: World) -> dict[tuple[str, int], Fields]:
    once = ("orders", "hidden")
    batch = {"Records": Batch().encode()}
    producer = world.values["payments"]
    legacy = {f"V3AndBelow{key}": value for key, value in producer.items()}
    produced: dict[str, Any] = {"field": "PartitionData", "index": "Index", "by_id": True}
    fetched: dict[str, Any] = {"name_field": "Topic", "index": "Partition"}
    committed = {"CommittedOffset": 1}
    resources = [
        *({"ResourceType": 2, "ResourceName": name} for name in (*NAMES, "hidden")),
        *({"ResourceType": 4, "ResourceName": name} for name in ("1", "")),
    ]
    by_index: dict[str, Any] = {"field": "PartitionIndexes"}
    committed_by_id = _topics(world, committed, by_id=True)
    committed_by_name = _topics(world, committed)
    groups = ["team", "team", "hidden-team", "hidden-team"]
    no_member = {"GroupId": "team", "GenerationIdOrMemberEpoch": -1}
    timeout = {"TimeoutMs": 5_000}
    created = [{"Name": name, "NumPartitions": 1, "ReplicationFactor": 1} for name in ("a", "b", "b")]
    return {
        ("Produce", 12): {"Acks": -1, **timeout, "TopicData": _topics(world, batch, once, **produced)},
        ("Produce", 13): {"Acks": -1, **timeout, "TopicData": _topics(world, batch, once, **produced)},
        **{
            ("Fetch", version): {
                "MaxBytes": 1,
                "Topics": _topics(world, {"PartitionMaxBytes": 1}, **fetched, by_id=True),
            }
            for version in (12, 13)
        },
        ("ListOffsets", 7): {"ReplicaId": -1, "Topics": _topics(world, {"Timestamp": -2})},
        ("Metadata", 12): {"Topics": [{"Name": name} for name in NAMES]},
        ("OffsetCommit", 8): {**no_member, "Topics": committed_by_name},
        ("OffsetCommit", 10): {**no_member, "Topics": committed_by_id},
        ("OffsetFetch", 1): {"GroupId": "team", "Topics": _topics(world, **by_index)},
        ("OffsetFetch", 8): {
            "Groups": [{"GroupId": name, "Topics": _topics(world, **by_index)} for name in ("team", "team")]
        },
        ("OffsetFetch", 9): {"Groups": [{"GroupId": "team", "Topics": None}]},
        ("FindCoordinator", 4): {"KeyType": 0, "CoordinatorKeys": groups},
        ("DescribeGroups", 5): {"Groups": groups},
        ("DeleteGroups", 2): {"GroupsNames": groups},
        ("DeleteRecords", 2): {**timeout, "Topics": _topics(world, {"Offset": 0})},
        ("OffsetForLeaderEpoch", 4): {"Topics": _topics(world, {"LeaderEpoch": 0}, once, **fetched)},
        ("AddPartitionsToTxn", 3): {
            "V3AndBelowTransactionalId": "payments",
            **legacy,
            "V3AndBelowTopics": _topics(world, names=once),
        },
        ("TxnOffsetCommit", 3): {
            "TransactionalId": "payments",
            "GroupId": "team",
            **producer,
            "Topics": committed_by_name,
        },
        ("OffsetDelete", 0): {"GroupId": "team", "Topics": _topics(world, {}, once)},
        ("DescribeConfigs", 4): {"Resources": resources},
        ("DescribeProducers", 0): {"Topics": _topics(world, **by_index)},
        ("DescribeTransactions", 0): {
            "TransactionalIds": [name for name in ("payments", "hidden-payments") for _ in range(2)]
        },
        ("ConsumerGroupDescribe", 1): {"GroupIds": ["members", "members"]},
        ("ConsumerGroupHeartbeat", 1): {
            "GroupId": "team",
            "MemberId": "m",
            "SubscribedTopicNames": ["orders", "orders", "hidden", "hidden"],
        },
        ("DescribeTopicPartitions", 0): {"Topics": [{"Name": name} for name in NAMES]},
        ("CreateTopics", 7): {"timeoutMs": 5_000, "validateOnly": True, "Topics": created},
        ("CreatePartitions", 3): {
            **timeout,
            "ValidateOnly": True,
            "Topics": [{"Name": name, "Count": 2} for name in (*NAMES, "hidden")],
        },
        ("DeleteTopics", 6): {
            **timeout,
            "Topics": [{"Name": name} for name in ("missing", "missing", "other")],
        },
    }
