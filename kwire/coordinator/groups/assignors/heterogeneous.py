"""The `uniform` assignor for groups whose members subscribe to different topics. KIP-848, KAFKA-17306.

Members keep their partitions of topics that they still subscribe to. Free partitions go, topic by topic, to
the subscriber with the fewest partitions. Then, again topic by topic, partitions move from the subscriber
with the most partitions to the subscriber with the fewest. This ends when a round over all topics moves no
partition, or after `MAX_ROUNDS` rounds. Ties are decided by the order of members. Topics with the most
partitions per subscriber come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kwire.coordinator.groups.assignors.spec import Assignment, GroupSpec

MAX_ROUNDS = 16
"""The maximum number of rounds, as in Kafka. Each round roughly halves the imbalance."""

UNASSIGNED = -1


def assign_heterogeneous(spec: GroupSpec, topic_ids: Collection[bytes]) -> Assignment:
    """Return the partitions by member and topic id. All topics in `topic_ids` must exist."""
    table = _PartitionTable(spec, topic_ids)
    table.assign_unassigned()
    table.balance()
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in own.items()}
        for member_id, own in zip(spec.members, table.owned, strict=True)
    }


class _PartitionTable:
    """The owner of each partition. A member is identified by its index in the group's order."""

    def __init__(self, spec: GroupSpec, topic_ids: Collection[bytes]) -> None:
        self._counts = spec.partition_counts
        self._owners = {topic_id: [UNASSIGNED] * self._counts[topic_id] for topic_id in topic_ids}
        self._subscribers: dict[bytes, list[int]] = {topic_id: [] for topic_id in topic_ids}
        self._sizes = [0] * len(spec.members)
        self.owned: list[dict[bytes, set[int]]] = []
        for index, member in enumerate(spec.members.values()):
            for topic_id in member.subscribed:
                self._subscribers[topic_id].append(index)
            own = {
                topic_id: set(partitions)
                for topic_id, partitions in member.assigned.items()
                if topic_id in member.subscribed
            }
            for topic_id, partitions in own.items():
                for partition in partitions:
                    self._owners[topic_id][partition] = index
                self._sizes[index] += len(partitions)
            self.owned.append(own)

    def assign_unassigned(self) -> None:
        """Assign every free partition to the subscriber of its topic with the fewest partitions."""
        balancer = _MemberBalancer(self._sizes)
        free = {
            topic_id: [partition for partition, owner in enumerate(owners) if owner == UNASSIGNED]
            for topic_id, owners in self._owners.items()
        }
        for topic_id in self._sorted(topic_id for topic_id, partitions in free.items() if partitions):
            balancer.initialize(self._subscribers[topic_id])
            for partition in free[topic_id]:
                self._move(topic_id, partition, balancer.next_least_loaded())

    def balance(self) -> None:
        """Move partitions until a round over all topics moves none, for at most `MAX_ROUNDS` rounds."""
        balancer = _MemberBalancer(self._sizes)
        topics = self._sorted(
            topic_id for topic_id, subscribers in self._subscribers.items() if len(subscribers) > 1
        )
        last_moved: bytes | None = None
        for _ in range(MAX_ROUNDS):
            for topic_id in topics:
                if topic_id == last_moved:
                    return
                if self._balance_topic(topic_id, balancer) or last_moved is None:
                    last_moved = topic_id

    def _balance_topic(self, topic_id: bytes, balancer: _MemberBalancer) -> bool:
        """Balance the subscribers of one topic as far as its partitions allow.

        Returns True if a partition was moved.
        """
        if balancer.initialize(self._subscribers[topic_id]) <= 1:
            return False
        movable: dict[int, list[int]] = {}
        for partition, owner in enumerate(self._owners[topic_id]):
            movable.setdefault(owner, []).append(partition)
        has_moved = False
        while not balancer.is_balanced:
            source = balancer.next_most_loaded()
            while source is not None and not movable.get(source):
                balancer.exclude_most_loaded()
                source = balancer.next_most_loaded()
            if source is None:
                break
            partition = movable[source].pop()
            target = balancer.next_least_loaded()
            if balancer.is_balanced:
                break
            self._move(topic_id, partition, target)
            has_moved = True
        return has_moved

    def _move(self, topic_id: bytes, partition: int, target: int) -> None:
        source = self._owners[topic_id][partition]
        if source != UNASSIGNED:
            own = self.owned[source]
            own[topic_id].remove(partition)
            if not own[topic_id]:
                del own[topic_id]
            self._sizes[source] -= 1
        self.owned[target].setdefault(topic_id, set()).add(partition)
        self._owners[topic_id][partition] = target
        self._sizes[target] += 1

    def _sorted(self, topics: Iterable[bytes]) -> list[bytes]:
        def rank(topic_id: bytes) -> tuple[float, int, bytes]:
            subscribers = len(self._subscribers[topic_id])
            return -self._counts[topic_id] / subscribers, subscribers, topic_id

        return sorted(topics, key=rank)


class _MemberBalancer:
    """A topic's subscribers in order of their number of partitions, and the next source and target of a move.

    Targets are a range of subscribers that starts at the left, at the fewest partitions. They get partitions
    in turn. The range grows to the right when the targets have as many partitions as the next subscriber.
    Sources are a range that ends at the right, at the most partitions. They give up partitions in turn, and
    the range grows to the left. A source without partitions of this topic is excluded: it is swapped with the
    last source.
    """

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._members: list[int] = []

    def initialize(self, subscribers: list[int]) -> int:
        """Set the subscribers. Returns the difference between their most and fewest partitions."""
        self._members = sorted(subscribers, key=lambda index: (self._sizes[index], index))
        least, most = self._sizes[self._members[0]], self._sizes[self._members[-1]]
        self._targets_end = 0
        self._targets_level = least - 1
        self._next_target = 0
        self._sources_start = self._sources_end = len(self._members)
        self._sources_level = most + 1
        self._next_source = len(self._members) - 1
        return most - least

    @property
    def is_balanced(self) -> bool:
        """Whether another move would not improve the balance."""
        return self._sources_level - self._targets_level <= 1

    def next_least_loaded(self) -> int:
        """Return the member that gets the next partition, and count that partition."""
        if self._next_target >= self._targets_end:
            self._targets_level += 1
            while (
                self._targets_end < len(self._members)
                and self._sizes[self._members[self._targets_end]] == self._targets_level
            ):
                self._targets_end += 1
            self._next_target = 0
        self._next_target += 1
        return self._members[self._next_target - 1]

    def next_most_loaded(self) -> int | None:
        """Return the member that gives up the next partition, or None if no source is left."""
        if self._next_source < self._sources_start:
            if 0 < self._sources_start >= self._sources_end:
                # All sources were excluded. Continue with the next member, whatever its number of partitions.
                self._sources_level = self._sizes[self._members[self._sources_start - 1]]
            else:
                self._sources_level -= 1
            while (
                self._sources_start > 0
                and self._sizes[self._members[self._sources_start - 1]] == self._sources_level
            ):
                self._sources_start -= 1
            self._next_source = self._sources_end - 1
        if self._next_source < 0:
            return None
        self._next_source -= 1
        return self._members[self._next_source + 1]

    def exclude_most_loaded(self) -> None:
        """Exclude the member that `next_most_loaded` returned last."""
        last = self._sources_end - 1
        named = self._next_source + 1
        self._members[named], self._members[last] = self._members[last], self._members[named]
        self._sources_end = last
