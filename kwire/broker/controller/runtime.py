"""The runtime of the active controller: it decides commands, and tells when what they come to holds.

A command is decided at once, on top of everything decided before it, committed or not. When its records are
committed the image that they make is current already; only then its response is released. A response without
records waits for what it was decided upon. When the lead is lost, what was decided and is not committed is
forgotten: whoever asked for it is told so, and asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from kwire.broker.controller.bootstrap import ABORT_REASON, activation_records
from kwire.broker.controller.commands import (
    BrokerHeartbeat,
    Command,
    ControllerResult,
    Fault,
    FenceBroker,
    OnDone,
    UpdateFeatures,
    UpgradeType,
)
from kwire.broker.controller.controller import Controller
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.log_messages import log_messages
from kwire.broker.controller.periodic_tasks import NO_PERIODIC_TASKS, PeriodicTasks, TaskPeriods
from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.features import KRAFT_VERSION, check_levels
from kwire.broker.metadata.publisher import MetadataPublisher
from kwire.broker.metadata.records import StoredRecord
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.records.metadata import AbortTransactionRecord, FeatureLevelRecord, NoOpRecord
from kwire.wire.registry import UnknownRecord
from kwire.wire.schema import Message

MAX_TIMER_DELAY_MS: Final = 1_000
"""A controller that comes so late to its own appointments was stopped, and has heard of nobody meanwhile."""


class LeaderLog(Protocol):
    """What an active controller asks of the quorum that it leads."""

    def append(self, records: Sequence[StoredRecord], delta: MetadataDelta, *, atomic: bool) -> int:
        """Append records; the offset of the last. ApiError, with nothing appended."""

    def raise_kraft_version(self, version: int, *, validate_only: bool) -> None:
        """Append what raises the version of the quorum's protocol. ApiError where it cannot be."""


class _PendingCommand(NamedTuple):
    """A decided command that waits for what it was decided upon, and its own records, to be committed."""

    offset: int
    response: Any
    on_done: OnDone[Any]


