"""When a snapshot of the metadata is taken, and when old ones go, with the part of the log that they replace.

A snapshot is due once metadata.log.max.record.bytes.between.snapshots were written since the last, or when
metadata.log.max.snapshot.interval.ms have passed and anything has changed; and, other than with Kafka, after
a start that had to replay much, because each stop and start changes every partition. It is made of an image,
which never changes, on the loop but a few records at a time, so that no client waits; the sync is a worker's.

Of at least two snapshots the oldest goes while log and snapshots are larger than metadata.max.retention.bytes
together, or when it is older than metadata.max.retention.ms. The log then starts where the next one ends. Not
as soon as that one is complete: who follows and is a moment behind would have to fetch all of it, and a
broker of Apache Kafka's that does takes up its coordinators anew. (There it goes once a minute.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.metadata.snapshot import snapshot_records
from kwire.broker.raft.snapshots import Snapshot, SnapshotFile, SnapshotWriter
from kwire.broker.storage.disk import StorageError
from kwire.wire.errors import ApiError

if TYPE_CHECKING:
    from kwire.broker.raft.metadata_log import MetadataLog
    from kwire.host.host import Host, Timer

REPLAYED_BYTES: Final = 1024 * 1024
"""What a start may replay, or twice a snapshot's size where that is more, before the next is spared it."""

STEP_RECORDS: Final = 128
"""How many records are written in one go: some two milliseconds of work."""
STEP_MS: Final = 1
CLEAN_INTERVAL_MS: Final = 60_000
CLEAN_DELAY_MS: Final = 10_000
"""How long who follows has to come past a new snapshot before what it replaces goes."""


