"""Produce, Fetch, ListOffsets, DeleteRecords and OffsetForLeaderEpoch."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.rights import cluster, topic, transactional_id
from interop.authorizer.world import World
from interop.batches import Batch
from interop.wire import Fields

TOPICS = ("orders", "hidden", "missing")
NO_TOPIC = b"\x07" * 16
TRANSACTIONAL = 0x10
LATEST, EARLIEST = -1, -2
UNNAMED: Fields = {"Name": "", "TopicId": bytes(16)}
"""A topic without a name and without an id."""


def names_or_ids(world: World, name: str) -> Fields:
    """Return all forms in which requests name a topic; each version takes its own."""
    return {"Name": name, "TopicId": world.ids.get(name, NO_TOPIC)}


def produce(world: World, *, is_transactional: bool = False, transaction: str | None = None) -> Fields:
    producer = world.values["payments"]
    batch = (
        Batch(
            attributes=TRANSACTIONAL,
            producer_id=producer["ProducerId"],
            producer_epoch=producer["ProducerEpoch"],
            base_sequence=0,
        )
        if is_transactional
        else Batch()
    )
    data = [{"Index": 0, "Records": batch.encode()}]
    topics = [{**names_or_ids(world, name), "PartitionData": data} for name in TOPICS]
    return {"TransactionalId": transaction, "Acks": -1, "TimeoutMs": 5_000, "TopicData": topics}


def fetch(world: World, **fields: object) -> Fields:
    partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    topics = [
        {"Topic": name, "TopicId": world.ids.get(name, NO_TOPIC), "Partitions": [partition]}
        for name in TOPICS
    ]
    return {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, "Topics": topics, **fields}


def fetch_of(*topics: Fields) -> Fields:
    partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    return {
        "MinBytes": 0,
        "MaxBytes": 1 << 20,
        "Topics": [
            {"Topic": one["Name"], "TopicId": one["TopicId"], "Partitions": [partition]} for one in topics
        ],
    }


def listed(*names: str, **fields: object) -> Fields:
    partitions = [{"PartitionIndex": 0, "Timestamp": LATEST}]
    return {"Topics": [{"Name": name, "Partitions": partitions} for name in names], **fields}


add(
    Case(
        "Produce",
        {
            "plain": produce,
            "transactional": lambda world: produce(world, is_transactional=True, transaction="payments"),
            "no transactional id": lambda world: produce(world, is_transactional=True),
            "id of hidden": lambda world: produce(
                world, is_transactional=True, transaction="hidden-payments"
            ),
            "id, no transaction": lambda world: produce(world, transaction="payments"),
            "empty id": lambda world: produce(world, is_transactional=True, transaction=""),
            "unnamed": lambda world: {
                **produce(world),
                "TopicData": [{**produce(world)["TopicData"][0], **UNNAMED}],
            },
        },
        (topic("WRITE"), transactional_id("WRITE")),
        versions=(3, 12, 13),
    ),
    Case(
        "Fetch",
        {
            "consumer": fetch,
            "replica": lambda world: fetch(
                world, ReplicaId=7, ReplicaState={"ReplicaId": 7, "ReplicaEpoch": 1}
            ),
            "own replica": lambda world: fetch(
                world, ReplicaId=1, ReplicaState={"ReplicaId": 1, "ReplicaEpoch": -1}
            ),
            "future replica": lambda world: fetch(
                world, ReplicaId=-3, ReplicaState={"ReplicaId": -3, "ReplicaEpoch": -1}
            ),
            "twice": lambda world: {**fetch(world), "Topics": fetch(world)["Topics"] * 2},
            "unnamed": {**fetch_of(UNNAMED), "MaxWaitMs": 0},
            "metadata": lambda world: {
                **fetch(world),
                "Topics": [
                    {
                        "Topic": "__cluster_metadata",
                        "TopicId": bytes(15) + b"\1",
                        "Partitions": [{"Partition": 0}],
                    }
                ],
            },
        },
        (topic("READ"), cluster("CLUSTER_ACTION")),
        versions=(4, 12, 13, 18),
    ),
    Case(
        "ListOffsets",
        {
            "latest": {
                "ReplicaId": -1,
                "Topics": [
                    {"Name": name, "Partitions": [{"PartitionIndex": 0, "Timestamp": -2}]} for name in TOPICS
                ],
            },
            "replica": listed(*TOPICS, ReplicaId=7),
            "own replica": listed(*TOPICS, ReplicaId=1),
            "future replica": listed(*TOPICS, ReplicaId=-3),
            "internal": listed("__consumer_offsets", "__cluster_metadata", "", ReplicaId=-1),
        },
        (topic("DESCRIBE"),),
        more={"READ": (topic("READ"),), "denied READ": (topic("DESCRIBE"), topic("READ").denied())},
    ),
    Case(
        "DeleteRecords",
        {
            "start": {
                "Topics": [
                    {"Name": name, "Partitions": [{"PartitionIndex": 0, "Offset": 0}]} for name in TOPICS
                ],
                "TimeoutMs": 1_000,
            },
            "unnamed": {
                "Topics": [
                    {"Name": name, "Partitions": [{"PartitionIndex": 0, "Offset": 0}]}
                    for name in ("hidden", "", "a/b")
                ],
                "TimeoutMs": 1_000,
            },
        },
        (topic("DELETE"),),
    ),
    Case(
        "OffsetForLeaderEpoch",
        {
            "epoch": {
                "Topics": [{"Topic": name, "Partitions": [{"Partition": 0}]} for name in TOPICS],
            },
            "replica": {
                "ReplicaId": 7,
                "Topics": [{"Topic": name, "Partitions": [{"Partition": 0}]} for name in (*TOPICS, "")],
            },
        },
        (topic("DESCRIBE"), cluster("CLUSTER_ACTION")),
    ),
)
