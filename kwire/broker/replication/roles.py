"""The roles of a replica on this broker, and the legal changes between them.

A role changes only for two reasons: the metadata changes the replicas or the leader of the partition, or the
log fails. As in Apache Kafka, a replica whose log has failed stays offline until the broker restarts and
recovers the log.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final


class Role(Enum):
    """The role of a replica on this broker."""

    __hash__ = object.__hash__  # Enum.__hash__ is a Python call, and slow for thousands of replicas

    ABSENT = "absent"
    """This broker has no replica of the partition, or has not opened it yet."""
    LEADER = "leader"
    """This broker is the leader. Producers write to this replica and consumers read from it."""
    FOLLOWER = "follower"
    """Another broker is the leader, or there is no leader. Clients get NOT_LEADER_OR_FOLLOWER."""
    OFFLINE = "offline"
    """The log of the replica cannot be used."""


LEADER: Final = Role.LEADER
"""An alias for hot paths: looking up a member of an Enum takes six times as long."""


class RoleChange(Enum):
    """A change of the role of a replica."""

    __hash__ = object.__hash__

    BECOME_LEADER = "become leader"
    """This broker is the leader, possibly in a new leader epoch."""
    BECOME_FOLLOWER = "become follower"
    """This broker has a replica and is not the leader."""
    REMOVE = "be removed"
    """The topic was deleted, or the replica was reassigned to another broker."""
    FAIL = "fail"
    """The log has failed."""


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
"""Every legal change. Any other change is a bug of kwire."""


def role_after(role: Role, change: RoleChange) -> Role:
    """Return the role after a change. Raises AssertionError if the change is not legal."""
    assert change in TRANSITIONS[role], f"a replica that is {role.value} cannot {change.value}"
    return TRANSITIONS[role][change]
