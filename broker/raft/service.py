"""The cluster's metadata as the rest of the broker sees it: an image to read, commands to change it.

A command is decided at once, on top of everything decided before it, committed or not; its records are staged.
Commands of one turn share one write, and all that come while a sync is under way share the next one (group
commit). When a sync is done its images become current one after another: subscribers hear of each with its
delta, then the replies are released. A reply without records waits for what it was decided upon.

metadata.max.idle.interval.ms, which makes Kafka's controller write a NoOp record twice a second, is not
honoured: in a quorum of one nobody waits for the log's end to move, and the disk may rest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.controller.commands import AllocateProducerIds, Command, OnDone, ProducerIdBlock, StoredRecord
from broker.controller.controller import Controller
from broker.controller.delta import MetadataDelta
from broker.controller.image import MetadataImage
from broker.raft.bootstrap import ABORT_REASON, activation_records
from broker.raft.metadata_log import MetadataLog
from broker.raft.replay import TransactionFilter
from broker.storage.disk import StorageError
from kwire.errors import ApiError, ErrorCode
from kwire.stored.metadata import AbortTransactionRecord

if TYPE_CHECKING:
    from broker.host import Host

logger = logging.getLogger("kwire.metadata")

Subscriber = Callable[[MetadataImage, MetadataDelta], None]


class _Pending(NamedTuple):
    """A decided command that waits for its records to be durable."""

    offset: int
    delta: MetadataDelta | None
    image: MetadataImage
    reply: Any
    on_done: Callable[[Any], None]


class MetadataService:
    """Leads the metadata log, and publishes what it says."""

    def __init__(self, host: Host, log: MetadataLog, controller: Controller) -> None:
        self.image = MetadataImage()
        """The committed metadata. Replaced, never changed."""
        self.failed = False
        """The metadata log cannot be written any more: the node should end."""
        self._host = host
        self._log = log
        self._controller = controller
        self._latest = self.image
        self._pending: deque[_Pending] = deque()
        self._flush_asked = False
        self._flush_under_way = False
        self._subscribers: list[Subscriber] = []
        self._producer_ids = ProducerIdBlock(0, 0)
        self._waiting_for_ids: deque[OnDone[int]] = deque()
        self.broker_id = -1
        self.broker_epoch = -1

    # --- start

    def load(self, bootstrap: Sequence[object], min_insync_replicas: int) -> None:
        """Replay the log, take the lead in a new epoch, and put the log in order.

        An empty log gets `bootstrap`; a transaction that was cut short is aborted. Everything is durable when
        this returns. CorruptMetadata, StorageError.
        """
        delta = MetadataDelta(self.image)
        transactions = TransactionFilter()
        offset, epoch, empty = -1, -1, True
        for header, records in self._log.read():
            offset, epoch = header.last_offset, header.leader_epoch
            effective = transactions.feed(records)
            empty = empty and not effective
            delta.replay_all(effective)
        self._latest = delta.finish(offset, epoch)
        self._log.lead(self._host.now_ms())
        if empty:
            self._append_at_start(
                activation_records(
                    list(bootstrap), min_insync_replicas, is_transaction_open=transactions.is_open
                )
            )
        elif transactions.is_open:
            logger.warning("metadata: aborting a transaction that was cut short")
            self._append_at_start([StoredRecord(AbortTransactionRecord(reason=ABORT_REASON))])
        self._log.commit()
        self._log.flush()
        self.image = self._latest

    def run_at_start(self, command: Command) -> Any:
        """Decide and append a command before the loop runs; `finish_start` makes it durable and current."""
        result = self._controller.handle(command, self._latest, self._host.rng)
        if result.records:
            self._append_at_start(result.records, atomic=result.atomic)
        return result.reply

    def finish_start(self) -> None:
        """Make what `run_at_start` appended durable, and the image current. StorageError."""
        self._log.commit()
        self._log.flush()
        self.image = self._latest

    def _append_at_start(self, records: Sequence[StoredRecord], *, atomic: bool = True) -> None:
        offset = self._log.append(records, now_ms=self._host.now_ms(), atomic=atomic)
        delta = MetadataDelta(self._latest)
        delta.replay_all(record for record, _ in records)
        self._latest = delta.finish(offset, self._log.epoch)

    # --- commands

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(image, delta)` for every change from now on, before the change's reply is released."""
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
            if result.records:
                offset = self._log.append(result.records, now_ms=self._host.now_ms(), atomic=result.atomic)
                delta = MetadataDelta(self._latest)
                delta.replay_all(record for record, _ in result.records)
                self._latest = delta.finish(offset, self._log.epoch)
        except ApiError as error:
            reply = error
        self._pending.append(_Pending(self._latest.offset, delta, self._latest, reply, on_done))
        if not self._flush_asked and not self._flush_under_way:
            self._flush_asked = True
            self._host.call_soon(self._write)

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
                    subscriber(pending.image, pending.delta)
            pending.on_done(pending.reply)

    def _fail(self, error: BaseException) -> None:
        logger.critical("the metadata log failed, nothing can be changed any more: %s", error)
        self.failed = True
        self._latest = self.image
        pending, self._pending = self._pending, deque()
        for command in pending:
            command.on_done(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))

    # --- producer ids

    def allocate_producer_id(self, on_done: OnDone[int]) -> None:
        """Give the next producer id, at once or when a new block of them is committed."""
        first, size = self._producer_ids
        if size and not self._waiting_for_ids:
            self._producer_ids = ProducerIdBlock(first + 1, size - 1)
            on_done(first)
            return
        self._waiting_for_ids.append(on_done)
        if len(self._waiting_for_ids) == 1:
            self.submit(AllocateProducerIds(self.broker_id, self.broker_epoch), self._got_producer_ids)

    def _got_producer_ids(self, reply: ProducerIdBlock | ApiError) -> None:
        waiting, self._waiting_for_ids = self._waiting_for_ids, deque()
        if isinstance(reply, ApiError):
            for on_done in waiting:
                on_done(reply)
            return
        self._producer_ids = reply
        for on_done in waiting:
            self.allocate_producer_id(on_done)
