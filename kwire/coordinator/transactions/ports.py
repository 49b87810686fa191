"""What the transaction coordinator asks of the broker that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from kwire.broker.metadata.names import TRANSACTION_STATE_TOPIC
from kwire.coordinator.ports import StatePorts
from kwire.coordinator.transactions.machine import Ending
from kwire.coordinator.transactions.transaction import Partition
from kwire.wire.errors import ApiError

TRANSACTIONS_TOPIC: Final = TRANSACTION_STATE_TOPIC


class TransactionPorts(StatePorts, Protocol):
    """The broker as the transaction coordinator sees it. Implemented by `broker.transaction_ports`."""

    def next_producer_id(self) -> int:
        """A producer id that nobody has had. ApiError COORDINATOR_LOAD_IN_PROGRESS: none is at hand yet."""

    def transaction_version(self) -> int:
        """The level of the feature transaction.version in the cluster."""

    def write_marker(
        self,
        partition: Partition,
        ending: Ending,
        coordinator_epoch: int,
        done: Callable[[ApiError | None], None],
    ) -> None:
        """Write one marker into the log of a partition. `done` is called exactly once, maybe inside."""
