"""Producer ids and transactions."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.cases.records import TOPICS
from interop.authorizer.rights import PREFIXED, cluster, group, topic, transactional_id
from interop.authorizer.world import World
from interop.wire import Fields

IDS = ("payments", "hidden-payments", "missing-payments")
STALE = {"ProducerId": 77_777, "ProducerEpoch": 3}


def initialized(name: str | None, **fields: object) -> Fields:
    return {"TransactionalId": name, "TransactionTimeoutMs": 10_000, **fields}


def added(name: str) -> Fields:
    """Return a request with an unknown producer id, so that it changes nothing."""
    topics = [{"Name": topic_name, "Partitions": [0]} for topic_name in TOPICS]
    return {
        "V3AndBelowTransactionalId": name,
        **{f"V3AndBelow{field}": value for field, value in STALE.items()},
        "V3AndBelowTopics": topics,
        "Transactions": [
            {"TransactionalId": one, **STALE, "VerifyOnly": True, "Topics": topics}
            for one in (name, "hidden-payments")
        ],
    }


def orders_only(name: str) -> Fields:
    request = added(name)
    request["V3AndBelowTopics"] = request["V3AndBelowTopics"][:1]
    return request


def transactional_commit(name: str, group_id: str) -> Fields:
    topics = [
        {"Name": topic_name, "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]}
        for topic_name in TOPICS
    ]
    return {"TransactionalId": name, "GroupId": group_id, **STALE, "Topics": topics}


def markers(world: World) -> Fields:
    marker = {
        "ProducerId": 77_777,
        "ProducerEpoch": 3,
        "TransactionResult": False,
        "Topics": [{"Name": "missing", "PartitionIndexes": [0]}],
    }
    return {"Markers": [marker]}


add(
    Case(
        "InitProducerId",
        {
            "idempotent": initialized(None),
            "transactional": initialized("payments", ProducerId=77_777, ProducerEpoch=3),
            "hidden": initialized("hidden-payments", ProducerId=77_777, ProducerEpoch=3),
            "empty": initialized(""),
        },
        (transactional_id("WRITE"), cluster("IDEMPOTENT_WRITE"), topic("WRITE")),
        versions=(0, 3, 4, 5),
        only={"transactional": (3, 4, 5), "hidden": (3, 4, 5)},
        more={
            "WRITE on missing": (topic("WRITE", "missing"),),
            "WRITE, denied on everything": (topic("WRITE"), topic("WRITE", "*").denied()),
            "WRITE, denied by prefix": (
                topic("WRITE"),
                topic("WRITE", "ord")._replace(pattern_type=PREFIXED).denied(),
            ),
            "WRITE by prefix, denied by longer prefix": (
                topic("WRITE", "or")._replace(pattern_type=PREFIXED),
                topic("WRITE", "ord")._replace(pattern_type=PREFIXED).denied(),
            ),
            "READ": (topic("READ"),),
            "ALL": (topic("ALL"),),
            "ALL, denied": (topic("ALL"), topic("WRITE").denied()),
        },
    ),
    Case(
        "AddPartitionsToTxn",
        {
            "all": added("payments"),
            "orders": orders_only("payments"),
            "twice": {
                **added("payments"),
                "V3AndBelowTopics": added("payments")["V3AndBelowTopics"][1:2] * 2,
            },
            "internal": {
                **added("payments"),
                "V3AndBelowTopics": [
                    {"Name": name, "Partitions": [0]} for name in ("__consumer_offsets", "", "orders")
                ],
            },
            "hidden": added("hidden-payments"),
            "empty": {
                "V3AndBelowTransactionalId": "payments",
                **{f"V3AndBelow{field}": value for field, value in STALE.items()},
                "Transactions": [],
            },
        },
        (transactional_id("WRITE"), topic("WRITE"), cluster("CLUSTER_ACTION")),
        versions=(0, 3, 4, 5),
        only={
            "empty": (0, 3),
            "twice": (0, 3),
            "internal": (0, 3),
        },  # Apache Kafka's broker never responds to newer ones
    ),
    Case(
        "AddOffsetsToTxn",
        {
            f"{name} {group_id}": {"TransactionalId": name, **STALE, "GroupId": group_id}
            for name in ("payments", "hidden-payments")
            for group_id in ("team", "hidden-team", "")
        },
        (transactional_id("WRITE"), group("READ")),
    ),
    Case(
        "EndTxn",
        {name or "empty": {"TransactionalId": name, **STALE, "Committed": False} for name in (*IDS, "")},
        (transactional_id("WRITE"),),
    ),
    Case(
        "WriteTxnMarkers",
        {"abort": markers, "none": {"Markers": []}},
        (cluster("ALTER"), cluster("CLUSTER_ACTION")),
    ),
    Case(
        "TxnOffsetCommit",
        {
            f"{name} {group_id}": transactional_commit(name, group_id)
            for name in ("payments", "hidden-payments")
            for group_id in ("team", "hidden-team", "")
        },
        (transactional_id("WRITE"), group("READ"), topic("READ")),
        versions=(0, 2, 3, 5),
    ),
    Case(
        "DescribeProducers",
        {"all": {"Topics": [{"Name": name, "PartitionIndexes": [0, 9]} for name in (*TOPICS, "a/b")]}},
        (topic("READ"),),
        more={"DESCRIBE": (topic("DESCRIBE"),)},
    ),
    Case(
        "DescribeTransactions",
        {"all": {"TransactionalIds": [*IDS, ""]}, "twice": {"TransactionalIds": ["payments", "payments"]}},
        (transactional_id("DESCRIBE"), topic("DESCRIBE"), topic("DESCRIBE", "hidden")),
    ),
    Case(
        "ListTransactions",
        {
            "all": {},
            "ongoing": {"StateFilters": ["Ongoing", "odd"]},
            "pattern": {"TransactionalIdPattern": ".*pay.*"},
            "invalid pattern": {"TransactionalIdPattern": "("},
        },
        (transactional_id("DESCRIBE"),),
        more={"WRITE": (transactional_id("WRITE"),)},
    ),
)
