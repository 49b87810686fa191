"""ConsumerGroupDescribe returns only committed state, while appended records wait for replicas."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.coordinator.groups.consumer.requests import ClientIdentity
from kwire.coordinator.groups.registry import CONSUMER
from kwire.coordinator.partitioner import partition_of
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from tests.coordinator.coordinator_harness import PARTITIONS, CoordinatorHarness, Reply

GROUP = "g"
INDEX = partition_of(GROUP, PARTITIONS)
STEPS = 100


def describe_now(harness: CoordinatorHarness) -> Any:
    """Describe the group while appends may still wait for replicas."""
    reply = Reply()
    harness.service.describe_committed(CONSUMER, GROUP, reply)
    response = reply.value
    response.members.sort(key=lambda member: member.member_id)
    return response


def describe_from_committed(harness: CoordinatorHarness) -> Any:
    """Describe the group from a second coordinator that loads only committed records."""
    other = CoordinatorHarness(harness.config)
    other.topics = harness.topics
    log = harness.ports.logs[INDEX]
    other.ports.logs[INDEX] = log[: len(log) - len(harness.ports.held or ())]
    other.restart()
    return describe_now(other)


class RandomChanges:
    """Random changes of a group."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = CoordinatorHarness()
        for name in "tu":
            self.harness.topics.put(name, 3)
        self.harness.ports.held = []

    def apply_random_change(self) -> None:
        machine = self.harness.service.shard_for(GROUP).machine
        group = machine.consumer.groups.get(GROUP)
        members = sorted(group.members) if group is not None else []
        chance = self.rng.random()
        if chance < 0.2 and len(members) < 4:
            self.send_heartbeat(f"m{self.rng.randrange(9)}", 0, ["t"], [])
        elif chance < 0.3:
            for member_id in members[: self.rng.choice((1, 1, 4))]:
                self.send_heartbeat(member_id, -1)
        elif group is not None and not members:
            self.harness.service.delete_groups([GROUP], Reply())
        elif group is not None:
            member = group.members[self.rng.choice(members)]
            topics = self.rng.choice((None, None, ["t"], ["t", "u"]))
            owned = [
                RequestTopicPartitions(topic_id=topic_id, partitions=sorted(of))  # type: ignore[arg-type]
                for topic_id, of in member.assigned.items()
            ]
            self.send_heartbeat(member.id, member.epoch, topics, owned)
        if self.rng.random() < 0.3:
            self.harness.advance(1_000)
        self.harness.host.run_pending()
        while self.rng.random() < 0.4 and self.harness.ports.held:
            self.harness.ports.held.pop(0)(None)

    def send_heartbeat(self, member_id: str, epoch: int, topics: Any = None, owned: Any = None) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            subscribed_topic_names=topics,
            topic_partitions=owned,
        )
        self.harness.service.consumer_heartbeat(request, ClientIdentity("c", "/h"), 1, Reply())


@pytest.mark.parametrize("seed", range(6))
def test_describe_returns_only_committed_state(seed: int) -> None:
    changes = RandomChanges(seed)
    steps_with_pending = 0
    for _ in range(STEPS):
        changes.apply_random_change()
        steps_with_pending += bool(changes.harness.ports.held)
        assert describe_now(changes.harness) == describe_from_committed(changes.harness)
    assert steps_with_pending > STEPS / 10
    for committed in changes.harness.ports.held or ():
        committed(None)
    assert not changes.harness.service.shard_for(GROUP).machine.consumer._uncommitted.is_pending(GROUP)


def test_describe_after_an_election_waits_until_the_log_is_committed() -> None:
    changes = RandomChanges(0)
    changes.send_heartbeat("m", 0, ["t"], [])
    changes.harness.host.run_pending()
    changes.harness.ports.release()
    changes.harness.ports.held = []
    changes.harness.restart()
    reply = Reply()
    changes.harness.service.describe_committed(CONSUMER, GROUP, reply)
    assert reply.pending
    changes.harness.ports.release()
    assert (reply.error, len(reply.value.members)) == (ErrorCode.NONE, 1)
