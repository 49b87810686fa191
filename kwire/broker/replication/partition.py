"""A replica of this broker: where it leads, appends go in, the high watermark rises, waiters wake.

Appends of one loop turn are staged in the log and written together when the turn ends (`commit`). Whoever
appended is told then, and only then: nothing is acknowledged, and nothing is visible to a Fetch, before it
is in the page cache, or on the disk where `flush.messages` or `flush.ms` asks for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from kwire.broker.host.host import Host
from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.roles import Move, Role, moved
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Appended, AppendOrigin, Log
from kwire.broker.storage.log.producer_state import MarkerTerms
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid

logger = logging.getLogger("kwire.partition")

Committed = Callable[[ApiError | None], None]
"""Told once an append is durable and visible (None), or that it failed."""


class OwnFailure(StorageError):
    """It was not the disk that failed, but this program."""


class Waiter(Protocol):
    """Something that waits for a partition to grow (a long poll)."""

    def partition_grew(self) -> None:
        """Called after the high watermark has risen."""

    def complete(self) -> None:
        """Answer now, with whatever there is."""


class Partition:
    """One replica, in the role that the metadata has for it.

    The only in-sync one: its high watermark is the end of what is written (and synced, where asked).
    """

    __slots__ = (
        "_flush_under_way",
        "_host",
        "_on_offline",
        "_stage",
        "_uncommitted",
        "_unflushed",
        "index",
        "leader_epoch",
        "log",
        "role",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(
        self,
        log: Log,
        *,
        host: Host,
        stage: Callable[[Partition], None],
        on_offline: Callable[[Partition, StorageError], None],
    ) -> None:
        """Absent yet: `lead` or `follow` comes next."""
        self.log = log
        self.topic = log.topic
        self.topic_id: Uuid = log.topic_id
        self.index = log.partition
        self.role = Role.ABSENT
        self.leader_epoch = -1
        self.waiters: dict[Waiter, None] = {}
        self._host = host
        self._stage = stage
        self._on_offline = on_offline
        self._uncommitted: list[Committed] = []
        self._unflushed: list[Committed] = []
        self._flush_under_way = False

    # --- roles

    def lead(self, image: PartitionImage) -> None:
        """This broker leads. StorageError: the log cannot be used."""
        role = moved(self.role, Move.LEAD)
        if role is Role.LEADER and image.leader_epoch > self.leader_epoch:
            self.log.begin_leader_epoch(image.leader_epoch)
            self.leader_epoch = image.leader_epoch
        if role is not self.role:
            self.log.high_watermark = self.log.log_end_offset
            self.role = role

    def follow(self, image: PartitionImage) -> None:
        """Another broker leads, or nobody does. StorageError: the log cannot be used."""
        if self.log.failure is not None and self.role is Role.ABSENT:
            raise self.log.failure
        if self.role is Role.LEADER:
            # What is staged has its offsets: it is a part of the log that others may have to truncate.
            self.commit()
        self.leader_epoch = max(self.leader_epoch, image.leader_epoch)
        self._become(moved(self.role, Move.FOLLOW), ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def leave(self) -> None:
        """This broker has no replica of it any more."""
        self._become(moved(self.role, Move.LEAVE), ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def fail(self, error: StorageError) -> None:
        """The log has failed, or its directory."""
        first_time = self.role is not Role.OFFLINE
        self._become(moved(self.role, Move.FAIL), ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        if first_time:
            self._on_offline(self, error)

    def _become(self, role: Role, code: ErrorCode, message: str | None = None) -> None:
        """Take up a role in which nobody is served: who waits is told so."""
        self.role = role
        waiting = self._uncommitted + self._unflushed
        self._uncommitted, self._unflushed = [], []
        self._tell(waiting, ApiError(code, message))
        self.wake()

    def refusal(self) -> ApiError:
        """What to tell a client while this broker does not lead."""
        is_offline = self.role is Role.OFFLINE
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # --- appending

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def append(
        self,
        records: memoryview,
        *,
        now_ms: int,
        on_committed: Committed,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        marker: MarkerTerms | None = None,
    ) -> Appended:
        """Validate and stage produced batches; `on_committed` is called when they are durable.

        `records` must be writable and is owned by the log from here on. Raises ApiError when the batches
        are refused; `on_committed` is then not called.
        """
        if self.role is not Role.LEADER:
            raise self.refusal()
        appended = self.log.append(
            records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin, marker=marker
        )
        if appended.is_duplicate and not self._uncommitted:
            if self._flush_under_way:
                self._unflushed.append(on_committed)
            else:
                on_committed(None)
            return appended
        if not self._uncommitted:
            self._stage(self)
        self._uncommitted.append(on_committed)
        return appended

    def commit(self) -> None:
        """Write what this turn staged, then tell those who wait for it. Never raises."""
        if self.role is not Role.LEADER:
            return  # who waited has been told
        try:
            self.log.commit()
            must_flush = self._flush_under_way or self.log.needs_flush(self._host.now_ms())
        except StorageError as error:
            self.fail(error)
            return
        except Exception as error:
            # Ours: what the log holds now is in doubt, so it serves no more.
            logger.exception("%s-%d cannot be written", self.topic, self.index)
            failure = OwnFailure(f"an unexpected failure: {error}")
            self.log.fail(failure)
            self.fail(failure)
            return
        waiting, self._uncommitted = self._uncommitted, []
        if must_flush:
            self._unflushed.extend(waiting)
            if not self._flush_under_way:
                self._begin_flush()
            return
        self._advance(waiting)

    def sync(self, on_synced: Committed) -> None:
        """Force everything appended so far to the disk, then tell."""
        self._unflushed.append(on_synced)
        if not self._flush_under_way:
            self._begin_flush()

    def _begin_flush(self) -> None:
        # Group commit: whatever is appended while one sync runs shares the next.
        waiting, self._unflushed = self._unflushed, []
        log = self.log
        end_offset = log.log_end_offset
        try:
            ticket = log.begin_flush()
        except StorageError as error:
            self._unflushed = waiting
            self.fail(error)
            return
        self._flush_under_way = True

        def done(result: object) -> None:
            self._flush_under_way = False
            # A log that has moved to another directory was synced there.
            if isinstance(result, BaseException) and self.log is log:
                error = result if isinstance(result, StorageError) else StorageError(str(result))
                log.fail(error)
                self._unflushed = waiting + self._unflushed
                self.fail(error)
                return
            ticket.finish()
            self._advance(waiting, end_offset)
            if self._unflushed and self.role is not Role.OFFLINE:
                self._begin_flush()

        self._host.run_in_worker(ticket.work, done)

    def _advance(self, waiting: list[Committed], up_to_offset: int | None = None) -> None:
        log = self.log
        end_offset = log.log_end_offset if up_to_offset is None else min(up_to_offset, log.log_end_offset)
        if end_offset > log.high_watermark:
            log.high_watermark = end_offset
        self._tell(waiting, None)
        self.wake()

    def _tell(self, waiting: list[Committed], error: ApiError | None) -> None:
        for tell in waiting:
            try:
                tell(error)
            except Exception:
                # Nobody else's acknowledgement may hang on this one.
                logger.exception("%s-%d: an acknowledgement failed", self.topic, self.index)

    def wake(self) -> None:
        """Let every long poll on this partition look again."""
        for waiter in list(self.waiters):
            try:
                waiter.partition_grew()
            except Exception:
                logger.exception("%s-%d: a long poll failed", self.topic, self.index)
                self.waiters.pop(waiter, None)

    def end_waits(self) -> None:
        """Have every long poll on this partition answered with what there is."""
        for waiter in list(self.waiters):
            try:
                waiter.complete()
            except Exception:
                logger.exception("%s-%d: a long poll failed", self.topic, self.index)
