"""What the transaction coordinator asks of the broker that it runs in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kwire.coordinator.ports import StatePorts
from kwire.coordinator.transactions.state_machine import TransactionMarker
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import TopicPartition


class TransactionPorts(StatePorts, Protocol):
    """The broker as the transaction coordinator sees it. Implemented by `broker.transaction_ports`."""

    def next_producer_id(self) -> int:
        """A producer id that nobody has had. ApiError COORDINATOR_LOAD_IN_PROGRESS: none is at hand yet."""

    def transaction_version(self) -> int:
        """The level of the feature transaction.version in the cluster."""

    def write_markers(
        self,
        partitions: Collection[TopicPartition],
        marker: TransactionMarker,
        coordinator_epoch: int,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Write a marker into the log of each of these partitions.

        Each broker that leads some of them is asked for all of those at once. `done` is called with what it
        says of each, maybe inside this call; of every partition it hears exactly once.
        """
