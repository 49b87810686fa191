"""What the group coordinator asks of the broker that it runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from kwire.wire.errors import ApiError
from kwire.wire.named_tuple import NamedTuple


class StatePorts(Protocol):
    """The topic that holds a coordinator's state, as the coordinator sees it."""

    def append(self, index: int, data: bytearray, on_committed: Callable[[ApiError | None], None]) -> None:
        """Append one record batch to a partition of the topic.

        `on_committed` is called exactly once, never inside this call: with None when the batch is committed,
        or with why it was lost. Raises ApiError where nothing was appended.
        """

    def max_batch_bytes(self, index: int) -> int:
        """How large a batch may be that is appended now. Raises ApiError where any would be refused."""

    def stored_batches(self, index: int) -> Iterator[memoryview]:
        """Every batch of a partition of the topic, from its log start to its end, in offset order.

        Raises ApiError where the partition is not led here or cannot be read.
        """

    def when_committed(self, index: int, on_committed: Callable[[ApiError | None], None]) -> None:
        """Call, maybe at once, when all that a partition's log has now is committed, or why it was lost.

        Raises ApiError where the partition is not led here.
        """

    def partition_count(self) -> int | None:
        """How many partitions the topic has; None while there is no such topic."""

    def leader(self, index: int) -> int | None:
        """The id of the broker that leads a partition; None while there is none."""

    def create_topic(self) -> None:
        """Ask for the topic to be created. Returns at once, and may be called again meanwhile."""


class Topic(NamedTuple):
    """A topic as consumer groups see it."""

    topic_id: bytes
    name: str
    partition_count: int


class TopicsView(Protocol):
    """The topics of the cluster, as they are now."""

    @property
    def version(self) -> int:
        """The version of the metadata; it only rises."""

    def by_name(self, name: str) -> Topic | None:
        """The topic of this name, if there is one."""

    def by_id(self, topic_id: bytes) -> Topic | None:
        """The topic with this id, if there is one."""

    def names(self) -> Iterable[str]:
        """The names of all topics."""

    def racks(self, topic: Topic) -> Sequence[Sequence[str]]:
        """For each partition of a topic the racks that have a replica of it."""


class GroupSettings(Protocol):
    """What consumer groups go by: settings of their own, and for the others those of the broker."""

    def session_timeout_ms(self, group_id: str) -> int:
        """How long a member may be silent."""

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often a member is to be heard of."""

    def assignment_interval_ms(self, group_id: str) -> int:
        """How long a target assignment lasts at least."""
