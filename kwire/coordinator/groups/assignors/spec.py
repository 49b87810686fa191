"""What a server-side assignor of consumer groups is told, and what it answers. KIP-848."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""


class MemberSpec(NamedTuple):
    """One member, as the assignors see it."""

    subscribed: Collection[bytes]
    """Ids of the topics it wants, those that its regular expression matches included; quick to look into."""
    instance_id: str | None
    rack_id: str | None
    assigned: Partitions
    """Its target assignment until now, which a sticky assignor tries to leave it."""


class GroupSpec(NamedTuple):
    """A group whose partitions are to be shared out.

    Where several assignments are as good, the order of members and of topics here decides.
    """

    members: Mapping[str, MemberSpec]
    homogeneous: bool
    """Whether all members want the same topics; that may be known from before the last one came."""
    partition_counts: Mapping[bytes, int]
    """Of every topic that exists; a topic that is wanted but missing here is unknown."""


Assignment: TypeAlias = dict[str, dict[bytes, frozenset[int]]]
"""Partitions by member and topic id."""

Assignor: TypeAlias = Callable[[GroupSpec], Assignment]
"""Raises ApiError where Kafka's assignor fails."""


def assignment_failed(reason: str) -> ApiError:
    """What an assignor raises; the group says for which epoch it failed."""
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, reason)
