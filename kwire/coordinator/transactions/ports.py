"""Interfaces of the broker that the transaction coordinator uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kwire.coordinator.ports import StatePorts
from kwire.coordinator.transactions.state_machine import TransactionMarker
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import TopicPartition


class TransactionPorts(StatePorts, Protocol):
    """The broker's services for the transaction coordinator, from `broker.node.transaction_ports`."""

    def next_producer_id(self) -> int:
        """Return an unused producer id.

        Raises ApiError COORDINATOR_LOAD_IN_PROGRESS if none is available yet.
        """

    def transaction_version(self) -> int:
        """Return the cluster's level of the feature transaction.version."""

    def write_markers(
        self,
        partitions: Collection[TopicPartition],
        marker: TransactionMarker,
        coordinator_epoch: int,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Write a marker to the log of each of these partitions.

        Partitions with the same leader share one request. `done` is called with the error codes by partition,
        in one or several calls, and possibly inside this call. Each partition is reported exactly once.
        """
