"""The input and output of server-side assignors of consumer groups. KIP-848."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""


class MemberSpec(NamedTuple):
    """The properties of a member that assignors use."""

    subscribed: Collection[bytes]
    """The ids of the member's subscribed topics, including topics that its regular expression matches.

    The collection has a fast `in`.
    """
    instance_id: str | None
    rack_id: str | None
    assigned: Partitions
    """The member's current target assignment. Sticky assignors try to keep it."""


class GroupSpec(NamedTuple):
    """A group whose partitions are to be assigned.

    The order of members and topics here decides between equally good assignments.
    """

    members: Mapping[str, MemberSpec]
    homogeneous: bool
    """Whether all members subscribe to the same topics. The value may be older than the latest join."""
    partition_counts: Mapping[bytes, int]
    """The partition count of every existing topic. A subscribed topic that is missing here does not exist."""


Assignment: TypeAlias = dict[str, dict[bytes, frozenset[int]]]
"""Partitions by member and topic id."""

Assignor: TypeAlias = Callable[[GroupSpec], Assignment]
"""A function that computes an assignment. It raises ApiError where Kafka's assignor fails."""


def assignment_failed(reason: str) -> ApiError:
    """Return ApiError UNKNOWN_SERVER_ERROR with this reason."""
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, reason)
