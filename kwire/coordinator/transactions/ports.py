"""What the transaction coordinator asks of the broker that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kwire.coordinator.machine import TopicPartition
from kwire.coordinator.ports import StatePorts
from kwire.coordinator.transactions.machine import Ending
from kwire.wire.errors import ApiError


class TransactionPorts(StatePorts, Protocol):
    """The broker as the transaction coordinator sees it. Implemented by `broker.transaction_ports`."""

    def next_producer_id(self) -> int:
        """A producer id that nobody has had. ApiError COORDINATOR_LOAD_IN_PROGRESS: none is at hand yet."""

    def transaction_version(self) -> int:
        """The level of the feature transaction.version in the cluster."""

    def write_marker(
        self,
        partition: TopicPartition,
        ending: Ending,
        coordinator_epoch: int,
        done: Callable[[ApiError | None], None],
    ) -> None:
        """Write one marker into the log of a partition. `done` is called exactly once, maybe inside."""
