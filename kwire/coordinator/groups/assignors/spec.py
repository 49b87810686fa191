"""What a server-side assignor of consumer groups is told, and what it answers. KIP-848.

Where several assignments are as good, the order in which Kafka's hash maps tell their keys decides. The maps
here carry what is needed of it in their own order, as said below; a caller that does not care may give any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.java import hash_map_order, hash_set_order, uuid_hash

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""


class OrderedPartitions(frozenset[int]):
    """Partitions of a topic that know in which order Kafka's set tells them; it does not count in ==."""

    __slots__ = ("order",)

    order: Sequence[int]

    def __new__(cls, order: Iterable[int]) -> OrderedPartitions:
        """In: the partitions in their order."""
        partitions = tuple(order)
        made = super().__new__(cls, partitions)
        made.order = partitions
        return made


def order_of(partitions: frozenset[int]) -> Sequence[int]:
    """The partitions in the order that they know, or else in that of their numbers."""
    return partitions.order if isinstance(partitions, OrderedPartitions) else sorted(partitions)


def as_hashed(partitions: Mapping[bytes, Collection[int]]) -> dict[bytes, OrderedPartitions]:
    """Partitions in the order of a `HashMap` of `HashSet`s that got them as they come here."""
    return {
        topic_id: OrderedPartitions(hash_set_order(partitions[topic_id], int))
        for topic_id in hash_map_order(partitions, uuid_hash)
    }


class MemberSpec(NamedTuple):
    """One member, as the assignors see it."""

    subscribed: Collection[bytes]
    """Ids of the topics it wants, those that its regular expression matches included.

    In the order of `java.hash_set_order` of their names; quick to look into.
    """
    instance_id: str | None
    rack_id: str | None
    assigned: Partitions
    """Its target assignment until now, which a sticky assignor tries to leave it; in order of `as_hashed`."""
    unknown_topics: int = 0
    """How many other topics it asks for by name: Kafka's tables have room for them."""


class GroupSpec(NamedTuple):
    """A group whose partitions are to be shared out."""

    members: Mapping[str, MemberSpec]
    """Those that are in the group, in the order of `java.timeline_map_order`, then those that just joined."""
    homogeneous: bool
    """Whether all members want the same topics; Kafka may know that from before the last one came."""
    partition_counts: Mapping[bytes, int]
    """Of every topic that exists; a topic that is wanted but missing here is unknown.

    In the order in which Kafka's map of members leads to them.
    """


Assignment: TypeAlias = dict[str, dict[bytes, frozenset[int]]]
"""Partitions by member and topic id; topics, and OrderedPartitions, in the order of Kafka's record."""

Assignor: TypeAlias = Callable[[GroupSpec], Assignment]
"""Raises ApiError where Kafka's assignor fails."""


def assignment_failed(reason: str) -> ApiError:
    """What an assignor raises; the group says for which epoch it failed."""
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, reason)
