"""How the ISR of led partitions changes: the leader asks, the controller decides. KIP-497, KIP-841, KIP-903.

One request is on its way at a time, with all that partitions want by then. A request that was not answered,
or was refused as a whole, is sent again after a while, with what else is wanted meanwhile. For each partition
the answer tells what has become of its change, and nobody assumes anything before.
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


class IsrChange(NamedTuple):
    """What the leader of a partition wants its ISR to be, and on top of what."""

    topic_id: Uuid
    partition_index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]
    """Broker ids, each with the broker epoch that it fetches with; -1 where that is not known."""
    leader_recovery_state: int = RECOVERED


class IsrChangeResult(NamedTuple):
    """What has become of it: the partition as the controller has it, or an error."""

    error: ErrorCode
    leader_id: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    partition_epoch: int = -1


TopicIdPartition = tuple[Uuid, int]
"""A partition, by topic id and index."""
OnIsrChanged = Callable[[IsrChangeResult], None]


class IsrController(Protocol):
    """The active controller, as leaders of partitions need it."""

    def alter_isr(
        self,
        changes: Sequence[IsrChange],
        done: Callable[[Mapping[TopicIdPartition, IsrChangeResult] | ApiError], None],
    ) -> None:
        """Ask for changes; `done` is called once, not before this returns."""


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
"""What the controller knows is newer than what the leader knows, which the metadata will tell it."""

NOT_APPLIED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""What the leader knows is right, and the change was not made, and never will be: the ISR is what it was."""


class AlterPartitionManager:
    """The changes that the partitions of one broker want."""

    def __init__(self, host: Host, controller: IsrController) -> None:
        self._host = host
        self._controller = controller
        self._pending: dict[TopicIdPartition, tuple[IsrChange, OnIsrChanged]] = {}
        self._in_flight = False

    def submit(self, change: IsrChange, on_changed: OnIsrChanged) -> None:
        """Have a change made; `told` is called once, not before this returns.

        OPERATION_NOT_ATTEMPTED: another one for the partition is on its way.
        """
        key = change.topic_id, change.partition_index
        if key in self._pending:
            self._host.call_soon(partial(on_changed, IsrChangeResult(ErrorCode.OPERATION_NOT_ATTEMPTED)))
            return
        self._pending[key] = change, on_changed
        if not self._in_flight:
            # What the same turn wants for other partitions goes with it.
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
            # First, so that who is told may want something else at once.
            del self._pending[key]
            on_changed(found)
        if missing:
            self._host.internode_clock.schedule(RETRY_MS, self._send)
        elif self._pending:
            self._host.call_soon(self._send)
        else:
            self._in_flight = False
