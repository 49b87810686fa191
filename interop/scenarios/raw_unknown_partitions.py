"""Requests with unknown, repeated or missing partitions."""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transactions import TransactionalId, wait_for_transaction_coordinator
from interop.wire import Fields, versions_of

Named = list[tuple[str, list[int]]]
MAX = 2**31 - 1
CLIENTS_AND_BROKERS = 1, 3, 4, 5
"""The tested versions of AddPartitionsToTxn. Clients use versions below 4, and brokers use the later ones."""


def sorted_lists(value: Any) -> Any:
    """Sort the lists in a response, which Apache Kafka returns in the order of a hash table."""
    if isinstance(value, dict):
        return {name: sorted_lists(one) for name, one in value.items()}
    if isinstance(value, list):
        return sorted((sorted_lists(one) for one in value), key=repr)
    return value


@scenario()
def describe_producers(broker: Broker) -> Any:
    """Send DescribeProducers for known, unknown, repeated and invalid topics and partitions."""
    topic = "raw-wrong-partitions-producers"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 2)
        for name in (
            topic,
            "nosuch",
            "",
            "a b",
            ".",
            "..",
            "x" * 249,
            "x" * 250,
            "__cluster_metadata",
            "é",
            "\0",
        ):
            for indexes in ([0], [1, 2], [-1], [0, 0], [], [MAX]):
                requested = [{"Name": name, "PartitionIndexes": indexes}]
                seen[f"{name} {indexes}"] = client.call("DescribeProducers", 0, Topics=requested)
        twice = [{"Name": name, "PartitionIndexes": [0]} for name in (topic, topic, "nosuch")]
        seen["twice"] = client.call("DescribeProducers", 0, Topics=twice)
    return seen


@scenario()
def list_offsets(broker: Broker) -> Any:
    """Send ListOffsets at both isolation levels."""
    topic = "raw-wrong-partitions-isolation"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 1)
        for version in versions_of("ListOffsets"):
            for level in (0, 1) if version >= 2 else ():
                for replica in (-1, -2, 1):
                    for requested in ([(topic, [0])], [(topic, [0, 0, 5]), ("nosuch", [0])], []):
                        topics = [
                            {
                                "Name": name,
                                "Partitions": [{"PartitionIndex": one, "Timestamp": -2} for one in indexes],
                            }
                            for name, indexes in requested
                        ]
                        fields = {"ReplicaId": replica, "IsolationLevel": level, "Topics": topics}
                        response = client.call("ListOffsets", version, **fields)
                        seen[f"v{version} {level} {replica} {requested}"] = sorted_lists(response)
    return seen


@scenario(seconds=120)
def add_partitions(broker: Broker) -> Any:
    """Send AddPartitionsToTxn for one and several transactions, with valid and unknown producers."""
    topic, name = "raw-wrong-partitions-transactions", "raw-wrong-partitions"
    requested: list[Named] = [
        [(topic, [0])],
        [(topic, [0, 9])],
        [(topic, []), ("nosuch", [0])],
        [(topic, [])],
        [],
        [("nosuch", [])],
        [(topic, [0]), ("nosuch", [0, 1])],
        [(topic, [0, 0, 1])],
        [(topic, [0]), (topic, [1])],
        [(topic, [0]), (topic, []), ("nosuch", [0])],
        [(topic, [0, 0]), ("nosuch", [0, 0])],
        [("", [0])],
        [("a b", [0]), (topic, [-1])],
        [("__transaction_state", [99])],
        [("__consumer_offsets", [99]), ("nosuch", [0]), (topic, [0])],
    ]
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 2)
        wait_for_transaction_coordinator(client, name)
        producer = TransactionalId(client, name)
        assert producer.init()[0] == 0
        for version in CLIENTS_AND_BROKERS:
            for identity, id_more, epoch_more in (
                ("", 0, 0),
                ("nosuch", 0, 0),
                (name, 0, 0),
                (name, 1, 0),
                (name, 0, 1),
            ):
                for named in requested:
                    fields = {
                        "TransactionalId": identity,
                        "ProducerId": producer.producer_id + id_more,
                        "ProducerEpoch": producer.epoch + epoch_more,
                        "Topics": [{"Name": one, "Partitions": indexes} for one, indexes in named],
                    }
                    what = f"v{version} {identity} {id_more} {epoch_more} {named}"
                    if version < 4:
                        old = {f"V3AndBelow{key}": one for key, one in fields.items()}
                        seen[what] = sorted_lists(client.call("AddPartitionsToTxn", version, **old))
                        continue
                    for verify in (True, False):
                        several = [
                            {**fields, "VerifyOnly": verify},
                            {**fields, "TransactionalId": "another", "VerifyOnly": not verify},
                        ]
                        response = client.call("AddPartitionsToTxn", version, Transactions=several)
                        seen[f"{what} {verify}"] = sorted_lists(response)
    return seen


