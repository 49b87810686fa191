"""Groups, their members and their offsets."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.cases.records import NO_TOPIC, TOPICS, UNNAMED
from interop.authorizer.rights import cluster, group, topic
from interop.authorizer.world import World
from interop.wire import Fields

GROUPS = ("team", "hidden-team", "missing-team", "")
DESCRIBED = ("members", "hidden-members", "team", "missing-team")
GROUP, TRANSACTION, SHARE = 0, 1, 2


def committed(world: World, group_id: str) -> Fields:
    partition = {"PartitionIndex": 0, "CommittedOffset": 1}
    topics = [
        {"Name": name, "TopicId": world.ids.get(name, NO_TOPIC), "Partitions": [partition]} for name in TOPICS
    ]
    return {"GroupId": group_id, "Topics": topics}


def fetched(world: World, *, all_topics: bool) -> Fields:
    topics = [{"Name": name, "PartitionIndexes": [0]} for name in TOPICS]
    ids = [world.ids.get(name, NO_TOPIC) for name in TOPICS]
    with_ids = [{**topic, "TopicId": one} for topic, one in zip(topics, ids, strict=True)]
    groups = [
        {"GroupId": name, "Topics": None if all_topics else with_ids}
        for name in ("team", "hidden-team", "missing-team")
    ]
    return {"GroupId": "team", "Topics": None if all_topics else topics, "Groups": groups}


def join(group_id: str, **fields: object) -> Fields:
    return {
        "GroupId": group_id,
        "SessionTimeoutMs": 10_000,
        "RebalanceTimeoutMs": 10_000,
        "MemberId": "unknown",
        "ProtocolType": "consumer",
        "Protocols": [{"Name": "range", "Metadata": b""}],
        **fields,
    }


def subscribe(world: World, **fields: object) -> Fields:
    return {
        "GroupId": "team",
        "MemberId": "unknown",
        "MemberEpoch": 5,
        "RebalanceTimeoutMs": 1_000,
        "TopicPartitions": [],
        **fields,
    }


def heartbeat(group_id: str) -> Fields:
    return {"GroupId": group_id, "GenerationId": 1, "MemberId": "unknown"}


add(
    Case(
        "OffsetCommit",
        {
            "team": lambda world: committed(world, "team"),
            "hidden": lambda world: committed(world, "hidden-team"),
            "invalid": lambda world: committed(world, ""),
            "unnamed": lambda world: {
                "GroupId": "team",
                "Topics": [{**committed(world, "team")["Topics"][0], **UNNAMED}],
            },
        },
        (group("READ"), topic("READ")),
        versions=(2, 9, 10),
    ),
    Case(
        "OffsetFetch",
        {
            "topics": lambda world: fetched(world, all_topics=False),
            "all": lambda world: fetched(world, all_topics=True),
            "twice": lambda world: {"Groups": fetched(world, all_topics=True)["Groups"][:2] * 2},
            "unnamed": {"Groups": [{"GroupId": "team", "Topics": [{**UNNAMED, "PartitionIndexes": [0]}]}]},
        },
        (group("DESCRIBE"), topic("DESCRIBE")),
        versions=(1, 2, 7, 8, 10),
        only={"all": (2, 7, 8, 10), "twice": (8, 10), "unnamed": (8, 10)},
    ),
    Case(
        "FindCoordinator",
        {
            "group": {"Key": "team", "CoordinatorKeys": list(GROUPS)},
            "hidden group": {"Key": "hidden-team", "CoordinatorKeys": ["hidden-team"]},
            "transaction": {
                "Key": "payments",
                "KeyType": TRANSACTION,
                "CoordinatorKeys": ["payments", "hidden-payments", ""],
            },
            "share": {
                "Key": "team:1:1",
                "KeyType": SHARE,
                "CoordinatorKeys": ["team:AAAAAAAAAAAAAAAAAAAAAQ:1"],
            },
            "unknown type": {"Key": "team", "KeyType": 9, "CoordinatorKeys": ["team"]},
        },
        (group("DESCRIBE"),),
        versions=(0, 1, 3, 4, 6),
        only={"transaction": (1, 3, 4, 6), "unknown type": (1, 3, 4, 6), "share": (1, 3, 4, 5)},
    ),
    Case(
        "JoinGroup",
        {
            "team": join("team"),
            "hidden": join("hidden-team"),
            "invalid": join(""),
            "instance": join("team", GroupInstanceId="a b"),
        },
        (group("READ"),),
        versions=(0, 2, 5, 7, 9),
    ),
    Case(
        "Heartbeat",
        {name or "invalid": heartbeat(name) for name in GROUPS},
        (group("READ"),),
    ),
    Case(
        "LeaveGroup",
        {
            name or "invalid": {"GroupId": name, "MemberId": "unknown", "Members": [{"MemberId": "unknown"}]}
            for name in GROUPS
        },
        (group("READ"),),
        versions=(0, 3, 5),
    ),
    Case(
        "SyncGroup",
        {
            "team": {**heartbeat("team"), "ProtocolType": "consumer", "ProtocolName": "range"},
            "no protocol": heartbeat("team"),
            "hidden": {**heartbeat("hidden-team"), "ProtocolType": "consumer", "ProtocolName": "range"},
        },
        (group("READ"),),
        versions=(0, 4, 5),
    ),
    Case(
        "DescribeGroups",
        {
            "plain": {"Groups": list(GROUPS)},
            "operations": {"Groups": [*GROUPS, "team"], "IncludeAuthorizedOperations": True},
        },
        (group("DESCRIBE"),),
        versions=(0, 3, 5, 6),
        only={"operations": (3, 5, 6)},
        more={
            "READ": (group("READ"),),
            "some operations": (group("DELETE"), group("ALTER_CONFIGS")),
            "all but some": (group("ALL"), group("READ").denied()),
        },
    ),
    Case(
        "ListGroups",
        {"all": {}, "state": {"StatesFilter": ["Empty"], "TypesFilter": ["classic"]}},
        (cluster("DESCRIBE"), group("DESCRIBE")),
        versions=(0, 4, 5),
        only={"state": (5,)},
        more={"READ": (group("READ"), group("READ", "members"))},
    ),
    Case(
        "DeleteGroups",
        {"missing": {"GroupsNames": ["missing-team", "hidden-missing", "members", "hidden-members", ""]}},
        (group("DELETE", "missing-team"), group("DELETE", "members")),
    ),
    Case(
        "OffsetDelete",
        {
            name or "invalid": {
                "GroupId": name,
                "Topics": [
                    {"Name": topic_name, "Partitions": [{"PartitionIndex": 5}]} for topic_name in TOPICS
                ],
            }
            for name in GROUPS
        },
        (group("DELETE"), topic("READ")),
    ),
    Case(
        "ConsumerGroupHeartbeat",
        {
            "subscribed": lambda world: subscribe(world, SubscribedTopicNames=["orders", "missing"]),
            "orders": lambda world: subscribe(world, SubscribedTopicNames=["orders"]),
            "hidden topic": lambda world: subscribe(world, SubscribedTopicNames=["orders", "hidden"]),
            "regex": lambda world: subscribe(world, SubscribedTopicRegex="ord.*"),
            "regex and name": lambda world: subscribe(
                world, SubscribedTopicNames=["hidden"], SubscribedTopicRegex="ord.*"
            ),
            "invalid regex": lambda world: subscribe(world, SubscribedTopicRegex="("),
            "twice": lambda world: subscribe(world, SubscribedTopicNames=["orders", "orders", ""]),
            "neither": lambda world: subscribe(world),
            "invalid": lambda world: subscribe(world, GroupId=""),
            "hidden": lambda world: subscribe(world, GroupId="hidden-members"),
        },
        (group("READ"), topic("DESCRIBE"), topic("DESCRIBE", "missing")),
    ),
    Case(
        "ConsumerGroupDescribe",
        {
            "plain": {"GroupIds": list(DESCRIBED)},
            "operations": {"GroupIds": list(DESCRIBED), "IncludeAuthorizedOperations": True},
            "twice": {"GroupIds": ["members", "members"]},
        },
        (
            group("DESCRIBE", "members"),
            group("DESCRIBE", "hidden-members"),
            topic("DESCRIBE"),
            topic("DESCRIBE", "hidden"),
        ),
        more={
            "some operations": (group("DELETE", "members"), group("ALTER_CONFIGS", "members"), topic("READ"))
        },
    ),
)
