"""What the group coordinator asks of the broker that it runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from kwire.errors import ApiError

OFFSETS_TOPIC = "__consumer_offsets"


class StatePorts(Protocol):
    """The topic that holds a coordinator's state, as the coordinator sees it."""

    def append(self, index: int, data: bytearray, on_committed: Callable[[ApiError | None], None]) -> None:
        """Append one record batch to a partition of the topic.

        `on_committed` is called exactly once, never inside this call: with None when the batch is committed,
        or with why it was lost. Raises ApiError where nothing was appended.
        """

    def stored_batches(self, index: int) -> Iterator[memoryview]:
        """Every batch of a partition of the topic, from its log start on, in offset order.

        Raises ApiError where the partition is not here or cannot be read.
        """

    def partition_count(self) -> int | None:
        """How many partitions the topic has; None while there is no such topic."""

    def leader(self, index: int) -> int | None:
        """The id of the broker that leads a partition; None while there is none."""

    def create_topic(self) -> None:
        """Ask for the topic to be created. Returns at once, and may be called again meanwhile."""
