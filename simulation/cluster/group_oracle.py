"""The assignments and committed offsets that a group's members may get: the oracle of a consumer group.

- A partition has one owner per generation. In the consumer protocol, members get their epochs one by one. A
  partition's previous owner must have given it up before the coordinator confirms the next one.
- A new owner starts at the last acknowledged offset, or at one whose commit got no response. Requests in
  flight from earlier generations have no effect after a later one has fetched its offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from kwire.testing.results import TopicPartition
from kwire.testing.simulated.oracle import Oracle
from kwire.testing.simulated.violation import Violation

NOTHING: Final = -1


@dataclass(slots=True)
class CommittedOffset:
    """The committed offset of a partition."""

    offset: int = NOTHING
    generation: int = NOTHING
    """The generation that committed or fetched it."""
    unacknowledged: set[tuple[int, int]] = field(default_factory=set)
    """Commits without a response, as (generation, offset), which may take effect at any time."""


class GroupOracle:
    """The oracle of one group."""

    def __init__(
        self, name: str, oracle: Oracle, partitions: list[TopicPartition], note: Callable[[str], None]
    ) -> None:
        """Start with these partitions of the group's topics. The list may grow."""
        self.name = name
        self.partitions = partitions
        self.is_finished = False
        """Whether the members must leave, because everything is consumed."""
        self.ownership: dict[str, tuple[int, frozenset[TopicPartition]]] = {}
        """The generation and partitions of each member, as far as the member knows."""
        self._oracle = oracle
        self._note = note
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._confirmed_owners: dict[TopicPartition, list[tuple[str, int]]] = {}
        """The confirmed owners of a partition in order, each with the response count at that time."""
        self.response_count = 0
        """The number of responses to heartbeats."""

    # --- assignments

    def on_assignment(self, member: str, generation: int, partitions: Collection[TopicPartition]) -> None:
        """Note an assignment of the classic protocol.

        Raises Violation if another member has the partition.
        """
        for tp in partitions:
            owner = self._owners.setdefault((generation, tp), member)
            if owner != member:
                raise Violation(f"{tp} is given to {owner} and {member} in generation {generation}")
        self.on_ownership(member, generation, partitions)

    def on_ownership(self, member: str, generation: int, partitions: Collection[TopicPartition]) -> None:
        """Note the partitions that a member now has."""
        now = frozenset(partitions)
        before = self.ownership.get(member, (NOTHING, frozenset()))[1]
        if now != before:
            when = f"in generation {generation}" if generation >= 0 else "now"
            self._note(f"{member} has {', '.join(map(str, sorted(now))) or 'nothing'} {when}")
        for tp in before - now:
            self._confirmed_owners[tp] = [one for one in self._confirmed_owners[tp] if one[0] != member]
        for tp in now - before:
            self._confirmed_owners.setdefault(tp, [])
        self.ownership[member] = generation, now

    def on_member_gone(self, member: str) -> None:
        """Note that a member has left the group or failed."""
        if member in self.ownership:
            self.on_ownership(member, *(NOTHING, ()))
            del self.ownership[member]

    def on_heartbeat_response(
        self, member: str, requested_at: int, partitions: Collection[TopicPartition]
    ) -> None:
        """Note that the coordinator confirmed these partitions of a member of the consumer protocol.

        The member sent its heartbeat at the response count `requested_at`. Raises Violation if the
        coordinator confirmed another owner in between.
        """
        self.response_count += 1
        for tp in partitions:
            owners = self._confirmed_owners[tp]
            if owners and (owners[-1][0] == member or owners[-1][1] > requested_at):
                continue
            if any(one == member for one, _ in owners):
                raise Violation(f"{tp} belongs to {member} and {owners[-1][0]} at the same time")
            owners.append((member, self.response_count))

    # --- committed offsets

    def on_commit_sent(self, tp: TopicPartition, generation: int, offset: int) -> None:
        """Note that a member sends a commit."""
        self._committed_of(tp).unacknowledged.add((generation, offset))

    def on_commit_ack(self, tp: TopicPartition, generation: int, offset: int) -> None:
        """Note an acknowledged commit."""
        committed = self._committed_of(tp)
        if generation >= committed.generation:
            committed.offset, committed.generation = offset, generation
            committed.unacknowledged.discard((generation, offset))

    def on_offset_fetched(self, member: str, tp: TopicPartition, generation: int, offset: int) -> None:
        """Check the offset that a member fetched for a newly assigned partition. Raises Violation."""
        committed = self._committed_of(tp)
        if generation < committed.generation:
            return  # the member does not know yet that it was removed from the group
        possible = {committed.offset, *(each for _, each in committed.unacknowledged)}
        if offset not in possible:
            raise Violation(
                f"{member} fetches offset {offset} of {tp} for {self.name} in generation {generation}; "
                f"{committed.offset} was acknowledged in generation {committed.generation}, and "
                f"{sorted(committed.unacknowledged)} got no response"
            )
        committed.offset, committed.generation = offset, generation
        committed.unacknowledged = {one for one in committed.unacknowledged if one[0] >= generation}

    def _committed_of(self, tp: TopicPartition) -> CommittedOffset:
        return self._committed.setdefault(tp, CommittedOffset())

    # --- at the end

    def why_not_complete(self) -> str | None:
        """Return why the group has not consumed and committed everything; None if it has."""
        ownership = {tp for _, partitions in self.ownership.values() for tp in partitions}
        for tp in self.partitions:
            if tp not in ownership:
                return f"no member of {self.name} has {tp}"
            end = self._oracle.committed_in(tp).end
            if end and self._committed_of(tp).offset < end:
                return f"{self.name} has committed {self._committed_of(tp).offset} of {end} in {tp}"
        return None
