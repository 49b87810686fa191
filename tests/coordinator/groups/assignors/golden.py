"""Writer of the data that `test_parity.py` reads; it needs Java.

Run `python -m tests.coordinator.groups.assignors.golden`. Each line has a group and the assignment that
Apache Kafka's assignor computes for it. Groups form chains: members join, leave and change their
subscriptions, topics are created, deleted and extended, and each group starts with the previous assignment.
"""

from __future__ import annotations

import json
import random
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parent / "data" / "kafka-4.3.1-assignments.jsonl"
CHAINS = 24
STEPS = 6
WRONG_HOMOGENEOUS_SHARE = 0.35
"""The share of groups with the wrong `homogeneous` flag, which Kafka may have from before a member joined."""

Owned = list[tuple[str, list[int]]]


class Shape(NamedTuple):
    """The maximum size of the groups of a chain and the similarity of their members."""

    members: int
    topics: int
    partitions: int
    is_homogeneous: bool
    static_share: float


class Member:
    """A member of the group."""

    def __init__(self, member_id: str, instance_id: str | None, topics: list[str]) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.topics = topics
        self.owned: Owned = []


class Chain:
    """A group that changes step by step."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.shape = Shape(
            members=rng.choice([1, 3, 6, 12, 12, 20]),
            topics=rng.choice([1, 2, 4, 7, 14]),
            partitions=rng.choice([1, 3, 7, 12, 40]),
            is_homogeneous=rng.random() < 0.5,
            static_share=rng.choice([0.0, 0.0, 0.3, 1.0]),
        )
        self.assignor = "range" if seed % 6 == 0 else "uniform"
        self.topics: dict[str, tuple[str, int]] = {}
        self.members: dict[str, Member] = {}
        self._next_number = 0
        for _ in range(rng.randint(1, self.shape.topics)):
            self._create_topic()
        for _ in range(rng.randint(1, self.shape.members)):
            self._join()

    def input_json(self) -> str:
        """Return the group as JSON for the Java program."""
        rows = [
            [member.id, member.instance_id, member.topics, member.owned] for member in self.members.values()
        ]
        subscriptions = {tuple(sorted(member.topics)) for member in self.members.values()}
        return json.dumps(
            {
                "assignor": self.assignor,
                "homogeneous": (len(subscriptions) <= 1) != (self._rng.random() < WRONG_HOMOGENEOUS_SHARE),
                "topics": [[name, topic_id, count] for name, (topic_id, count) in self.topics.items()],
                "members": rows,
            },
            separators=(",", ":"),
        )

    def step(self, assignment: Any) -> None:
        """Apply the assignment, then make random changes."""
        for member in self.members.values():
            member.owned = assignment.get(member.id, [])
        for _ in range(self._rng.randint(0, 3)):
            change = self._rng.random()
            if change < 0.35 and len(self.members) < self.shape.members:
                self._join()
            elif change < 0.6 and len(self.members) > 1:
                self._leave(self._rng.choice(list(self.members.values())))
            elif change < 0.7:
                name = self._rng.choice(list(self.topics))
                topic_id, count = self.topics[name]
                self.topics[name] = topic_id, count + self._rng.randint(1, 5)
            elif change < 0.85 and len(self.topics) < self.shape.topics:
                self._create_topic()
                self._change_homogeneous_subscription()
            elif change < 0.9 and len(self.topics) > 1:
                del self.topics[self._rng.choice(list(self.topics))]
            elif self.shape.is_homogeneous:
                self._change_homogeneous_subscription()
            else:
                member = self._rng.choice(list(self.members.values()))
                member.topics = self._some_topics()

    def _create_topic(self) -> None:
        self._next_number += 1
        topic_id = urlsafe_b64encode(self._rng.randbytes(16)).decode().rstrip("=")
        self.topics[f"topic-{self._next_number}"] = topic_id, self._rng.randint(1, self.shape.partitions)

    def _join(self, instance_id: str | None = None) -> None:
        self._next_number += 1
        if instance_id is None and self._rng.random() < self.shape.static_share:
            instance_id = f"instance-{self._next_number % 100}"
        topics = self._some_topics()
        if self.shape.is_homogeneous:
            topics = next((member.topics for member in self.members.values()), topics)
        member_id = urlsafe_b64encode(self._rng.randbytes(9)).decode()
        self.members[member_id] = Member(member_id, instance_id, topics)

    def _leave(self, member: Member) -> None:
        del self.members[member.id]
        if member.instance_id is not None and self._rng.random() < 0.7:
            # The static member returns at once and keeps its assignment.
            self._join(member.instance_id)
            list(self.members.values())[-1].owned = member.owned

    def _some_topics(self) -> list[str]:
        known = [*self.topics, "no-such-topic"]
        return self._rng.sample(known, self._rng.randint(0 if self._rng.random() < 0.1 else 1, len(known)))

    def _change_homogeneous_subscription(self) -> None:
        if self.shape.is_homogeneous:
            topics = self._some_topics()
            for member in self.members.values():
                member.topics = topics


def write() -> None:
    """Compute the assignments of all chains with Java, step by step."""
    from interop.java_outputs import java_outputs

    chains = [Chain(seed) for seed in range(CHAINS)]
    lines: list[str] = []
    for _ in range(STEPS):
        groups_json = [chain.input_json() for chain in chains]
        for chain, group_json, assignment in zip(
            chains, groups_json, java_outputs("Assignments", groups_json), strict=True
        ):
            lines.append(f"{group_json}\t{assignment}\n")
            chain.step(json.loads(assignment))
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    write()
