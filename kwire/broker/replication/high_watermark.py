"""How far a led partition is replicated: up to where all in-sync replicas have it.

The high watermark is the least of the ends of their logs, the leader's own among them, and does not rise
while fewer replicas than min.insync.replicas are in sync (KIP-966). Of a partition with one replica that is
the end of the leader's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kwire.broker.metadata.image import PartitionImage

UNKNOWN_OFFSET = -1
NOBODY: Final[Mapping[int, int]] = MappingProxyType({})
"""Followers of a partition that has none: one for all, since there are many of these."""


class InSyncReplicas:
    """The in-sync replicas of a partition that this broker leads, and how far each of the others is."""

    __slots__ = ("_followers", "_replicas", "_size", "is_whole")

    def __init__(self) -> None:
        self._followers = NOBODY
        """Where the log of each in-sync follower ends, by broker id. Replaced, never changed."""
        self._size = 1
        self._replicas = 1
        self.is_whole = True
        """Whether every replica is in sync: then they are never too few."""

    def take(self, image: PartitionImage) -> None:
        """Those that the metadata has, led by this broker. What is known of followers that stay is kept."""
        known = self._followers
        self._followers = NOBODY
        self._size, self._replicas = len(image.isr), len(image.replicas)
        self.is_whole = self._size >= self._replicas
        if image.isr != (image.leader,):
            self._followers = {
                broker_id: known.get(broker_id, UNKNOWN_OFFSET)
                for broker_id in image.isr
                if broker_id != image.leader
            }

    def forget(self) -> None:
        """Another broker leads: what is known of followers says nothing of a later time."""
        self._followers = NOBODY

    def fetched(self, broker_id: int, end_offset: int) -> bool:
        """A follower's log ends there, as its fetch says. Whether it is one that the others wait for."""
        if broker_id not in self._followers:
            return False
        self._followers = {**self._followers, broker_id: end_offset}
        return True

    def are_too_few(self, min_insync_replicas: int) -> bool:
        """Whether fewer are in sync than the topic asks for; it cannot ask for more than it has."""
        return not self.is_whole and self._size < min(min_insync_replicas, self._replicas)

    def high_watermark(self, end_offset: int, min_insync_replicas: int) -> int:
        """Up to where all of them have it, when the leader's log ends at `end_offset`; -1 for not known."""
        if not self.is_whole and self.are_too_few(min_insync_replicas):
            return UNKNOWN_OFFSET
        return min(end_offset, *self._followers.values()) if self._followers else end_offset
