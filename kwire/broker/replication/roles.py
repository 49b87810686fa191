"""What a replica is to this broker, and how that may change.

The cluster's metadata says which brokers hold a partition and which of them leads it; each change of that is
a move, and so is the failure of the log. No role is taken up otherwise. A log that has failed stays out of
service until the broker starts anew, and recovery has looked at it, as with Apache Kafka.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final


class Role(Enum):
    """What a replica is to this broker."""

    __hash__ = object.__hash__  # that of Enum is a call in Python, and there are thousands of replicas

    ABSENT = "absent"
    """Nothing: it is none of this broker's, not yet or not any more."""
    LEADER = "leader"
    """Clients write to it and read from it here."""
    FOLLOWER = "follower"
    """Another broker leads it, or nobody does: its log is kept, and clients are sent away."""
    OFFLINE = "offline"
    """Its log cannot be used."""


LEADER: Final = Role.LEADER
"""For what each request asks: a member of an enumeration takes six times as long to look up."""


class RoleChange(Enum):
    """What becomes of a replica."""

    __hash__ = object.__hash__

    BECOME_LEADER = "lead"
    """This broker leads, in a new epoch perhaps."""
    BECOME_FOLLOWER = "follow"
    """This broker has a replica, and does not lead."""
    REMOVE = "leave"
    """This broker has no replica of it: the topic is gone, or the replica is elsewhere."""
    FAIL = "fail"
    """Its log has failed."""


TRANSITIONS: Final = MappingProxyType(
    {
        Role.ABSENT: {
            RoleChange.BECOME_LEADER: Role.LEADER,
            RoleChange.BECOME_FOLLOWER: Role.FOLLOWER,
            RoleChange.FAIL: Role.OFFLINE,
        },
        Role.LEADER: {
            RoleChange.BECOME_LEADER: Role.LEADER,
            RoleChange.BECOME_FOLLOWER: Role.FOLLOWER,
            RoleChange.FAIL: Role.OFFLINE,
            RoleChange.REMOVE: Role.ABSENT,
        },
        Role.FOLLOWER: {
            RoleChange.BECOME_LEADER: Role.LEADER,
            RoleChange.BECOME_FOLLOWER: Role.FOLLOWER,
            RoleChange.FAIL: Role.OFFLINE,
            RoleChange.REMOVE: Role.ABSENT,
        },
        Role.OFFLINE: {
            RoleChange.BECOME_LEADER: Role.OFFLINE,
            RoleChange.BECOME_FOLLOWER: Role.OFFLINE,
            RoleChange.FAIL: Role.OFFLINE,
            RoleChange.REMOVE: Role.ABSENT,
        },
    }
)
"""Every legal move; any other is this program's own fault."""


def role_after(role: Role, change: RoleChange) -> Role:
    """The role after a move. AssertionError: it is not legal."""
    assert change in TRANSITIONS[role], f"a replica that is {role.value} cannot {change.value}"
    return TRANSITIONS[role][change]
