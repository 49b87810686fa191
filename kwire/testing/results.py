"""Return types of the methods of `Kafka`."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.wire.named_tuple import NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """A record with its topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class TopicContents(NamedTuple):
    """All committed records of a topic, and what decides which records are missing."""

    records: list[Record]
    log_starts: dict[TopicPartition, int]
    is_compacted: bool
    has_create_time: bool
    """Whether the records have the timestamps that the clients have set."""


class Token(NamedTuple):
    """A delegation token."""

    id: str
    password: str
    """The token's HMAC in base64."""
    owner: str
    expires_ms: int
    """The time in ms since 1970 when the token expires unless it is renewed."""
    max_ms: int
    """The latest time in ms since 1970 to which the token can be renewed."""

    def __repr__(self) -> str:
        return f"Token({self.id}, [hidden], owner={self.owner}, expires_ms={self.expires_ms})"


class Member(NamedTuple):
    """A member of a consumer group."""

    id: str
    client_id: str
    partitions: frozenset[TopicPartition]
    """The assigned partitions."""


class Group(NamedTuple):
    """A consumer group. A group that does not exist has the state "Dead" and no members."""

    state: str
    members: list[Member]