def marker(version: int, producer_id: int, named: Named, epoch: int = 0) -> Fields:
    fields: Fields = {
        "ProducerId": producer_id,
        "ProducerEpoch": epoch,
        "TransactionResult": True,
        "CoordinatorEpoch": 0,
        "Topics": [{"Name": name, "PartitionIndexes": indexes} for name, indexes in named],
    }
    return {**fields, "TransactionVersion": 0} if version >= 2 else fields


@scenario(seconds=120)
def write_markers(broker: Broker) -> Any:
    """Send WriteTxnMarkers with several markers and record the end offsets."""
    topic = "raw-wrong-partitions-markers"
    requested: dict[str, list[tuple[Any, ...]]] = {
        "none": [],
        "no topics": [(7, [])],
        "no partitions": [(7, [(topic, [])])],
        "one": [(8, [(topic, [0])])],
        "two": [(9, [(topic, [0])]), (9, [(topic, [1])])],
        "several": [(11, [(topic, [0, 1]), ("nosuch", [0])]), (12, [(topic, [1])])],
        "unknown": [(13, [("nosuch", [0, 0])])],
    }
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, 2)
        for version in versions_of("WriteTxnMarkers"):
            for what, given in requested.items():
                fields = {"Markers": [marker(version, *one) for one in given]}
                response = client.call("WriteTxnMarkers", version, **fields)
                seen[f"v{version} {what}"] = [sorted_lists(response), log_ends(client, topic)]
    return seen


def log_ends(client: RawClient, topic: str) -> list[int]:
    every = [{"PartitionIndex": index, "Timestamp": -1} for index in range(2)]
    response = client.call("ListOffsets", 1, ReplicaId=-1, Topics=[{"Name": topic, "Partitions": every}])
    found = {
        partition["PartitionIndex"]: partition["Offset"] for partition in response["Topics"][0]["Partitions"]
    }
    return [found[index] for index in range(2)]


@scenario()
def group_filters(broker: Broker) -> Any:
    """Send ListGroups with blanks around states and types."""
    group = "raw-wrong-partitions-states"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, group)
        wait_for_coordinator(client, group)
        client.call(
            "ConsumerGroupHeartbeat",
            1,
            GroupId=group,
            MemberId="m",
            MemberEpoch=0,
            RebalanceTimeoutMs=60_000,
            SubscribedTopicNames=[group],
            TopicPartitions=[],
        )
        for blank in ("", " ", "\t", "\n", "\0", "\x1f", "\x7f", "\x85", "\xa0", "\u2003"):
            around = f"{blank}stable{blank}"
            for kind in ("consumer", f"Consumer{blank}"):
                response = client.call("ListGroups", 5, StatesFilter=[around], TypesFilter=[kind])
                listed = [one["GroupId"] for one in response["Groups"]]
                seen[f"{around!r} {kind!r}"] = group in listed
        client.call("ConsumerGroupHeartbeat", 1, GroupId=group, MemberId="m", MemberEpoch=-1)
    return seen
