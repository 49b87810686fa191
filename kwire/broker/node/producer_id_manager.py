"""Producer ids, which the controller allocates to this broker in blocks. KIP-730.

A request does not wait for a block. If no block is available, the broker returns an error on which clients
retry, as for a coordinator that is still loading. As in Apache Kafka, the broker requests the first block for
the first producer, and each further block when 90% of the current one are used.
"""

from __future__ import annotations

from collections.abc import Callable

from kwire.broker.controller.commands import AllocateProducerIds, ProducerIdBlock
from kwire.broker.controller.port import ControllerPort
from kwire.host.host import Host, InternodeTime
from kwire.wire.errors import ApiError, ErrorCode

RETRY_BACKOFF_MS = 50
"""The pause before a retry after the controller has returned an error."""
PREFETCH_PERCENT = 90


class ProducerIdManager:
    """The producer ids of one broker. Each id is used at most once: unused ids are lost at a restart."""

    def __init__(
        self, controller: ControllerPort, host: Host, node_id: int, *, broker_epoch: Callable[[], int]
    ) -> None:
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._host = host
        self._logger = host.logger("kwire.transactions")
        self._node_id = node_id
        self._block = ProducerIdBlock(0, 0)
        self._allocated = 0
        """The number of used ids in the current block."""
        self._next_block: ProducerIdBlock | None = None
        self._in_flight = False
        self._retry_at_ms: InternodeTime | None = None

    def next(self) -> int:
        """Return an unused id. Raises ApiError COORDINATOR_LOAD_IN_PROGRESS until a block is available."""
        if self._allocated == self._block.size:
            if self._next_block is None:
                self._request_block()
                raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            self._block, self._next_block, self._allocated = self._next_block, None, 0
        if self._allocated == self._block.size * PREFETCH_PERCENT // 100:
            self._request_block()
        producer_id = self._block.first + self._allocated
        self._allocated += 1
        return producer_id

    def _request_block(self) -> None:
        is_early = (
            self._retry_at_ms is not None and self._host.internode_clock.monotonic_ms() < self._retry_at_ms
        )
        if self._in_flight or is_early:
            return
        self._in_flight = True
        command = AllocateProducerIds(self._node_id, self._broker_epoch())
        self._controller.submit(command, self._handle_reply)

    def _handle_reply(self, reply: ProducerIdBlock | ApiError) -> None:
        self._in_flight = False
        if isinstance(reply, ApiError):
            self._logger.warning(
                "Cannot get a block of producer ids from the controller, will retry: %s", reply.code.name
            )
            self._retry_at_ms = self._host.internode_clock.monotonic_ms() + RETRY_BACKOFF_MS
        else:
            self._next_block, self._retry_at_ms = reply, None
