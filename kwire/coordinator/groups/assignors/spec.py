"""The input and output of server-side assignors of consumer groups. KIP-848."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""


class MemberSpec(NamedTuple):
    """A member as assignors see it."""

    subscribed: Collection[bytes]
    """The ids of its subscribed topics, including those that its regular expression matches.

    Fast to search.
    """
    instance_id: str | None
    rack_id: str | None
    assigned: Partitions
    """Its current target assignment, which a sticky assignor tries to keep."""


class GroupSpec(NamedTuple):
    """A group whose partitions are to be assigned.

    The order of members and topics here decides between equally good assignments.
    """

    members: Mapping[str, MemberSpec]
    homogeneous: bool
    """Whether all members subscribe to the same topics. The value may predate the last member's join."""
    partition_counts: Mapping[bytes, int]
    """The partition count of every existing topic. A subscribed topic that is missing here does not exist."""


Assignment: TypeAlias = dict[str, dict[bytes, frozenset[int]]]
"""Partitions by member and topic id."""

Assignor: TypeAlias = Callable[[GroupSpec], Assignment]
"""A function that computes an assignment. It raises ApiError if Kafka's assignor fails."""


def assignment_failed(reason: str) -> ApiError:
    """Return the error of an assignor."""
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, reason)
