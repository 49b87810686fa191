"""ISR changes: the leader of a partition proposes them with AlterPartition, and the controller decides.

KIP-497, KIP-841, KIP-903. A broker has at most one AlterPartition request in flight. The request carries all
pending changes. If a request fails, the broker sends it again after a pause, together with new changes. The
response has a result for each partition. The leader does not assume that a change was applied or rejected
before the response arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from kwire.broker.metadata.image import RECOVERED
from kwire.host.host import Host
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import TopicIdPartition, Uuid

RETRY_MS = 50
"""The pause before a failed request is sent again, in ms."""


class IsrChange(NamedTuple):
    """The ISR that the leader of a partition proposes, and the epochs on which the proposal is based."""

    topic_id: Uuid
    partition_index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]
    """Broker ids, each with the broker epoch of the broker's last Fetch, or -1 if that epoch is unknown."""
    leader_recovery_state: int = RECOVERED


class IsrChangeResult(NamedTuple):
    """The result of an ISR change: the partition's state in the metadata, or an error."""

    error: ErrorCode
    leader_id: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    partition_epoch: int = -1


OnIsrChanged = Callable[[IsrChangeResult], None]


class IsrController(Protocol):
    """The active controller, as partition leaders see it."""

    def alter_isr(
        self,
        changes: Sequence[IsrChange],
        done: Callable[[Mapping[TopicIdPartition, IsrChangeResult] | ApiError], None],
    ) -> None:
        """Submit the changes; `done` is called once, and never before this method returns."""


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
"""Errors after which a change stays pending: the leader will receive the controller's newer state with the
metadata."""

NOT_APPLIED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""Errors after which a change is dropped: the controller did not and will not apply it."""


class AlterPartitionManager:
    """The pending ISR changes of all partitions that one broker leads."""

    def __init__(self, host: Host, controller: IsrController) -> None:
        self._host = host
        self._controller = controller
        self._pending: dict[TopicIdPartition, tuple[IsrChange, OnIsrChanged]] = {}
        self._in_flight = False
        self.failed_updates = 0
        """ISR changes that the controller has rejected."""

    def submit(self, change: IsrChange, on_changed: OnIsrChanged) -> None:
        """Submit a change; `on_changed` is called once, and never before this method returns.

        The result is OPERATION_NOT_ATTEMPTED if another change of the partition is pending.
        """
        key = change.topic_id, change.partition_index
        if key in self._pending:
            self._host.call_soon(partial(on_changed, IsrChangeResult(ErrorCode.OPERATION_NOT_ATTEMPTED)))
            return
        self._pending[key] = change, on_changed
        if not self._in_flight:
            # The request then also carries changes that other partitions submit in this turn of the event
            # loop.
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
            # The entry is deleted before the callback runs, so that the callback may submit the next change.
            del self._pending[key]
            self.failed_updates += found.error is not ErrorCode.NONE
            on_changed(found)
        if missing:
            self._host.internode_clock.schedule(RETRY_MS, self._send)
        elif self._pending:
            self._host.call_soon(self._send)
        else:
            self._in_flight = False
