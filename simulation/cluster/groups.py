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
class Progress:
    """How far a group has come in a partition."""

    offset: int = NOTHING
    generation: int = NOTHING
    """Of who was told that."""
    unknown: set[tuple[int, int]] = field(default_factory=set)
    """Generations and offsets that were sent, and may be committed or not, now or later."""


class Group:
    """See the module."""

    def __init__(
        self, name: str, ledger: Oracle, places: list[TopicPartition], note: Callable[[str], None]
    ) -> None:
        """`places` are those that it reads; they may become more."""
        self.name = name
        self.places = places
        self.is_over = False
        """Whether its members are to leave."""
        self.held: dict[str, tuple[int, frozenset[TopicPartition]]] = {}
        """What each member holds, and in which generation, as far as it knows itself."""
        self._ledger = ledger
        self._note = note
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._progress: dict[TopicPartition, Progress] = {}
        self._confirmed: dict[TopicPartition, list[tuple[str, int]]] = {}
        """Of each partition who was let go on with it, one after the other, and when."""
        self.moment = 0
        """Counts what members are told."""

    # --- who has what

    def given(self, member: str, generation: int, places: Collection[TopicPartition]) -> None:
        """A member of the classic protocol has its assignment. Violation where somebody else has it, too."""
        for place in places:
            owner = self._owners.setdefault((generation, place), member)
            if owner != member:
                raise Violation(f"{place} is given to {owner} and {member} in generation {generation}")
        self.holds(member, generation, places)

    def holds(self, member: str, generation: int, places: Collection[TopicPartition]) -> None:
        """A member goes on with these."""
        now = frozenset(places)
        before = self.held.get(member, (NOTHING, frozenset()))[1]
        if now != before:
            when = f"in generation {generation}" if generation >= 0 else "any more"
            self._note(f"{member} has {', '.join(map(str, sorted(now))) or 'nothing'} {when}")
        for place in before - now:
            self._confirmed[place] = [one for one in self._confirmed[place] if one[0] != member]
        for place in now - before:
            self._confirmed.setdefault(place, [])
        self.held[member] = generation, now

    def gives_up(self, member: str) -> None:
        """A member is out, or gone."""
        if member in self.held:
            self.holds(member, *(NOTHING, ()))
            del self.held[member]

    def confirmed(self, member: str, asked_at: int, places: Collection[TopicPartition]) -> None:
        """The coordinator has let a member of the consumer protocol go on, who asked with these, after that
        moment, or is given them. Violation where it had let it before, and in between somebody else.
        """
        self.moment += 1
        for place in places:
            told = self._confirmed[place]
            if told and (told[-1][0] == member or told[-1][1] > asked_at):
                continue
            if any(one == member for one, _ in told):
                raise Violation(f"{place} is had by {member} and {told[-1][0]} at once")
            told.append((member, self.moment))

    # --- how far it has come

    def sends(self, place: TopicPartition, generation: int, offset: int) -> None:
        """A member is about to commit."""
        self._of(place).unknown.add((generation, offset))

    def committed(self, place: TopicPartition, generation: int, offset: int) -> None:
        """A member was told that this is committed."""
        progress = self._of(place)
        if generation >= progress.generation:
            progress.offset, progress.generation = offset, generation
            progress.unknown.discard((generation, offset))

    def found(self, member: str, place: TopicPartition, generation: int, offset: int) -> None:
        """A member that begins with a partition was told this. Violation where it cannot be."""
        progress = self._of(place)
        if generation < progress.generation:
            return  # it is told what was so before, and will learn that it is not of the group any more
        possible = {progress.offset, *(each for _, each in progress.unknown)}
        if offset not in possible:
            raise Violation(
                f"{member} is told in generation {generation} that {self.name} is at {offset} of {place}, "
                f"where {progress.offset} was acknowledged in {progress.generation}, and nobody knows of "
                f"{sorted(progress.unknown)}"
            )
        progress.offset, progress.generation = offset, generation
        progress.unknown = {one for one in progress.unknown if one[0] >= generation}

    def _of(self, place: TopicPartition) -> Progress:
        return self._progress.setdefault(place, Progress())

    # --- at the end

    def what_is_missing(self) -> str | None:
        """Why the group has not come to the end of all that there is; None where it has."""
        held = {place for _, places in self.held.values() for place in places}
        for place in self.places:
            if place not in held:
                return f"nobody of {self.name} reads {place}"
            end = self._ledger.committed_in(place).end
            if end and self._of(place).offset < end:
                return f"{self.name} is at {self._of(place).offset} of {end} in {place}"
        return None
