"""A group of consumers as its members were told that it is: who has what, and how far they have come.

- A partition has one owner in a generation. In a group of the consumer protocol, where members come to their
  epochs one by one, nobody is told to go on with a partition while somebody else is, who had it before.
- Whoever takes a partition over begins where the group is: at the last offset that was acknowledged, or at
  one that nobody knows of whether it was committed. What a generation of before has still under way does not
  count once a later one has asked.
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
    """How far a group has come in a partition."""

    offset: int = NOTHING
    generation: int = NOTHING
    """Of who was told that."""
    unacknowledged: set[tuple[int, int]] = field(default_factory=set)
    """Generations and offsets that were sent, and may be committed or not, now or later."""


class GroupOracle:
    """See the module."""

    def __init__(
        self, name: str, oracle: Oracle, partitions: list[TopicPartition], note: Callable[[str], None]
    ) -> None:
        """`places` are those that it reads; they may become more."""
        self.name = name
        self.partitions = partitions
        self.is_finished = False
        """Whether its members are to leave."""
        self.ownership: dict[str, tuple[int, frozenset[TopicPartition]]] = {}
        """What each member holds, and in which generation, as far as it knows itself."""
        self._oracle = oracle
        self._note = note
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._confirmed_owners: dict[TopicPartition, list[tuple[str, int]]] = {}
        """Of each partition who was let go on with it, one after the other, and when."""
        self.response_count = 0
        """Counts what members are told."""

    # --- who has what

    def on_assignment(self, member: str, generation: int, partitions: Collection[TopicPartition]) -> None:
        """A member of the classic protocol has its assignment. Violation where somebody else has it, too."""
        for tp in partitions:
            owner = self._owners.setdefault((generation, tp), member)
            if owner != member:
                raise Violation(f"{tp} is given to {owner} and {member} in generation {generation}")
        self.on_ownership(member, generation, partitions)

    def on_ownership(self, member: str, generation: int, partitions: Collection[TopicPartition]) -> None:
        """A member goes on with these."""
        now = frozenset(partitions)
        before = self.ownership.get(member, (NOTHING, frozenset()))[1]
        if now != before:
            when = f"in generation {generation}" if generation >= 0 else "any more"
            self._note(f"{member} has {', '.join(map(str, sorted(now))) or 'nothing'} {when}")
        for tp in before - now:
            self._confirmed_owners[tp] = [one for one in self._confirmed_owners[tp] if one[0] != member]
        for tp in now - before:
            self._confirmed_owners.setdefault(tp, [])
        self.ownership[member] = generation, now

    def on_member_gone(self, member: str) -> None:
        """A member is out, or gone."""
        if member in self.ownership:
            self.on_ownership(member, *(NOTHING, ()))
            del self.ownership[member]

    def on_heartbeat_response(
        self, member: str, requested_at: int, partitions: Collection[TopicPartition]
    ) -> None:
        """The coordinator has let a member of the consumer protocol go on, who asked with these, after that
        moment, or is given them. Violation where it had let it before, and in between somebody else.
        """
        self.response_count += 1
        for tp in partitions:
            owners = self._confirmed_owners[tp]
            if owners and (owners[-1][0] == member or owners[-1][1] > requested_at):
                continue
            if any(one == member for one, _ in owners):
                raise Violation(f"{tp} is had by {member} and {owners[-1][0]} at once")
            owners.append((member, self.response_count))

    # --- how far it has come

    def on_commit_sent(self, tp: TopicPartition, generation: int, offset: int) -> None:
        """A member is about to commit."""
        self._committed_of(tp).unacknowledged.add((generation, offset))

    def on_commit_ack(self, tp: TopicPartition, generation: int, offset: int) -> None:
        """A member was told that this is committed."""
        committed = self._committed_of(tp)
        if generation >= committed.generation:
            committed.offset, committed.generation = offset, generation
            committed.unacknowledged.discard((generation, offset))

    def on_offset_fetched(self, member: str, tp: TopicPartition, generation: int, offset: int) -> None:
        """A member that begins with a partition was told this. Violation where it cannot be."""
        committed = self._committed_of(tp)
        if generation < committed.generation:
            return  # it is told what was so before, and will learn that it is not of the group any more
        possible = {committed.offset, *(each for _, each in committed.unacknowledged)}
        if offset not in possible:
            raise Violation(
                f"{member} is told in generation {generation} that {self.name} is at {offset} of {tp}, "
                f"where {committed.offset} was acknowledged in {committed.generation}, and nobody knows of "
                f"{sorted(committed.unacknowledged)}"
            )
        committed.offset, committed.generation = offset, generation
        committed.unacknowledged = {one for one in committed.unacknowledged if one[0] >= generation}

    def _committed_of(self, tp: TopicPartition) -> CommittedOffset:
        return self._committed.setdefault(tp, CommittedOffset())

    # --- at the end

    def why_not_complete(self) -> str | None:
        """Why the group has not come to the end of all that there is; None where it has."""
        ownership = {tp for _, partitions in self.ownership.values() for tp in partitions}
        for tp in self.partitions:
            if tp not in ownership:
                return f"nobody of {self.name} reads {tp}"
            end = self._oracle.committed_in(tp).end
            if end and self._committed_of(tp).offset < end:
                return f"{self.name} is at {self._committed_of(tp).offset} of {end} in {tp}"
        return None
