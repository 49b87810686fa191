"""Metadata, DescribeTopicPartitions, and changes of topics."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.cases.records import NO_TOPIC, TOPICS
from interop.authorizer.rights import cluster, topic
from interop.authorizer.world import World, until
from interop.wire import Fields

NO_NAME = bytes(16)


def metadata(names: tuple[str, ...] | None, **fields: object) -> Fields:
    topics = None if names is None else [{"Name": name, "TopicId": NO_NAME} for name in names]
    flags = {"IncludeClusterAuthorizedOperations": True, "IncludeTopicAuthorizedOperations": True}
    return {"Topics": topics, "AllowAutoTopicCreation": False, **flags, **fields}


def by_id(world: World) -> Fields:
    topics = [{"Name": None, "TopicId": world.ids.get(name, NO_TOPIC)} for name in TOPICS]
    return {**metadata(()), "Topics": topics}


def delete_topic(world: World, *names: str) -> None:
    """Delete topics that an earlier request has created."""
    world.call("DeleteTopics", 5, TopicNames=list(names), TimeoutMs=10_000)
    wanted = [{"Name": name} for name in names]
    until(
        lambda: all(
            topic["ErrorCode"] == 3
            for topic in world.call("Metadata", 9, Topics=wanted, AllowAutoTopicCreation=False)["Topics"]
        ),
        f"{names} are not deleted",
    )


def make_doomed(world: World) -> None:
    """Create the topic that the requests delete, unless it exists."""
    world.create_topic("doomed")


def make_new_missing(world: World) -> None:
    """Delete the topic that a request creates automatically, possibly only after its response."""
    world.create_topic("new")
    delete_topic(world, "new")


def created(name: str, **fields: object) -> Fields:
    return {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1, **fields}


DELETED = ("doomed", "hidden", "missing")
DESCRIBED = {"Topics": [{"Name": name} for name in TOPICS]}

add(
    Case(
        "Metadata",
        {
            "names": metadata(TOPICS),
            "none": metadata(()),
            "all": metadata(None),
            "ids": by_id,
            "twice and unnamed": metadata(("hidden", "hidden", "orders", "orders", "")),
            "id and name": lambda world: {
                **metadata(()),
                "Topics": [{"Name": "orders", "TopicId": world.ids["hidden"]}],
            },
        },
        (topic("DESCRIBE"), cluster("DESCRIBE")),
        versions=(4, 8, 10, 11, 13),
        only={"ids": (12, 13), "id and name": (10, 11, 12, 13), "all": (1, 7, 8, 10, 11, 13)},
        more={
            "READ": (topic("READ"),),
            "some operations": (
                topic("WRITE"),
                topic("DESCRIBE_CONFIGS"),
                cluster("ALTER"),
                cluster("IDEMPOTENT_WRITE"),
                cluster("CREATE").denied(),
            ),
            "all but some": (
                topic("ALL"),
                cluster("ALL"),
                topic("READ").denied(),
                cluster("CREATE").denied(),
            ),
        },
    ),
    Case(
        "Metadata",
        {
            "new": metadata(("new",), AllowAutoTopicCreation=True),
            "invalid": metadata(("a/b",), AllowAutoTopicCreation=True),
        },
        (topic("DESCRIBE", "new"), topic("CREATE", "new"), cluster("CREATE")),
        versions=(4, 13),
        before=make_new_missing,
    ),
    Case(
        "DescribeTopicPartitions",
        {
            "names": DESCRIBED,
            "all": {"Topics": []},
            "cursor": {"Topics": [], "Cursor": {"TopicName": "hidden", "PartitionIndex": 0}},
            "cursor in names": {**DESCRIBED, "Cursor": {"TopicName": "hidden", "PartitionIndex": 0}},
            "cursor, not in names": {**DESCRIBED, "Cursor": {"TopicName": "hiddem", "PartitionIndex": 0}},
            "page": {**DESCRIBED, "ResponsePartitionLimit": 1},
            "page of all": {"Topics": [], "ResponsePartitionLimit": 1},
            "twice": {"Topics": [{"Name": "hidden"}, {"Name": "hidden"}]},
        },
        (topic("DESCRIBE"),),
        ordered=True,
    ),
    Case(
        "CreateTopics",
        {
            "validate": {
                "Topics": [created(name) for name in ("new", "orders", "__cluster_metadata", "a/b")],
                "timeoutMs": 5_000,
                "validateOnly": True,
            },
            "create": {
                "Topics": [created("new", Configs=[{"Name": "retention.ms", "Value": "7"}])],
                "timeoutMs": 5_000,
            },
            "twice": {"Topics": [created("new"), created("new")], "timeoutMs": 5_000},
        },
        (topic("CREATE", "new"), cluster("CREATE"), topic("DESCRIBE_CONFIGS", "new")),
        versions=(2, 5, 7),
        on=("broker", "controller"),
        before=lambda world: delete_topic(world, "new"),
    ),
    Case(
        "DeleteTopics",
        {
            "names": lambda world: {
                "TopicNames": list(DELETED),
                "Topics": [{"Name": name} for name in DELETED],
                "TimeoutMs": 5_000,
            },
            "ids": lambda world: {
                "Topics": [{"Name": None, "TopicId": world.ids.get(name, NO_TOPIC)} for name in DELETED],
                "TimeoutMs": 5_000,
            },
            "ids twice": lambda world: {
                "Topics": [{"Name": None, "TopicId": world.ids["hidden"]}] * 2,
                "TimeoutMs": 5_000,
            },
            "id and name": lambda world: {
                "Topics": [
                    {"Name": "doomed", "TopicId": world.ids["hidden"]},
                    {"Name": None, "TopicId": NO_NAME},
                    {"Name": "", "TopicId": NO_NAME},
                ],
                "TimeoutMs": 5_000,
            },
            "twice": {
                "TopicNames": ["doomed", "doomed"],
                "Topics": [{"Name": "doomed"}] * 2,
                "TimeoutMs": 5_000,
            },
        },
        (topic("DELETE", "doomed"), topic("DESCRIBE", "doomed")),
        versions=(1, 5, 6),
        only={"ids": (6,), "ids twice": (6,), "id and name": (6,)},
        on=("broker", "controller"),
        before=make_doomed,
        more={"DESCRIBE": tuple(topic("DESCRIBE", name) for name in DELETED)},
    ),
    Case(
        "CreatePartitions",
        {
            "more": {
                "Topics": [{"Name": name, "Count": 3, "Assignments": None} for name in TOPICS],
                "TimeoutMs": 5_000,
                "ValidateOnly": True,
            },
            "twice": {
                "Topics": [{"Name": "orders", "Count": 3, "Assignments": None}] * 2,
                "TimeoutMs": 5_000,
                "ValidateOnly": True,
            },
        },
        (topic("ALTER"),),
        on=("broker", "controller"),
    ),
)
