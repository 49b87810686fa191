"""The download of a snapshot from the leader. The snapshot replaces the start of this node's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.raft.metadata_log import MetadataLog
from kwire.broker.raft.snapshots import Snapshot, SnapshotFile
from kwire.broker.storage.disk import SHORTAGE_RETRY_MS, ResourceShortage, StorageError
from kwire.host.host import Host
from kwire.wire.primitives import Buffer


class Installs(Protocol):
    """The owner of a download. The download notifies its owner at the end."""

    def installed(self, *, succeeded: bool) -> None:
        """Continue after the snapshot was installed (`succeeded`) or was found to be invalid."""

    def snapshot_failed(self, reason: str) -> None:
        """Stop the node: the snapshot could not be written, so the state of the log is unknown."""


class Download:
    """The snapshot that is being fetched, if any."""

    def __init__(self, host: Host, log: MetadataLog, tell: Installs, on_complete: Callable[[], None]) -> None:
        """Start without a download.

        `on_complete` is called once a snapshot is durable. It restarts the log after the snapshot and
        publishes the snapshot's content. It may raise CorruptMetadata or StorageError.
        """
        self._host = host
        self._log = log
        self._tell = tell
        self._on_complete = on_complete
        self._file: SnapshotFile | None = None
        self._logger = host.logger("kwire.raft")

    def begin(self, snapshot: Snapshot) -> None:
        """Start a download, which replaces an earlier one. Raises StorageError."""
        self.drop()
        self._logger.info("Fetching metadata snapshot %s from the quorum leader", snapshot.name)
        self._file = self._log.snapshots.create(snapshot)

    def add(self, data: Buffer) -> None:
        """Append the next bytes of the snapshot. Raises StorageError."""
        assert self._file is not None
        self._file.append(bytes(data))

    def drop(self) -> None:
        """Abandon the download. Never raises."""
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def install(self) -> None:
        """Sync and check the complete file in a worker, then restart the log after the snapshot."""
        file = self._file
        assert file is not None

        def sync() -> None:
            file.sync()
            file.check()

        def synced(result: object) -> None:
            if file is not self._file:
                return
            try:
                if isinstance(result, CorruptMetadata):
                    raise result
                if isinstance(result, BaseException):
                    raise StorageError(str(result)) from result
                sync_name = file.publish()
            except CorruptMetadata as error:
                self._logger.error(
                    "Invalid metadata snapshot %s from the quorum leader, fetching it again: %s",
                    *(file.snapshot.name, error),
                )
                self.drop()
                self._tell.installed(succeeded=False)
            except StorageError as error:
                self._tell.snapshot_failed(f"snapshot {file.snapshot.name} cannot be written: {error}")
            else:
                self._host.run_in_worker(sync_name, named)

        def named(result: object) -> None:
            if file is not self._file:
                return
            self._file = None
            if isinstance(result, BaseException):
                self._tell.snapshot_failed(f"snapshot {file.snapshot.name} cannot be written: {result}")
                return
            self._log.snapshots.add(file.snapshot)
            complete()

        def complete() -> None:
            if self._file is not None:
                return  # another download has begun
            try:
                with self._log.disk.reserved():
                    self._on_complete()
            except ResourceShortage:
                self._host.internode_clock.schedule(SHORTAGE_RETRY_MS, complete)
                return
            except (CorruptMetadata, StorageError) as error:
                self._tell.snapshot_failed(f"snapshot {file.snapshot.name} cannot be read: {error}")
                return
            self._tell.installed(succeeded=True)

        self._host.run_in_worker(sync, synced)
