"""The cluster's metadata as the rest of the broker sees it: an image to read, commands to change it.

A command is decided at once, on top of everything decided before it, committed or not; its records are
staged. Commands of one turn share one write, and all that come while a sync is under way share the next one
(group commit). When a sync is done its images become current one after another: subscribers hear of each with
its delta, then the reply is released. A reply without records waits for what it was decided upon.

metadata.max.idle.interval.ms, which makes Kafka's controller write a NoOp record twice a second, is not
honoured: in a quorum of one nobody waits for the log's end to move, and the disk may rest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.controller.commands import (
    Command,
    OnDone,
    RegisterBroker,
    RegisterController,
    ShutDownBroker,
    UnfenceBroker,
    UpdateFeatures,
)
from kwire.broker.controller.config_rules import BrokerConfigRules
from kwire.broker.controller.controller import Controller
from kwire.broker.controller.topics import Defaults, new_uuid
from kwire.broker.metadata.batches import CorruptMetadata, TransactionFilter
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.feature_levels import KRAFT_VERSION, REGISTERED_FEATURES
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft.bootstrap import ABORT_REASON, activation_records, bootstrap_records
from kwire.broker.raft.endpoints import broker_endpoints, controller_endpoints
from kwire.broker.raft.metadata_log import MetadataLog, metadata_log_config
from kwire.broker.raft.snapshotter import Snapshotter
from kwire.broker.storage.disk import Disk, StorageError
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.stored.metadata import AbortTransactionRecord, FeatureLevelRecord

if TYPE_CHECKING:
    from kwire.broker.host.host import Host
    from kwire.broker.storage.dirs.log_manager import LogManager

logger = logging.getLogger("kwire.metadata")

Subscriber = Callable[[MetadataImage, MetadataDelta], None]


class _Pending(NamedTuple):
    """A decided command that waits for its records to be durable."""

    offset: int
    delta: MetadataDelta | None
    image: MetadataImage
    reply: Any
    on_done: Callable[[Any], None]


class Quorum(NamedTuple):
    """The quorum of one voter, which leads it."""

    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    directory_id: Uuid
    """Where the voter keeps the log; zero where the quorum is not dynamic."""
    endpoints: Sequence[tuple[str, str, int]]
    """Name, host and port of the listeners where the voter is reached."""


class MetadataService:
    """Leads the metadata log, and publishes what it says. Nothing may be asked of it before `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        log_manager: LogManager,
        disk: Disk,
        *,
        bound_ports: Mapping[str, int],
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`bound_ports` tells the port of each listener by the time of `start`.

        `on_failed` is called with the reason once the metadata log cannot be written any more.
        """
        self.image = MetadataImage()
        """The committed metadata. Replaced, never changed."""
        self.failed = False
        """The metadata log cannot be written any more: the node should end."""
        self.broker_epoch = -1
        """The epoch of this broker's registration."""
        self._config = config
        self._bound_ports = bound_ports
        self._on_failed = on_failed
        self._host = host
        self._disk = disk
        self._log_manager = log_manager
        self._controller = Controller(
            config.node_id,
            BrokerConfigRules(config),
            Defaults(config.num_partitions, config.default_replication_factor, config.min_insync_replicas),
        )
        self._latest = self.image
        self._snapshotter: Snapshotter | None = None
        self._pending: deque[_Pending] = deque()
        self._flush_asked = False
        self._flush_under_way = False
        self._subscribers: list[Subscriber] = []

    # --- life

    def start(self) -> None:
        """Replay the log, take the lead in a new epoch, and register this node; all of it synced.

        An empty log gets its bootstrap records; a transaction that was cut short is aborted.
        CorruptMetadata, StorageError.
        """
        directories = self._log_manager.directories()
        home = directories[0]
        if self._config.metadata_log_dir is not None:
            path = self._config.metadata_log_dir.rstrip("/")
            home = next((directory for directory in directories if directory.path == path), home)
        log = self._log_manager.open_metadata_log(
            metadata_log_config(self._config), self._host.now_ms(), directory=home.path
        )
        directory_ids = [
            directory.properties.directory_id
            for directory in directories
            if directory.properties is not None and directory.properties.directory_id is not None
        ]
        self._log = MetadataLog(
            log,
            self._disk,
            node_id=self._config.node_id,
            directory_id=(home.properties and home.properties.directory_id) or ZERO_UUID,
        )
        is_empty, is_open = self._replay()
        self._log.lead(self._host.now_ms(), controller_endpoints(self._config))
        if is_empty:
            records = bootstrap_records(self._disk, home.path)
            self._check_levels(
                {one.name: one.feature_level for one in records if isinstance(one, FeatureLevelRecord)}
            )
            self._append_now(
                activation_records(records, self._config.min_insync_replicas, is_transaction_open=is_open)
            )
        elif is_open:
            logger.warning("metadata: aborting a transaction that was cut short")
            self._append_now([StoredRecord(AbortTransactionRecord(reason=ABORT_REASON))])
        self._register(directory_ids, was_clean=all(directory.was_clean for directory in directories))
        self._log.commit()
        self._log.flush()
        self.image = self._latest
        self._snapshotter = Snapshotter(self._config, self._host, self._log)
        self._snapshotter.start(self.image)

    def _replay(self) -> tuple[bool, bool]:
        """(whether nothing but control records was there, whether a transaction is open at the end)."""
        delta = MetadataDelta(self._latest)
        transactions = TransactionFilter()
        offset, epoch, is_empty = -1, -1, True
        for batch in self._log.read():
            offset, epoch = batch.last_offset, batch.epoch
            effective = transactions.feed(batch.records)
            is_empty = is_empty and not effective
            try:
                delta.replay_all(effective)
            except ValueError as error:
                raise CorruptMetadata(f"metadata at offset {batch.base_offset}: {error}") from error
        self._latest = delta.finish(offset, epoch)
        self._check_levels(self._latest.features)
        return is_empty, transactions.is_open

    def _check_levels(self, finalized: Mapping[str, int]) -> None:
        """CorruptMetadata for a feature at a level that this release does not know."""
        for name, level in finalized.items():
            lowest, highest = REGISTERED_FEATURES.get(name, (0, 0))
            if level and not lowest <= level <= highest:
                raise CorruptMetadata(
                    f"the cluster of {self._log.log.directory} has {name} at level {level}, and this release "
                    f"knows {lowest} to {highest}: start the newer release that wrote it, and take the "
                    f"feature down with kafka-features first"
                )

    def _register(self, directory_ids: Sequence[Uuid], *, was_clean: bool) -> None:
        config, rng = self._config, self._host.rng
        known = self._latest.brokers.get(config.node_id)
        self._run_now(
            RegisterController(
                config.node_id, new_uuid(rng), controller_endpoints(config), REGISTERED_FEATURES
            )
        )
        self.broker_epoch = self._run_now(
            RegisterBroker(
                config.node_id,
                new_uuid(rng),
                broker_endpoints(config, self._bound_ports),
                REGISTERED_FEATURES,
                config.broker_rack,
                directory_ids,
                previous_broker_epoch=known.broker_epoch if known is not None and was_clean else -1,
            )
        )
        self._run_now(UnfenceBroker(config.node_id))

    def shutdown(self) -> None:
        """Hand over what this broker leads, as Kafka does before it ends; synced. Never raises."""
        if self._snapshotter is not None:
            self._snapshotter.stop()
        if self.failed:
            return
        try:
            self._run_now(ShutDownBroker(self._config.node_id))
            self._log.commit()
            self._log.flush()
        except (StorageError, ApiError) as error:
            self._fail(error)
            return
        self._release(self._latest.offset)

    def _run_now(self, command: Command) -> Any:
        """Decide and append a command outside of the loop's turns; the caller syncs."""
        result = self._controller.handle(command, self._latest, self._host.rng)
        if result.records:
            self._append_now(result.records, atomic=result.atomic)
        return result.reply

    def _append_now(self, records: Sequence[StoredRecord], *, atomic: bool = True) -> MetadataDelta:
        offset = self._log.append(records, now_ms=self._host.now_ms(), atomic=atomic)
        delta = MetadataDelta(self._latest)
        delta.replay_all(record for record, _ in records)
        self._latest = delta.finish(offset, self._log.epoch)
        return delta

    # --- the quorum

    @property
    def kraft_version(self) -> int:
        """The version of the quorum's protocol: 1 where its voters stand in the log (KIP-853)."""
        return 0 if self._log.voters is None else 1

    def describe(self) -> Quorum:
        """How the quorum of this node is doing."""
        log, config = self._log, self._config
        if log.voters is not None:
            voter = log.voters.voters[0]
            return Quorum(
                log.epoch,
                log.log.high_watermark,
                log.end_offset,
                voter.voter_directory_id,
                [(endpoint.name, endpoint.host, endpoint.port) for endpoint in voter.endpoints],
            )
        # The only voter is this node, in whatever way it is written in controller.quorum.voters.
        named = cast("list[str]", config.value("controller.quorum.voters"))
        endpoints = [(one.name, one.host, one.port) for one in controller_endpoints(config)]
        if named and config.controller_listener_names:
            host, _, port = named[0].partition("@")[2].rpartition(":")
            endpoints = [(config.controller_listener_names[0], host.strip("[]"), int(port))]
        return Quorum(log.epoch, log.log.high_watermark, log.end_offset, ZERO_UUID, endpoints)

    # --- commands

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(image, delta)` for every change from now on, before its reply is released."""
        self._subscribers.append(callback)

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Decide a command; `on_done` gets the reply, or an ApiError, when its records are durable.

        `on_done` is never called before this returns.
        """
        if self.failed:
            self._host.call_soon(lambda: on_done(ApiError(ErrorCode.KAFKA_STORAGE_ERROR)))
            return
        reply: Any
        delta: MetadataDelta | None = None
        try:
            result = self._controller.handle(command, self._latest, self._host.rng)
            reply = result.reply
            if isinstance(command, UpdateFeatures) and result.records and self._raises_kraft_version(command):
                self._log.become_dynamic(self._host.now_ms(), controller_endpoints(self._config))
            if result.records:
                delta = self._append_now(result.records, atomic=result.atomic)
        except ApiError as error:
            reply = error
        self._pending.append(_Pending(self._latest.offset, delta, self._latest, reply, on_done))
        if not self._flush_asked and not self._flush_under_way:
            self._flush_asked = True
            self._host.call_soon(self._write)

    def _raises_kraft_version(self, command: UpdateFeatures) -> bool:
        update = command.updates.get(KRAFT_VERSION)
        return update is not None and update.level > self.kraft_version

    def _write(self) -> None:
        """Write what this turn decided, and sync it in a worker."""
        self._flush_asked = False
        if self.failed or not self._pending:
            return
        if all(pending.delta is None for pending in self._pending):
            self._release(self._latest.offset)
            return
        try:
            self._log.commit()
            work, finish = self._log.begin_flush()
        except StorageError as error:
            self._fail(error)
            return
        up_to_offset = self._latest.offset
        self._flush_under_way = True

        def done(result: object) -> None:
            self._flush_under_way = False
            if isinstance(result, BaseException):
                self._fail(result)
                return
            finish()
            self._release(up_to_offset)
            if self._pending and not self._flush_asked:
                self._write()

        self._host.run_in_worker(work, done)

    def _release(self, up_to_offset: int) -> None:
        while self._pending and self._pending[0].offset <= up_to_offset:
            pending = self._pending.popleft()
            self.image = pending.image
            if pending.delta is not None:
                for subscriber in self._subscribers:
                    self._guarded(subscriber, pending.image, pending.delta)
            self._guarded(pending.on_done, pending.reply)
        if self._snapshotter is not None:
            self._snapshotter.committed(self.image)

    def _guarded(self, callback: Callable[..., None], *arguments: object) -> None:
        """The log goes on, whoever fails to follow it."""
        try:
            callback(*arguments)
        except Exception:
            logger.exception("a change of the metadata was not followed")

    def _fail(self, error: BaseException) -> None:
        logger.critical("the metadata log failed, nothing can be changed any more: %s", error)
        self.failed = True
        if self._snapshotter is not None:
            self._snapshotter.stop()
        self._host.call_soon(lambda: self._on_failed(f"the metadata log failed: {error}"))
        self._latest = self.image
        pending, self._pending = self._pending, deque()
        for command in pending:
            command.on_done(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
