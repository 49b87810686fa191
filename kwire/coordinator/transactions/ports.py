"""Interfaces of the broker that the transaction coordinator uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kwire.coordinator.ports import StatePorts
from kwire.coordinator.transactions.state_machine import ClusterPorts, TransactionMarker
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import TopicPartition


class TransactionPorts(StatePorts, ClusterPorts, Protocol):
    """The broker's services for the transaction coordinator, from `broker.node.transaction_ports`."""

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
