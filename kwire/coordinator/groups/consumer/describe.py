"""Consumer groups in ConsumerGroupDescribe responses. KIP-848, KIP-1099 (the protocol of each member)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kwire.coordinator.groups.assignors.spec import Partitions
from kwire.coordinator.groups.consumer.group import NO_TARGET, ConsumerGroup
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.coordinator.ports import TopicsView
from kwire.wire.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    TopicPartitions,
)
from kwire.wire.messages.consumer_group_describe import Member as DescribedMember
from kwire.wire.primitives import Uuid

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def describe_group(group: ConsumerGroup, topics: TopicsView, default_assignor: str) -> DescribedGroup:
    """Return the group with its members and their current and target assignments, without deleted topics."""
    return DescribedGroup(
        group_id=group.id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or default_assignor,
        members=[
            _member(member, group.targets.get(member.id, NO_TARGET), topics)
            for member in group.members.values()
        ],
    )


def _member(member: ConsumerGroupMember, target: Partitions, topics: TopicsView) -> DescribedMember:
    current: dict[bytes, set[int]] = {}
    for assigned in (member.assigned, member.pending_revocation):
        for topic_id, epochs in assigned.items():
            current.setdefault(topic_id, set()).update(epochs)
    return DescribedMember(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(current, topics),
        target_assignment=_assignment(target, topics),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[bytes, Collection[int]], topics: TopicsView) -> Assignment:
    shown = []
    for topic_id, indexes in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            shown.append(
                TopicPartitions(topic_id=Uuid(topic_id), topic_name=topic.name, partitions=sorted(indexes))
            )
    return Assignment(topic_partitions=shown)
