"""Generation of metadata snapshots, and deletion of old snapshots with the records that they replace.

A snapshot is generated after metadata.log.max.record.bytes.between.snapshots of new records, or after
metadata.log.max.snapshot.interval.ms if anything has changed. Unlike Kafka, kwire also generates a snapshot
after a start that replayed many records, because each restart changes every partition. The snapshot is made
from an immutable image on the event loop, a few records at a time, so that no client has to wait. A worker
syncs the file.

If there are two or more snapshots, the oldest is deleted when the log and the snapshots exceed
metadata.max.retention.bytes, or when it is older than metadata.max.retention.ms. The log then starts at the
next snapshot. After a new snapshot the deletion waits for a while. Otherwise a follower that lags slightly
would have to load the complete snapshot, and an Apache Kafka broker reloads its coordinators after that.
(Kafka deletes once a minute.)
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
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from kwire.broker.raft.metadata_log import MetadataLog
    from kwire.host.host import Host, Timer

REPLAYED_BYTES: Final = 1024 * 1024
"""A start that replays so many bytes, and twice the size of the last snapshot, generates a snapshot."""

STEP_RECORDS: Final = 128
"""The number of records that are written at a time. This takes about two milliseconds."""
STEP_MS: Final = 1
CLEAN_INTERVAL_MS: Final = 60_000
CLEAN_DELAY_MS: Final = 10_000
"""The delay in ms before records are deleted after a new snapshot, so that followers can still fetch them."""


class Snapshotter:
    """The generator of one metadata log's snapshots."""

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
        self.generated_bytes = 0
        """The size of the last snapshot that this node has generated, or of the one it has loaded."""
        self.generated_ms = host.monotonic_ms()
        """The monotonic time at which that snapshot was generated, or at which the node started, in ms."""
        self._writing: SnapshotFile | None = None
        self._is_time = False
        self._timers: dict[str, Timer] = {}
        self._stopped = False

    def start(self, image: MetadataImage) -> None:
        """Start with the current metadata image. Raises StorageError."""
        self._wait_for_interval()
        self._clean_often()
        self._image = image
        replayed_bytes, latest = self._log.unsnapshotted_bytes, self._log.snapshots.latest
        snapshot_bytes = 0 if latest is None else self._log.snapshots.size(latest)
        self.generated_bytes = snapshot_bytes
        if replayed_bytes >= max(REPLAYED_BYTES, 2 * snapshot_bytes):
            self._begin(f"replayed {plural(replayed_bytes, 'byte')} at startup")
        else:
            self._take_if_due()

    def stop(self) -> None:
        """Stop generating snapshots, and abandon an unfinished snapshot. Never raises."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._writing is not None:
            self._writing.abandon()
            self._writing = None

    def image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Record a new image, and generate a snapshot if one is due."""
        self._image = image
        if self._writing is not None and self._writing.snapshot.end_offset < self._log.start_offset:
            # A fetched snapshot has replaced all records that the unfinished snapshot would contain.
            self._writing.abandon()
            self._writing = None
        self._take_if_due()

    def _take_if_due(self) -> None:
        if self._stopped or self._writing is not None:
            return
        if self._log.unsnapshotted_bytes >= self._max_bytes:
            self._begin(
                f"at least {plural(self._max_bytes, 'byte')} since the last one "
                f"(metadata.log.max.record.bytes.between.snapshots)"
            )
        elif self._is_time:
            self._begin(f"{self._interval_ms} ms since the last one (metadata.log.max.snapshot.interval.ms)")

    # --- generation

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
        self._logger.info("Generating metadata snapshot %s: %s", snapshot.name, reason)
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
        self.generated_bytes = self._log.snapshots.size(file.snapshot)
        self.generated_ms = self._host.monotonic_ms()
        self._log.history.trim(file.snapshot.end_offset - 1)
        self._logger.info("Completed metadata snapshot %s", file.snapshot.name)
        self._clean_soon()
        self._take_if_due()

    def _failed(self, snapshot: Snapshot, error: BaseException) -> None:
        """Log a failed snapshot. The records stay in the log, and the next snapshot includes them."""
        self._logger.error(
            "Cannot write metadata snapshot %s, the metadata log keeps the records until the next snapshot: "
            "%s",
            *(snapshot.name, error),
        )
        if self._writing is not None:
            self._writing.abandon()
            self._writing = None

    # --- deletion

    def _clean_often(self) -> None:
        self.clean()
        self._timers["clean"] = self._host.schedule_check(CLEAN_INTERVAL_MS, self._clean_often)

    def _clean_soon(self) -> None:
        previous = self._timers.get("clean soon")
        if previous is not None:
            previous.cancel()
        self._timers["clean soon"] = self._host.schedule(CLEAN_DELAY_MS, self.clean)

    def clean(self) -> None:
        """Delete the snapshots that exceed the retention, and the records that they replace."""
        try:
            while (reason := self._too_much()) is not None:
                oldest, following = self._log.snapshots.known[:2]
                self._logger.info("Deleting metadata snapshot %s: %s", oldest.name, reason)
                self._log.log.delete_records_before(following.end_offset)
                self._log.log.delete_old_segments(self._host.now_ms())
                for path in self._log.snapshots.set_aside_before(following):
                    self._remove_later(path)
        except (StorageError, ApiError, CorruptMetadata) as error:
            self._logger.error("Cannot delete old metadata snapshots, will retry: %s", error)

    def _too_much(self) -> str | None:
        """Return the reason to delete the oldest snapshot, or None to keep it."""
        snapshots = self._log.snapshots
        if len(snapshots.known) < 2:
            return None
        if self._retention_bytes >= 0:
            size = self._log.log.size_bytes + sum(map(snapshots.size, snapshots.known))
            if size > self._retention_bytes:
                return f"log and snapshots have {plural(size, 'byte')} (metadata.max.retention.bytes)"
        if self._retention_ms >= 0:
            age_ms = self._host.now_ms() - snapshots.last_timestamp_ms(snapshots.known[0])
            if age_ms > self._retention_ms:
                return f"it is {age_ms} ms old (metadata.max.retention.ms)"
        return None

    def _remove_later(self, path: str) -> None:
        def remove() -> None:
            self._timers.pop(path, None)
            self._log.snapshots.remove_file(path)

        self._timers[path] = self._host.schedule(self._delete_delay_ms, remove)
