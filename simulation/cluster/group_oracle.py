"""The oracle of a consumer group, which checks assignments and committed offsets.

- A partition has one owner per generation. In the consumer protocol, members get a new epoch one by one. The
  previous owner of a partition must have revoked it before the coordinator confirms the next owner.
- A new owner starts at the last acknowledged committed offset, or at an offset whose commit got no response.
  After a generation has fetched its offsets, delayed requests of earlier generations have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from kwire.testing.results import TopicPartition
from kwire.testing.simulated.violation import Violation
from simulation.cluster.client_oracle import ClientOracle

NOTHING: Final = -1


@dataclass(slots=True)
class CommittedOffset:
    """The committed offset that the oracle expects for a partition."""

    offset: int = NOTHING
    generation: int = NOTHING
    """The generation that committed or fetched the offset."""
    unacknowledged: set[tuple[int, int]] = field(default_factory=set)
    """Commits without a response, as (generation, offset). They may take effect at any time."""


class GroupOracle:
    def __init__(
        self, name: str, oracle: ClientOracle, partitions: list[TopicPartition], note: Callable[[str], None]
    ) -> None:
        """Create an oracle for these partitions. The caller may add partitions to the list later."""
        self.name = name
        self.partitions = partitions
        self.is_finished = False
        """Whether the members must leave, because all records are consumed."""
        self.ownership: dict[str, tuple[int, frozenset[TopicPartition]]] = {}
        """The generation and partitions of each member, as far as the member knows."""
        self._oracle = oracle
        self._note = note
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._confirmed_owners: dict[TopicPartition, list[tuple[str, int]]] = {}
        """The confirmed owners of each partition in order, with the response count at their confirmation."""
        self.response_count = 0
        """The number of heartbeat responses so far."""

    # --- assignments

    def on_assignment(self, member: str, generation: int, partitions: Collection[TopicPartition]) -> None:
        """Note an assignment of the classic protocol.

        Raises Violation if another member of the generation has one of the partitions.
        """
        for tp in partitions:
            owner = self._owners.setdefault((generation, tp), member)
            if owner != member:
                raise Violation(f"{tp} is given to {owner} and {member} in generation {generation}")
        self.on_ownership(member, generation, partitions)

    def on_ownership(self, member: str, generation: int, partitions: Collection[TopicPartition]) -> None:
        """Note the partitions that a member now owns."""
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
        """Note that the coordinator confirmed these partitions to a member of the consumer protocol.

        `requested_at` is the value of `response_count` when the member sent its heartbeat. Raises Violation
        if the coordinator had already confirmed a later owner of one of these partitions at that time.
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
        """Note that a member sends an OffsetCommit request."""
        self._committed_of(tp).unacknowledged.add((generation, offset))

    def on_commit_ack(self, tp: TopicPartition, generation: int, offset: int) -> None:
        """Note that an OffsetCommit request was acknowledged."""
        committed = self._committed_of(tp)
        if generation >= committed.generation:
            committed.offset, committed.generation = offset, generation
            committed.unacknowledged.discard((generation, offset))

    def on_offset_fetched(self, member: str, tp: TopicPartition, generation: int, offset: int) -> None:
        """Check the offset that a member fetched for a newly assigned partition.

        Raises Violation unless the offset is the last acknowledged one or from a commit without a response.
        """
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
        """Return why the group has not consumed and committed all records, or None if it has."""
        ownership = {tp for _, partitions in self.ownership.values() for tp in partitions}
        for tp in self.partitions:
            if tp not in ownership:
                return f"no member of {self.name} has {tp}"
            end = self._oracle.committed_in(tp).end
            if end and self._committed_of(tp).offset < end:
                return f"{self.name} has committed {self._committed_of(tp).offset} of {end} in {tp}"
        return None
