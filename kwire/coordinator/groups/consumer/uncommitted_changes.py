"""What consumer groups were before each record that is not committed yet.

Commands see the group as it is after all records. Who only looks is shown what is committed, and is not kept
waiting for replicas, as in Apache Kafka, which keeps snapshots of all of its state for that.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from kwire.coordinator.groups.assignors.spec import Partitions
from kwire.coordinator.groups.consumer.group import ConsumerGroup
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.host.loggers import NodeLogger
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message

T = TypeVar("T")


class _Before(NamedTuple):
    """All that a record may change and a description shows."""

    group: ConsumerGroup | None
    epoch: int = 0
    assignment_epoch: int = 0
    member_id: str | None = None
    member: ConsumerGroupMember | None = None
    target: Partitions | None = None


class UncommittedChanges:
    """By group, oldest first."""

    def __init__(self) -> None:
        self._previous: dict[str, deque[_Before]] = {}

    def record_pending(self, group_id: str, key: Message, group: ConsumerGroup | None) -> None:
        """A record of this key comes next, to this group if there is one."""
        before = _Before(None)
        if group is not None:
            member_id: str | None = getattr(key, "member_id", None)
            of_member = (
                () if member_id is None else (group.members.get(member_id), group.targets.get(member_id))
            )
            before = _Before(group, group.epoch, group.assignment_epoch, member_id, *of_member)
        self._previous.setdefault(group_id, deque()).append(before)

    def record_committed(self, group_id: str) -> None:
        """The oldest record of the group that was pending is committed."""
        before = self._previous[group_id]
        before.popleft()
        if not before:
            del self._previous[group_id]

    def is_pending(self, group_id: str) -> bool:
        return group_id in self._previous

    def committed_group(self, group_id: str, logger: NodeLogger) -> ConsumerGroup | None:
        """The group as far as it is committed, where some of it is pending; None: there is no such group.

        To be looked at, and not to be kept.
        """
        before = self._previous[group_id]
        first = before[0]
        group = first.group
        if group is None:
            return None
        members, targets = dict(group.members), dict(group.targets)
        for one in reversed(before):
            # What came after the group was gone is of another of the same name.
            if one.group is group and one.member_id is not None:
                _put_back(members, one.member_id, one.member)
                _put_back(targets, one.member_id, one.target)
        shown = ConsumerGroup(group_id, logger)
        shown.epoch, shown.assignment_epoch, shown.targets = first.epoch, first.assignment_epoch, targets
        for member in members.values():
            shown.put(member)
        return shown


def _put_back(where: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        where.pop(name, None)
    else:
        where[name] = value