class ControllerRuntime:
    """The `ControllerPort` of the node that leads, and its `Leadership` of the quorum."""

    def __init__(
        self,
        controller: Controller,
        log: LeaderLog,
        publisher: MetadataPublisher,
        host: Host,
        *,
        heartbeats: BrokerHeartbeatManager,
        bootstrap: Callable[[], list[Message]],
        periods: TaskPeriods = NO_PERIODIC_TASKS,
    ) -> None:
        """`heartbeats` is this controller's alone. `bootstrap` tells the first records of a new cluster."""
        self._controller = controller
        self._log = log
        self._publisher = publisher
        self._host = host
        self._rng = host.random("controller")
        self._heartbeats = heartbeats
        self._session_check: Timer | None = None
        self._periodic = PeriodicTasks(host, periods, self.submit)
        self._bootstrap = bootstrap
        self._epoch = -1
        self._latest = publisher.image
        """The metadata with everything that is decided."""
        self._refusal: ErrorCode | None = ErrorCode.NOT_CONTROLLER
        """Why nothing is decided here now."""
        self._pending: deque[_PendingCommand] = deque()
        self._release_scheduled = False
        self._logger = host.logger("kwire.metadata")

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._refusal is None

    # --- leading

    def became_leader(self, epoch: int) -> None:
        """Begin to decide. A new cluster gets its first records; a transaction that was cut short is aborted.

        CorruptMetadata: the first records are of a release to come.
        """
        self._epoch = epoch
        self._latest = self._publisher.image
        self._refusal = None
        self._heartbeats.now_ms = self._host.internode_clock.monotonic_ms()
        self._heartbeats.activate(self._latest)
        is_open = self._publisher.is_transaction_open
        if self._publisher.is_empty:
            records = self._bootstrap()
            levels = [record for record in records if isinstance(record, FeatureLevelRecord)]
            check_levels({level.name: level.feature_level for level in levels})
            if any(isinstance(record, UnknownRecord) for record in records):
                raise CorruptMetadata("the first records of the cluster are of a release to come")
            min_insync_replicas = self._controller.defaults.min_insync_replicas
            self._append(activation_records(records, min_insync_replicas, is_transaction_open=is_open))
        elif is_open:
            self._logger.warning("metadata: aborting a transaction that was cut short")
            self._append([StoredRecord(AbortTransactionRecord(reason=ABORT_REASON))])
        self._periodic.start()
        self._watch_sessions()

    def resigned(self, reason: ApiError) -> None:
        """Forget what was decided and is not committed."""
        self._refusal = reason.code
        self._periodic.stop()
        if self._session_check is not None:
            self._session_check.cancel()
            self._session_check = None
        self._latest = self._publisher.image
        pending, self._pending = self._pending, deque()
        for command in pending:
            self._complete(command, reason)

    def committed(self, offset: int) -> None:
        """Release the replies that waited for no more than this."""
        while self._pending and self._pending[0].offset <= offset:
            command = self._pending.popleft()
            self._complete(command, command.response)

    def idle(self) -> None:
        """Write a record that changes nothing, for those who follow the log to see. KIP-835."""
        if self._refusal is None:
            self._append([StoredRecord(NoOpRecord())])

    def _complete(self, command: _PendingCommand, response: Any) -> None:
        try:
            command.on_done(response)
        except Exception:
            self._logger.exception("the answer to a command was not taken")

    # --- who lives

    def _watch_sessions(self) -> None:
        """See to it that the first session that can end is looked at then."""
        due_ms = None if self._session_check is not None else self._heartbeats.next_expiry_ms()
        if due_ms is not None:
            delay_ms = max(due_ms - self._host.internode_clock.monotonic_ms(), 0)
            self._session_check = self._host.internode_clock.schedule(
                delay_ms, lambda: self._check_sessions(due_ms)
            )

    def _check_sessions(self, due_ms: int) -> None:
        self._session_check = None
        now_ms = self._heartbeats.now_ms = self._host.internode_clock.monotonic_ms()
        if now_ms - due_ms > MAX_TIMER_DELAY_MS:
            self._heartbeats.restart_sessions()
        for broker in self._heartbeats.remove_expired_sessions(self._latest):
            # One after the other: each is decided on top of what became of those before it.
            self._logger.warning(
                "broker %d was not heard of for a whole session: it is fenced", broker.broker_id
            )
            self.submit(FenceBroker(broker.broker_id, broker.broker_epoch), lambda response: None)
        self._watch_sessions()

    # --- deciding

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Decide a command; `on_done` gets the response, or an ApiError, when its records are committed.

        `on_done` is never called before this returns.
        """
        if self._refusal is not None:
            refused = ApiError(self._refusal)
            self._host.call_soon(lambda: on_done(refused))
            return
        response: Any
        has_records = False
        self._heartbeats.now_ms = self._host.internode_clock.monotonic_ms()
        self._heartbeats.command_received(command)
        try:
            result = self._controller.handle(command, self._latest, self._rng, self._heartbeats)
            if isinstance(command, UpdateFeatures) and result.response is None:
                result = self._raise_kraft_version(command, result)
            response = result.response
            if result.records:
                before = self._latest
                self._append(result.records, atomic=result.atomic)
                for level, text in log_messages(command, result.records, before, self._controller.node_id):
                    self._logger.log(level, "%s", text)
                has_records = True
            self._heartbeats.command_decided(command, response, self._latest.offset)
            if isinstance(command, BrokerHeartbeat):
                self._watch_sessions()
        except ApiError as error:
            response = error
        self._pending.append(_PendingCommand(self._latest.offset, response, on_done))
        if not has_records and not self._release_scheduled:
            self._release_scheduled = True
            self._host.call_soon(self.release)

    def release(self) -> None:
        """Answer what was decided without records, and needs nothing to be committed any more."""
        self._release_scheduled = False
        self.committed(self._publisher.image.offset)

    def _raise_kraft_version(
        self, command: UpdateFeatures, result: ControllerResult[Any]
    ) -> ControllerResult[Any]:
        """What becomes of a command that nothing else is against, once the quorum was asked."""
        update = command.updates.get(KRAFT_VERSION)
        if update is None or update.upgrade_type != UpgradeType.UPGRADE:
            return result
        try:
            self._log.raise_kraft_version(update.level, validate_only=command.validate_only)
        except ApiError as error:
            return ControllerResult([], Fault(error.code, error.message or ""))
        return result

    def _append(self, records: Sequence[StoredRecord], *, atomic: bool = True) -> None:
        delta = MetadataDelta(self._latest)
        delta.replay_all(record for record, _ in records)
        offset = self._log.append(records, delta, atomic=atomic)
        self._latest = delta.apply(offset, self._epoch)