class Snapshotter:
    """Takes the snapshots of one metadata log."""

    def __init__(self, config: BrokerConfig, host: Host, log: MetadataLog) -> None:
        self._host = host
        self._logger = host.logger("kwire.raft")
        self._log = log
        self._max_bytes = cast(int, config.value("metadata.log.max.record.bytes.between.snapshots"))
        self._interval_ms = cast(int, config.value("metadata.log.max.snapshot.interval.ms"))
        self._retention_bytes = cast(int, config.value("metadata.max.retention.bytes"))
        self._retention_ms = cast(int, config.value("metadata.max.retention.ms"))
        self._delete_delay_ms = cast(int, config.value("internal.metadata.delete.delay.millis"))
        self._image = MetadataImage()
        self._writing: SnapshotFile | None = None
        self._is_time = False
        self._timers: dict[str, Timer] = {}
        self._stopped = False

    def start(self, image: MetadataImage) -> None:
        """Begin, with the image that the log gives. StorageError."""
        self._wait_for_interval()
        self._clean_often()
        self._image = image
        replayed_bytes, latest = self._log.unsnapshotted_bytes, self._log.snapshots.latest
        snapshot_bytes = 0 if latest is None else self._log.snapshots.size(latest)
        if replayed_bytes >= max(REPLAYED_BYTES, 2 * snapshot_bytes):
            self._begin(f"{replayed_bytes} bytes had to be replayed at this start")
        else:
            self._take_if_due()

    def stop(self) -> None:
        """Take no more snapshots; what is not finished is given up. Never raises."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._writing is not None:
            self._writing.abandon()
            self._writing = None

    def image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """The metadata was published: take a snapshot of it if one is due."""
        self._image = image
        if self._writing is not None and self._writing.snapshot.end_offset < self._log.start_offset:
            # One that was fetched has taken the place of all that this one stands for.
            self._writing.abandon()
            self._writing = None
        self._take_if_due()

    def _take_if_due(self) -> None:
        if self._stopped or self._writing is not None:
            return
        if self._log.unsnapshotted_bytes >= self._max_bytes:
            self._begin(f"{self._max_bytes} bytes or more were written since the last")
        elif self._is_time:
            self._begin(f"{self._interval_ms} ms have passed since the last")

    # --- taking one

    def _wait_for_interval(self) -> None:
        self._is_time = False
        if self._interval_ms > 0:
            previous = self._timers.get("interval")
            if previous is not None:
                previous.cancel()
            self._timers["interval"] = self._host.schedule(self._interval_ms, self._interval_passed)

    def _interval_passed(self) -> None:
        self._is_time = True
        latest = self._log.snapshots.latest
        if latest is None or latest.end_offset <= self._image.offset:
            self._take_if_due()

    def _begin(self, reason: str) -> None:
        image, log = self._image, self._log
        self._wait_for_interval()
        log.unsnapshotted_bytes = 0
        snapshot = Snapshot(image.offset + 1, image.epoch)
        if snapshot in log.snapshots.known:
            return
        self._logger.info("metadata: writing snapshot %s, because %s", snapshot.name, reason)
        voters = log.history.voters_at(image.offset)
        writer = SnapshotWriter(
            image.epoch,
            now_ms=self._host.now_ms(),
            last_timestamp_ms=log.last_timestamp_ms,
            voters=None if voters is None else voters.record(),
        )
        try:
            file = log.snapshots.create(snapshot)
            file.append(writer.header())
        except StorageError as error:
            self._failed(snapshot, error)
            return
        self._writing = file
        self._step(file, writer, snapshot_records(image))

    def _step(self, file: SnapshotFile, writer: SnapshotWriter, records: Iterator[StoredRecord]) -> None:
        if self._writing is not file:
            return
        some = list(islice(records, STEP_RECORDS))
        try:
            file.append(writer.batch(some) if some else writer.footer())
        except StorageError as error:
            self._failed(file.snapshot, error)
            return
        if some:
            self._timers["step"] = self._host.schedule(STEP_MS, lambda: self._step(file, writer, records))
        else:
            self._host.run_in_worker(file.sync, lambda result: self._synced(file, result))

    def _synced(self, file: SnapshotFile, result: object) -> None:
        if self._writing is not file:
            return
        if isinstance(result, BaseException):
            self._failed(file.snapshot, result)
            return
        try:
            sync_name = file.publish()
        except StorageError as error:
            self._failed(file.snapshot, error)
            return
        self._host.run_in_worker(sync_name, lambda result: self._named(file, result))

    def _named(self, file: SnapshotFile, result: object) -> None:
        if self._writing is not file:
            return
        self._writing = None
        if isinstance(result, BaseException):
            self._failed(file.snapshot, result)
            return
        self._log.snapshots.add(file.snapshot)
        self._log.history.trim(file.snapshot.end_offset - 1)
        self._logger.info("metadata: snapshot %s is complete", file.snapshot.name)
        self._clean_soon()
        self._take_if_due()

    def _failed(self, snapshot: Snapshot, error: BaseException) -> None:
        """What a snapshot would have stood for is in the log: the next one will do."""
        self._logger.error("metadata: snapshot %s cannot be written: %s", snapshot.name, error)
        if self._writing is not None:
            self._writing.abandon()
            self._writing = None

    # --- forgetting old ones

    def _clean_often(self) -> None:
        self.clean()
        self._timers["clean"] = self._host.schedule_check(CLEAN_INTERVAL_MS, self._clean_often)

    def _clean_soon(self) -> None:
        previous = self._timers.get("clean soon")
        if previous is not None:
            previous.cancel()
        self._timers["clean soon"] = self._host.schedule(CLEAN_DELAY_MS, self.clean)

    def clean(self) -> None:
        """Remove snapshots that are not to be kept, and the log before the oldest that is."""
        try:
            while (reason := self._too_much()) is not None:
                oldest, following = self._log.snapshots.known[:2]
                self._logger.info("metadata: snapshot %s goes, because %s", oldest.name, reason)
                self._log.log.delete_records_before(following.end_offset)
                self._log.log.delete_old_segments(self._host.now_ms())
                for path in self._log.snapshots.set_aside_before(following):
                    self._remove_later(path)
        except (StorageError, ApiError, CorruptMetadata) as error:
            self._logger.error("metadata: old snapshots cannot be removed: %s", error)

    def _too_much(self) -> str | None:
        """Why the oldest snapshot is to go; None where it may stay."""
        snapshots = self._log.snapshots
        if len(snapshots.known) < 2:
            return None
        if self._retention_bytes >= 0:
            size = self._log.log.size_bytes + sum(map(snapshots.size, snapshots.known))
            if size > self._retention_bytes:
                return f"the log and its snapshots have {size} bytes"
        if self._retention_ms >= 0:
            age_ms = self._host.now_ms() - snapshots.last_timestamp_ms(snapshots.known[0])
            if age_ms > self._retention_ms:
                return f"it is {age_ms} ms old"
        return None

    def _remove_later(self, path: str) -> None:
        def remove() -> None:
            self._timers.pop(path, None)
            self._log.snapshots.remove_file(path)

        self._timers[path] = self._host.schedule(self._delete_delay_ms, remove)
