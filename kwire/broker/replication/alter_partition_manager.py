"""ISR changes: the leader of a partition proposes them with AlterPartition, and the controller decides.

KIP-497, KIP-841, KIP-903. One request is in flight at a time, with all pending changes of the broker. If a
request fails as a whole, it is sent again after a pause, together with new changes. The response carries a
result for each partition, and the leader assumes nothing before it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from kwire.broker.metadata.image import RECOVERED
from kwire.host.host import Host
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid

RETRY_MS = 50
"""The wait before a failed request is sent again."""


class IsrChange(NamedTuple):
    """The ISR that the leader of a partition proposes, and the state that the proposal is based on."""

    topic_id: Uuid
    partition_index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]
    """Broker ids, each with the broker epoch of its last Fetch; -1 if that is unknown."""
    leader_recovery_state: int = RECOVERED


class IsrChangeResult(NamedTuple):
    """The result of an ISR change: the partition's state in the metadata, or an error."""

    error: ErrorCode
    leader_id: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    partition_epoch: int = -1


TopicIdPartition = tuple[Uuid, int]
"""A partition as topic id and partition index."""
OnIsrChanged = Callable[[IsrChangeResult], None]


class IsrController(Protocol):
    """The active controller, as leaders of partitions use it."""

    def alter_isr(
        self,
        changes: Sequence[IsrChange],
        done: Callable[[Mapping[TopicIdPartition, IsrChangeResult] | ApiError], None],
    ) -> None:
        """Submit the changes; `done` is called once, and never before this returns."""


STAYS_PENDING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The controller has newer state than the leader, which the leader will receive with the metadata."""

NOT_APPLIED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The leader's state is current, but the controller did not and will not apply the change."""


class AlterPartitionManager:
    """The pending ISR changes of all partitions that one broker leads."""

    def __init__(self, host: Host, controller: IsrController) -> None:
        self._host = host
        self._controller = controller
        self._pending: dict[TopicIdPartition, tuple[IsrChange, OnIsrChanged]] = {}
        self._in_flight = False

    def submit(self, change: IsrChange, on_changed: OnIsrChanged) -> None:
        """Submit a change; `on_changed` is called once, and never before this returns.

        OPERATION_NOT_ATTEMPTED: another change of the partition is pending.
        """
        key = change.topic_id, change.partition_index
        if key in self._pending:
            self._host.call_soon(partial(on_changed, IsrChangeResult(ErrorCode.OPERATION_NOT_ATTEMPTED)))
            return
        self._pending[key] = change, on_changed
        if not self._in_flight:
            # Changes of other partitions in this turn go into the same request.
            self._in_flight = True
            self._host.call_soon(self._send)

    def _send(self) -> None:
        sent = list(self._pending.values())
        self._controller.alter_isr([change for change, _ in sent], partial(self._handle_response, sent))

    def _handle_response(
        self,
        sent: Sequence[tuple[IsrChange, OnIsrChanged]],
        response: Mapping[TopicIdPartition, IsrChangeResult] | ApiError,
    ) -> None:
        missing = False
        for change, on_changed in sent:
            key = change.topic_id, change.partition_index
            found = None if isinstance(response, ApiError) else response.get(key)
            if found is None:
                missing = True
                continue
            # First, so that the callback may submit the next change.
            del self._pending[key]
            on_changed(found)
        if missing:
            self._host.internode_clock.schedule(RETRY_MS, self._send)
        elif self._pending:
            self._host.call_soon(self._send)
        else:
            self._in_flight = False
