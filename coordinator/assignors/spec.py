"""What a server-side assignor of consumer groups is told, and what it answers. KIP-848."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""


class MemberSpec(NamedTuple):
    """One member, as the assignors see it."""

    subscribed: frozenset[bytes]
    """Ids of the topics it wants, those that its regular expression matches included."""
    instance_id: str | None
    rack_id: str | None
    assigned: Partitions
    """Its target assignment until now: what a sticky assignor tries to leave it."""


class GroupSpec(NamedTuple):
    """A group whose partitions are to be shared out."""

    members: Mapping[str, MemberSpec]
    homogeneous: bool
    """Whether all members want the same topics."""
    partition_counts: Mapping[bytes, int]
    """Of every topic that exists; a topic that is wanted but missing here is unknown."""


Assignor: TypeAlias = Callable[[GroupSpec], dict[str, dict[bytes, frozenset[int]]]]
"""Partitions by member and topic id. Raises ApiError where Kafka's assignor fails."""
