"""Requests whose client gets or loses rights: fetch sessions, memberships, and regular expressions."""

from __future__ import annotations

from typing import Any

from interop.authorizer.cases.records import fetch
from interop.authorizer.comparison import Worlds, compare_worlds
from interop.authorizer.rights import Rights, group, topic
from interop.authorizer.world import World, until
from interop.scenario import Difference
from interop.wire import Fields

BOTH = (topic("READ"), topic("READ", "hidden"))


def test_a_fetch_session_follows_the_rights(worlds: Worlds, differences: list[Difference]) -> None:
    compare_worlds("fetch_sessions", worlds, _fetch_sessions, differences)


def _fetch_sessions(world: World) -> Any:
    """Fetch twice after each change of the ACLs, in one session per version."""
    seen: dict[str, Any] = {}
    changes: dict[str, Rights] = {
        "orders": BOTH[:1],
        "hidden": BOTH[1:],
        "neither": (),
        "both again": BOTH,
        "denied": (*BOTH, topic("READ").denied()),
    }
    for version in (7, 12, 13, 17):
        world.set_acls(BOTH)
        client = world.new_client("broker", "alice")
        response = client.call("Fetch", version, **fetch(world, SessionId=0, SessionEpoch=0))
        session, epoch = response["SessionId"], 1
        seen[f"v{version} full"] = world.comparable(response)
        for label, rights in changes.items():
            world.set_acls(rights)
            for number in (1, 2):
                request = fetch(world, SessionId=session, SessionEpoch=epoch) | {"Topics": []}
                seen[f"v{version} {label} {number}"] = in_order(
                    world.comparable(client.call("Fetch", version, **request))
                )
                epoch += 1
        client.socket.close()
    return seen


def in_order(response: Any) -> Any:
    response["Responses"].sort(key=repr)
    return response


def test_a_member_follows_the_rights(worlds: Worlds, differences: list[Difference]) -> None:
    compare_worlds("membership", worlds, _membership, differences)


def _membership(world: World) -> Any:
    """Send heartbeats of a member whose rights change. Each heartbeat is sent twice."""
    seen: dict[str, Any] = {}
    subscribed = (group("READ", "changing"), topic("DESCRIBE"))
    world.set_acls(subscribed)
    client = world.new_client("broker", "alice")
    join = {
        "GroupId": "changing",
        "MemberId": f"member of {world.broker.name}",
        "RebalanceTimeoutMs": 60_000,
        "SubscribedTopicNames": ["orders"],
        "TopicPartitions": [],
    }
    response = client.call("ConsumerGroupHeartbeat", 1, **join)
    seen["joined"] = response["ErrorCode"]
    member = {key: join[key] for key in ("GroupId", "MemberId")}
    for label, rights in {
        "no topic": subscribed[:1],
        "no group": subscribed[1:],
        "both": subscribed,
        "denied": (*subscribed, subscribed[0].denied()),
    }.items():
        world.set_acls(rights)
        for number in (1, 2):
            request = {**member, "MemberEpoch": response["MemberEpoch"]}
            outcome = client.call("ConsumerGroupHeartbeat", 1, **request)
            seen[f"{label} {number}"] = [outcome["ErrorCode"], outcome["ErrorMessage"]]
            request |= {
                "SubscribedTopicNames": ["orders"],
                "RebalanceTimeoutMs": 60_000,
                "TopicPartitions": [],
            }
            outcome = client.call("ConsumerGroupHeartbeat", 1, **request)
            seen[f"{label}, subscription {number}"] = [outcome["ErrorCode"], outcome["ErrorMessage"]]
    client.socket.close()
    return seen


def test_a_regular_expression_finds_only_topics_of_its_member(
    worlds: Worlds, differences: list[Difference]
) -> None:
    compare_worlds("regular_expressions", worlds, _regular_expressions, differences)


def _regular_expressions(world: World) -> Any:
    """Return the topics that the regular expression of a member finds, by the member's rights."""
    return {
        "orders": _topics_found(world, (topic("DESCRIBE"),), 1),
        "both": _topics_found(world, (topic("DESCRIBE"), topic("DESCRIBE", "hidden")), 2),
        "neither": _topics_found(world, (), 0),
        "denied": _topics_found(world, (topic("DESCRIBE", "*"), topic("DESCRIBE", "hidden").denied()), 1),
    }


def _topics_found(world: World, rights: Rights, count: int) -> list[str]:
    group_id = f"regular-{len(rights)}-{count}"
    world.set_acls((group("READ", group_id), *rights))
    client = world.new_client("broker", "alice")
    fields: Fields = {
        "GroupId": group_id,
        "MemberId": "member",
        "RebalanceTimeoutMs": 60_000,
        "SubscribedTopicRegex": "orders|hidden|missing",
        "TopicPartitions": [],
    }
    response = client.call("ConsumerGroupHeartbeat", 1, **fields)
    found: list[str] = []

    def is_assigned() -> bool:
        nonlocal response
        if response["Assignment"] is not None:
            topics = world.comparable(response["Assignment"])["TopicPartitions"]
            found[:] = sorted(one["TopicId"] for one in topics)
        if response["Assignment"] is not None and len(found) == count:
            return True
        epoch = response["MemberEpoch"]
        response = client.call("ConsumerGroupHeartbeat", 1, **fields | {"MemberEpoch": epoch})
        return False

    until(is_assigned, f"{world.broker.name}: {group_id} has found {found}")
    client.socket.close()
    return found
