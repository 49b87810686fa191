"""A description shows what is committed: what a coordinator would know that has only heard of that."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.coordinator.groups.consumer.requests import ClientIdentity
from kwire.coordinator.runtime import partition_of
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from tests.coordinator.scripting import PARTITIONS, Cluster, Reply

GROUP = "g"
INDEX = partition_of(GROUP, PARTITIONS)
STEPS = 100


def described(cluster: Cluster) -> Any:
    """At once, though replicas are waited for."""
    reply = Reply()
    cluster.service.describe_consumer_group(GROUP, reply)
    answer = reply.value
    answer.members.sort(key=lambda member: member.member_id)
    return answer


def from_committed(cluster: Cluster) -> Any:
    """The description by a coordinator that loads what is committed, and no more."""
    other = Cluster(cluster.config)
    other.topics = cluster.topics
    log = cluster.ports.logs[INDEX]
    other.ports.logs[INDEX] = log[: len(log) - len(cluster.ports.held or ())]
    other.restart()
    return described(other)


class Story:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster()
        for name in "tu":
            self.cluster.topics.put(name, 3)
        self.cluster.ports.held = []

    def happen(self) -> None:
        machine = self.cluster.service._runtime.shard_for(GROUP).machine
        group = machine.consumer.groups.get(GROUP)
        members = sorted(group.members) if group is not None else []
        chance = self.rng.random()
        if chance < 0.2 and len(members) < 4:
            self.beat(f"m{self.rng.randrange(9)}", 0, ["t"], [])
        elif chance < 0.3:
            for member_id in members[: self.rng.choice((1, 1, 4))]:
                self.beat(member_id, -1)
        elif group is not None and not members:
            self.cluster.service.delete_groups([GROUP], Reply())
        elif group is not None:
            member = group.members[self.rng.choice(members)]
            topics = self.rng.choice((None, None, ["t"], ["t", "u"]))
            owned = [
                RequestTopicPartitions(topic_id=topic_id, partitions=sorted(of))  # type: ignore[arg-type]
                for topic_id, of in member.assigned.items()
            ]
            self.beat(member.id, member.epoch, topics, owned)
        if self.rng.random() < 0.3:
            self.cluster.advance(1_000)
        self.cluster.host.run_pending()
        while self.rng.random() < 0.4 and self.cluster.ports.held:
            self.cluster.ports.held.pop(0)(None)

    def beat(self, member_id: str, epoch: int, topics: Any = None, owned: Any = None) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            subscribed_topic_names=topics,
            topic_partitions=owned,
        )
        self.cluster.service.consumer_heartbeat(request, ClientIdentity("c", "/h"), 1, Reply())


@pytest.mark.parametrize("seed", range(6))
def test_what_is_described_is_what_is_committed(seed: int) -> None:
    story = Story(seed)
    waited = 0
    for _ in range(STEPS):
        story.happen()
        waited += bool(story.cluster.ports.held)
        assert described(story.cluster) == from_committed(story.cluster)
    assert waited > STEPS / 10
    for committed in story.cluster.ports.held or ():
        committed(None)
    assert not story.cluster.service._runtime.shard_for(GROUP).machine._uncommitted.is_pending(GROUP)


def test_who_has_just_been_elected_waits_for_what_it_has_loaded() -> None:
    story = Story(0)
    story.beat("m", 0, ["t"], [])
    story.cluster.host.run_pending()
    story.cluster.ports.release()
    story.cluster.ports.held = []
    story.cluster.restart()
    reply = Reply()
    story.cluster.service.describe_consumer_group(GROUP, reply)
    assert reply.pending
    story.cluster.ports.release()
    assert (reply.error, len(reply.value.members)) == (ErrorCode.NONE, 1)
