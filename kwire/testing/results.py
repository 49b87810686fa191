"""What a Kafka answers to a test: records, and who reads them."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.wire.named_tuple import NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """A partition by its topic and its number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """A record, and where it is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Token(NamedTuple):
    """A delegation token."""

    id: str
    password: str
    """Its HMAC in base64."""
    owner: str
    expires_ms: int
    """Until then it can be used, unless somebody renews it."""
    max_ms: int
    """Until then it can be renewed."""

    def __repr__(self) -> str:
        return f"Token({self.id}, [hidden], owner={self.owner}, expires_ms={self.expires_ms})"


class Member(NamedTuple):
    """A member of a group."""

    id: str
    client_id: str
    partitions: frozenset[TopicPartition]
    """What it is assigned."""


class Group(NamedTuple):
    """A group of consumers; one that nobody knows is "Dead", and has no members."""

    state: str
    members: list[Member]
