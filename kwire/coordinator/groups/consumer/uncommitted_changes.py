"""Earlier states of consumer groups: the state before each record that is not committed yet.

Commands see the group after all records. Descriptions contain only committed state, and do not wait for
replicas. Apache Kafka does the same with snapshots of its complete state.
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


class _Snapshot(NamedTuple):
    """The part of a group's state that the next record may change and that descriptions contain.

    `group` is None if the group does not exist. `member_id` is the record's member, if it has one.
    """

    group: ConsumerGroup | None
    epoch: int = 0
    assignment_epoch: int = 0
    member_id: str | None = None
    member: ConsumerGroupMember | None = None
    target: Partitions | None = None


class UncommittedChanges:
    """The earlier states of each group, oldest first."""

    def __init__(self) -> None:
        self._previous: dict[str, deque[_Snapshot]] = {}

    def record_pending(self, group_id: str, key: Message, group: ConsumerGroup | None) -> None:
        """Remember the state of a group before a record with `key` is replayed. A new group has no state."""
        before = _Snapshot(None)
        if group is not None:
            member_id: str | None = getattr(key, "member_id", None)
            of_member = (
                () if member_id is None else (group.members.get(member_id), group.targets.get(member_id))
            )
            before = _Snapshot(group, group.epoch, group.assignment_epoch, member_id, *of_member)
        self._previous.setdefault(group_id, deque()).append(before)

    def record_committed(self, group_id: str) -> None:
        """Forget the group's oldest state, since its record is committed."""
        before = self._previous[group_id]
        before.popleft()
        if not before:
            del self._previous[group_id]

    def is_pending(self, group_id: str) -> bool:
        return group_id in self._previous

    def committed_group(self, group_id: str, logger: NodeLogger) -> ConsumerGroup | None:
        """Return a copy of a group without uncommitted changes, or None if its creation is not committed.

        `is_pending` must be true for the group.
        """
        before = self._previous[group_id]
        first = before[0]
        group = first.group
        if group is None:
            return None
        members, targets = dict(group.members), dict(group.targets)
        for one in reversed(before):
            # Changes after the removal of the group belong to a new group with the same id.
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
