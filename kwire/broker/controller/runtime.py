"""The runtime of the active controller: it runs commands, appends their records and sends their responses.

A command runs at once, on top of all earlier commands, committed or not. Its response is sent once its
records are committed and published. If a command writes no records, its response is sent once all earlier
records are committed, because the response may be based on them. If the controller resigns, every command
that is not committed fails, and the client retries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from kwire.broker.controller.controller_metrics import ControllerMetrics
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.log_messages import log_messages
from kwire.broker.controller.periodic_tasks import NO_PERIODIC_TASKS, PeriodicTasks, TaskPeriods
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.features import KRAFT_VERSION
from kwire.broker.metadata.image import METADATA_VERSION
from kwire.broker.metadata.publisher import MetadataPublisher
from kwire.broker.metadata.records import StoredRecord
from kwire.host.host import Host, InternodeTime, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.records.metadata import AbortTransactionRecord, NoOpRecord
from kwire.wire.schema import Message

MAX_TIMER_DELAY_MS: Final = 1_000
"""The maximum delay of a session check in ms. If a check runs later, the process was suspended and could not
receive heartbeats."""


class LeaderLog(Protocol):
    """The metadata log, as the active controller sees it."""

    def append(self, records: Sequence[StoredRecord], delta: MetadataDelta, *, atomic: bool) -> int:
        """Append records and return the offset of the last record. `delta` is the change that they make.

        Raises ApiError if nothing was appended.
        """

    def raise_kraft_version(self, version: int, *, validate_only: bool) -> None:
        """Append the records that upgrade kraft.version. Raises ApiError if the upgrade is not possible."""


class _PendingCommand(NamedTuple):
    """A command whose response waits until `offset` is committed."""

    offset: int
    response: Any
    on_done: OnDone[Any]


class ControllerRuntime:
    """The `ControllerPort` of the active controller, and the `Leadership` that its quorum notifies."""

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
        """Create an inactive controller.

        `bootstrap` returns the first records of a new cluster, or raises CorruptMetadata if there are none.
        """
        self._controller = controller
        self._log = log
        self._publisher = publisher
        self._host = host
        self._rng = host.random("controller")
        self._heartbeats = heartbeats
        self._session_check: Timer | None = None
        self._periodic = PeriodicTasks(host, periods, self.submit)
        self._bootstrap = bootstrap
        self.metrics = ControllerMetrics()
        self._epoch = -1
        self._latest = publisher.image
        """The image with all appended records, committed or not."""
        self._refusal: ErrorCode | None = ErrorCode.NOT_CONTROLLER
        """The error for new commands while this controller is not active; None while it is active."""
        self._pending: deque[_PendingCommand] = deque()
        self._release_scheduled = False
        self._logger = host.logger("kwire.metadata")

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._refusal is None

    # --- leadership

    def check_bootstrap(self) -> None:
        """Check that this controller could write the first records of a new cluster.

        Raises CorruptMetadata, which is NoBootstrapMetadata if the node was not formatted as a controller.
        """
        self._bootstrap()

    def became_leader(self, epoch: int) -> None:
        """Become the active controller.

        If the cluster is new, write its first records. If the previous controller left a metadata transaction
        open, abort it. Raises CorruptMetadata if the cluster is new and `check_bootstrap` fails.
        """
        self._epoch = epoch
        self._latest = self._publisher.image
        self._refusal = None
        self._heartbeats.now_ms = self._host.internode_clock.monotonic_ms()
        self._heartbeats.activate(self._latest)
        is_open = self._publisher.is_transaction_open
        if METADATA_VERSION not in self._latest.features:  # as in Kafka, this means that the cluster is new
            min_insync_replicas = self._controller.defaults.min_insync_replicas
            records = activation_records(self._bootstrap(), min_insync_replicas, is_transaction_open=is_open)
            self._append(records)
        elif is_open:
            self._logger.warning("Aborting the unfinished metadata transaction of the previous controller")
            self._append([StoredRecord(AbortTransactionRecord(reason=ABORT_REASON))])
        self._periodic.start()
        self._watch_sessions()

    def resigned(self, reason: ApiError) -> None:
        """Fail every uncommitted command with `reason`, and refuse new commands with the same error code."""
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
        """Send the responses that wait for this offset or a lower one."""
        while self._pending and self._pending[0].offset <= offset:
            command = self._pending.popleft()
            self._complete(command, command.response)

    def idle(self) -> None:
        """Append a NoOpRecord, so that followers and observers see the high watermark advance. KIP-835."""
        if self._refusal is None:
            with suppress(ApiError):  # no free descriptor: the next NoOpRecord follows soon
                self._append([StoredRecord(NoOpRecord())])

    def _complete(self, command: _PendingCommand, response: Any) -> None:
        try:
            command.on_done(response)
        except Exception:
            self._logger.exception(
                "The callback of a controller command failed: the client may get no response"
            )

    # --- broker sessions

    def _watch_sessions(self) -> None:
        """Schedule a check for the time at which the next session ends."""
        due_ms = None if self._session_check is not None else self._heartbeats.next_expiry_ms()
        if due_ms is not None:
            delay_ms = max(due_ms - self._host.internode_clock.monotonic_ms(), 0)
            self._session_check = self._host.internode_clock.schedule(
                delay_ms, lambda: self._check_sessions(due_ms)
            )

    def _check_sessions(self, due_ms: InternodeTime) -> None:
        self._session_check = None
        now_ms = self._heartbeats.now_ms = self._host.internode_clock.monotonic_ms()
        if now_ms - due_ms > MAX_TIMER_DELAY_MS:
            self._heartbeats.restart_sessions()
        for broker in self._heartbeats.remove_expired_sessions(self._latest):
            # Each broker gets a command of its own: each command is decided on top of the one before it.
            self._logger.warning(
                "Fenced broker %d: no heartbeat for %d ms (broker.session.timeout.ms)",
                broker.broker_id,
                self._heartbeats.session_timeout_ms,
            )
            self.submit(FenceBroker(broker.broker_id, broker.broker_epoch), lambda response: None)
        self._watch_sessions()

    # --- commands

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Run a command; `on_done` gets its response once its records are committed, or an ApiError.

        `on_done` is never called before this method returns.
        """
        if self._refusal is not None:
            refused = ApiError(self._refusal)
            self._host.call_soon(lambda: on_done(refused))
            return
        response: Any
        has_records = False
        self._heartbeats.now_ms = began_ms = self._host.internode_clock.monotonic_ms()
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
        self.metrics.record_command(self._host.internode_clock.monotonic_ms() - began_ms)
        self._pending.append(_PendingCommand(self._latest.offset, response, on_done))
        if not has_records and not self._release_scheduled:
            self._release_scheduled = True
            self._host.call_soon(self.release)

    def release(self) -> None:
        """Send the responses of commands that wrote no records, if all earlier records are committed."""
        self._release_scheduled = False
        self.committed(self._publisher.image.offset)

    def _raise_kraft_version(
        self, command: UpdateFeatures, result: ControllerResult[Any]
    ) -> ControllerResult[Any]:
        """Append the upgrade of kraft.version if the command contains one and the upgrade is valid."""
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
