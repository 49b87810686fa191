"""The `uniform` assignor for groups whose members want different topics. KIP-848, KAFKA-17306.

Members keep what they had of topics they still want. What is free goes, topic by topic, to whichever
subscriber has least; then, again topic by topic, partitions move from the subscriber with most to the one
with least, until no topic's subscribers differ by more than one, or the rounds are used up. Ties go by the
members' order, and topics by partitions a subscriber, those that leave little choice first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kwire.coordinator.groups.assignors.spec import Assignment, GroupSpec

MOST_ROUNDS = 16
"""With overlapping subscriptions each round about halves the imbalance; Kafka's limit."""

NOBODY = -1


def assign_heterogeneous(spec: GroupSpec, wanted: Collection[bytes]) -> Assignment:
    """Partitions by member and topic id; `wanted` topics exist."""
    table = _Table(spec, wanted)
    table.hand_out()
    table.balance()
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in own.items()}
        for member_id, own in zip(spec.members, table.owned, strict=True)
    }


class _Table:
    """Who has which partition. Members are numbers here: their places in the order."""

    def __init__(self, spec: GroupSpec, wanted: Collection[bytes]) -> None:
        self._counts = spec.partition_counts
        self._owners = {topic_id: [NOBODY] * self._counts[topic_id] for topic_id in wanted}
        self._subscribers: dict[bytes, list[int]] = {topic_id: [] for topic_id in wanted}
        self._sizes = [0] * len(spec.members)
        self.owned: list[dict[bytes, set[int]]] = []
        for place, member in enumerate(spec.members.values()):
            for topic_id in member.subscribed:
                self._subscribers[topic_id].append(place)
            own = {
                topic_id: set(partitions)
                for topic_id, partitions in member.assigned.items()
                if topic_id in member.subscribed
            }
            for topic_id, partitions in own.items():
                for partition in partitions:
                    self._owners[topic_id][partition] = place
                self._sizes[place] += len(partitions)
            self.owned.append(own)

    def hand_out(self) -> None:
        """Give every free partition to the subscriber with least."""
        stairs = _Stairs(self._sizes)
        free = {
            topic_id: [partition for partition, owner in enumerate(owners) if owner == NOBODY]
            for topic_id, owners in self._owners.items()
        }
        for topic_id in self._sorted(topic_id for topic_id, partitions in free.items() if partitions):
            stairs.set_up(self._subscribers[topic_id])
            for partition in free[topic_id]:
                self._give(topic_id, partition, stairs.poorest())

    def balance(self) -> None:
        """Move partitions until a whole round over the topics has moved none."""
        stairs = _Stairs(self._sizes)
        topics = self._sorted(
            topic_id for topic_id, subscribers in self._subscribers.items() if len(subscribers) > 1
        )
        last_moved: bytes | None = None
        for _ in range(MOST_ROUNDS):
            for topic_id in topics:
                if topic_id == last_moved:
                    return
                if self._balance_topic(topic_id, stairs) or last_moved is None:
                    last_moved = topic_id

    def _balance_topic(self, topic_id: bytes, stairs: _Stairs) -> bool:
        """Even out one topic's subscribers as far as its partitions go; whether any has moved."""
        if stairs.set_up(self._subscribers[topic_id]) <= 1:
            return False
        to_give: dict[int, list[int]] = {}
        for partition, owner in enumerate(self._owners[topic_id]):
            to_give.setdefault(owner, []).append(partition)
        has_moved = False
        while not stairs.is_level:
            giver = stairs.richest()
            while giver is not None and not to_give.get(giver):
                stairs.pass_over_richest()
                giver = stairs.richest()
            if giver is None:
                break
            partition = to_give[giver].pop()
            taker = stairs.poorest()
            if stairs.is_level:
                break
            self._give(topic_id, partition, taker)
            has_moved = True
        return has_moved

    def _give(self, topic_id: bytes, partition: int, taker: int) -> None:
        giver = self._owners[topic_id][partition]
        if giver != NOBODY:
            own = self.owned[giver]
            own[topic_id].remove(partition)
            if not own[topic_id]:
                del own[topic_id]
            self._sizes[giver] -= 1
        self.owned[taker].setdefault(topic_id, set()).add(partition)
        self._owners[topic_id][partition] = taker
        self._sizes[taker] += 1

    def _sorted(self, topics: Iterable[bytes]) -> list[bytes]:
        def rank(topic_id: bytes) -> tuple[float, int, bytes]:
            subscribers = len(self._subscribers[topic_id])
            return -self._counts[topic_id] / subscribers, subscribers, topic_id

        return sorted(topics, key=rank)


class _Stairs:
    """A topic's subscribers by how much they have, and who takes and who gives next.

    Takers are a run of members from the left, all raised to one level in turn; the run grows to the right
    whenever its level reaches the next member's. Givers are a run from the right that is lowered likewise.
    Those that have nothing of this topic to give leave the givers by trading places with their last.
    """

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._members: list[int] = []

    def set_up(self, subscribers: list[int]) -> int:
        """Begin with a topic; how far its subscribers lie apart."""
        self._members = sorted(subscribers, key=lambda place: (self._sizes[place], place))
        least, most = self._sizes[self._members[0]], self._sizes[self._members[-1]]
        self._takers_end = 0
        self._takers_level = least - 1
        self._next_taker = 0
        self._givers_start = self._givers_end = len(self._members)
        self._givers_level = most + 1
        self._next_giver = len(self._members) - 1
        return most - least

    @property
    def is_level(self) -> bool:
        """Whether one more move would gain nothing."""
        return self._givers_level - self._takers_level <= 1

    def poorest(self) -> int:
        """Who takes the next partition; it is counted on that it does."""
        if self._next_taker >= self._takers_end:
            self._takers_level += 1
            while (
                self._takers_end < len(self._members)
                and self._sizes[self._members[self._takers_end]] == self._takers_level
            ):
                self._takers_end += 1
            self._next_taker = 0
        self._next_taker += 1
        return self._members[self._next_taker - 1]

    def richest(self) -> int | None:
        """Who gives the next partition; None where nobody is left that could."""
        if self._next_giver < self._givers_start:
            if 0 < self._givers_start >= self._givers_end:
                # All givers were passed over: begin again with whoever is next, however far below.
                self._givers_level = self._sizes[self._members[self._givers_start - 1]]
            else:
                self._givers_level -= 1
            while (
                self._givers_start > 0
                and self._sizes[self._members[self._givers_start - 1]] == self._givers_level
            ):
                self._givers_start -= 1
            self._next_giver = self._givers_end - 1
        if self._next_giver < 0:
            return None
        self._next_giver -= 1
        return self._members[self._next_giver + 1]

    def pass_over_richest(self) -> None:
        """Count no more on the giver that was named last."""
        last = self._givers_end - 1
        named = self._next_giver + 1
        self._members[named], self._members[last] = self._members[last], self._members[named]
        self._givers_end = last
