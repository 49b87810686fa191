"""The server-side assignors, in consumer groups whose members join and leave (KIP-848, "Assignors").

If several assignments are equally good, the order of a hash map decides in Apache Kafka. So for the uniform
assignor, the scenarios record only the number of partitions per member. For the range assignor, they record
the complete assignment.
"""

from __future__ import annotations

import random
from typing import Any

from interop.brokers import Broker
from interop.consumer_groups import Member, Topics, described
from interop.raw import wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_group_configs import SET, alter, group_overrides
from interop.scenarios.raw_topics import until


def target_assignments(topics: Topics, group: str) -> Any:
    """Return the target assignments of the range assignor, or the sorted sizes of the uniform assignor's."""
    (found,) = described(topics, group)["Groups"]
    owned = {member["MemberId"]: member["TargetAssignment"] for member in found["Members"]}
    if found["AssignorName"] == "range":
        return owned
    return sorted(sum(map(len, assignment.values())) for assignment in owned.values())


def run_group(
    client: RawClient, group: str, assignor: str, wanted: list[list[str]], sizes: dict[str, int], steps: int
) -> list[Any]:
    """Change the members of a group step by step. Return the target assignments after each step.

    In each step, a member joins, leaves, or returns as a static member. A member that joins subscribes to a
    random list of topics in `wanted`. `sizes` has the number of partitions of each topic.
    """
    rng = random.Random(848)
    wait_for_coordinator(client, group)
    [(code, _)] = alter(client, group, ("consumer.assignment.interval.ms", SET, "0"))
    assert code == 0
    until(lambda: bool(group_overrides(client, group)))
    topics = Topics(client)
    for name, partitions in sizes.items():
        topics.create(name, partitions)
    members: list[Member] = []
    seen: list[Any] = []
    for step in range(steps):
        instance = None
        if len(members) > 3 and rng.random() < 0.45:
            removed = members.pop(rng.randrange(len(members)))
            instance = removed.instance
            removed.leave(-1 if instance is None else -2)
        if len(members) <= 3 or instance is not None or rng.random() < 0.6:
            if instance is None and rng.random() < 0.3:
                instance = f"instance-{step}"
            member = Member(topics, group, f"{rng.randrange(10**9)}-member", instance)
            response = member.join(*rng.choice(wanted), ServerAssignor=assignor)
            assert response["ErrorCode"] == 0, response
            members.append(member)
        else:
            # The next heartbeat of a remaining member makes the coordinator assign the free partitions.
            members[0].send()
        seen.append(target_assignments(topics, group))
    return seen


@scenario()
def uniform_same_topic(broker: Broker) -> Any:
    """Subscribe all members to the same topic."""
    with RawClient(broker.bootstrap) as client:
        topic = "raw-assignors-alike"
        return run_group(client, topic, "uniform", [[topic]], {topic: 37}, 50)


@scenario()
def uniform_different_topics(broker: Broker) -> Any:
    """Subscribe members to different topics."""
    sizes = {"raw-assignors-x": 5, "raw-assignors-y": 11, "raw-assignors-z": 17}
    x, y, z = sizes
    wanted = [[x], [y], [z], [x, y], [y, z], [x, y, z], [x, y, z]]
    with RawClient(broker.bootstrap) as client:
        return run_group(client, "raw-assignors-different", "uniform", wanted, sizes, 50)


@scenario()
def members_without_topics(broker: Broker) -> Any:
    """Add members with an empty subscription. They must not raise the group epoch, but may get partitions."""
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        for assignor in ("uniform", "range"):
            one, several = f"raw-assignors-nothing-{assignor}", f"raw-assignors-nothing-{assignor}-several"
            seen[one] = run_group(client, one, assignor, [[one], [one], [one], [], []], {one: 7}, 40)
            sizes = {f"{several}-x": 7, f"{several}-y": 4}
            wanted = [list(sizes), list(sizes)[:1], []]
            seen[several] = run_group(client, several, assignor, wanted, sizes, 40)
    return seen


@scenario()
def range_with_static_members(broker: Broker) -> Any:
    """Use the range assignor. Some members subscribe to one topic, and others to two topics."""
    sizes = {"raw-assignors-r": 6, "raw-assignors-s": 9}
    r, s = sizes
    with RawClient(broker.bootstrap) as client:
        return run_group(client, "raw-assignors-range", "range", [[r, s], [r, s], [s]], sizes, 30)
