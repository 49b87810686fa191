"""The resources of the matrix: topics, groups and transactional ids that alice may see, and hidden ones.

alice gets rights on `orders`, `team` and `payments`. `hidden*` exist, too, and `missing*` do not.
"""

from __future__ import annotations

from interop.authorizer.tokens import make_token
from interop.authorizer.world import World, until
from interop.wire import Fields

SESSION_MS = 600_000
TRANSACTION = 1
"""The key type of transactional ids in FindCoordinator."""


def create_resources(world: World) -> None:
    make_token(world, "alice")
    for topic in ("orders", "hidden"):
        world.create_topic(topic, 1, batches=2)
    for group in ("team", "hidden-team"):
        world.wait_for_group(group)
        topics = [
            {"Name": name, "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]}
            for name in ("orders", "hidden")
        ]
        response = world.call("OffsetCommit", 9, GroupId=group, Topics=topics)
        codes = {one["ErrorCode"] for topic in response["Topics"] for one in topic["Partitions"]}
        assert codes == {0}, response
    for group, topics_of_member in (("members", ["orders"]), ("hidden-members", ["orders", "hidden"])):
        world.values[group] = _join(world, group, topics_of_member)
    for name in ("payments", "hidden-payments"):
        world.values[name] = _begin_transaction(world, name)
    for name in ("__consumer_offsets", "__transaction_state"):
        topic = world.call("Metadata", 12, Topics=[{"Name": name}])["Topics"][0]
        world.ids[name] = topic["TopicId"]


def _join(world: World, group: str, topics: list[str]) -> Fields:
    world.wait_for_group(group)
    fields = {"GroupId": group, "MemberId": "member", "RebalanceTimeoutMs": SESSION_MS}
    response = world.call(
        "ConsumerGroupHeartbeat", 1, **fields, SubscribedTopicNames=topics, TopicPartitions=[]
    )
    assert not response["ErrorCode"], response

    def is_assigned() -> bool:
        nonlocal response
        epoch = response["MemberEpoch"]
        response = world.call(
            "ConsumerGroupHeartbeat", 1, GroupId=group, MemberId="member", MemberEpoch=epoch
        )
        assigned = response["Assignment"]
        return assigned is not None and len(assigned["TopicPartitions"]) == len(topics)

    first = response["Assignment"]
    if first is None or len(first["TopicPartitions"]) < len(topics):
        until(is_assigned, f"{group} gets no partitions")
    return {"MemberId": "member", "MemberEpoch": response["MemberEpoch"]}


def _begin_transaction(world: World, name: str) -> Fields:
    """Begin a transaction with partitions of both topics, which stays open."""
    found: Fields = {}
    until(
        lambda: not world.call("FindCoordinator", 3, Key=name, KeyType=TRANSACTION)["ErrorCode"],
        f"{name} has no coordinator",
    )

    def is_initialized() -> bool:
        found.update(world.call("InitProducerId", 4, TransactionalId=name, TransactionTimeoutMs=SESSION_MS))
        return not found["ErrorCode"]

    until(is_initialized, f"{name} is not initialized")
    producer = {"ProducerId": found["ProducerId"], "ProducerEpoch": found["ProducerEpoch"]}
    response = world.call(
        "AddPartitionsToTxn",
        3,
        V3AndBelowTransactionalId=name,
        **{f"V3AndBelow{field}": value for field, value in producer.items()},
        V3AndBelowTopics=[{"Name": topic, "Partitions": [0]} for topic in ("orders", "hidden")],
    )
    results = [one for topic in response["ResultsByTopicV3AndBelow"] for one in topic["ResultsByPartition"]]
    assert not any(one["PartitionErrorCode"] for one in results), response
    return producer
