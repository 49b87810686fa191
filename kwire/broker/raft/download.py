"""A snapshot that is fetched from the leader, and takes the place of how the log begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.raft.metadata_log import MetadataLog
from kwire.broker.raft.snapshots import Snapshot, SnapshotFile
from kwire.broker.storage.disk import StorageError
from kwire.host.host import Host
from kwire.wire.primitives import Buffer


class Installs(Protocol):
    """Whoever waits for a snapshot to be installed."""

    def installed(self, *, succeeded: bool) -> None:
        """It has taken its place, and the log begins behind it; or it was refused."""

    def snapshot_failed(self, reason: str) -> None:
        """It could not be written: the log is in doubt."""


class Download:
    """The snapshot that is being fetched, if one is."""

    def __init__(self, host: Host, log: MetadataLog, tell: Installs, on_complete: Callable[[], None]) -> None:
        """`on_complete` begins the log behind a snapshot that is durable, and tells what it says.

        It may raise CorruptMetadata and StorageError.
        """
        self._host = host
        self._log = log
        self._tell = tell
        self._on_complete = on_complete
        self._file: SnapshotFile | None = None
        self._logger = host.logger("kwire.raft")

    def begin(self, snapshot: Snapshot) -> None:
        """Begin anew, with this one. StorageError."""
        self.drop()
        self._logger.info("metadata: fetching snapshot %s", snapshot.name)
        self._file = self._log.snapshots.create(snapshot)

    def add(self, data: Buffer) -> None:
        """Its next bytes. StorageError."""
        assert self._file is not None
        self._file.append(bytes(data))

    def drop(self) -> None:
        """Give it up. Never raises."""
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def install(self) -> None:
        """All of it is there: make it durable and look at it, in a worker, and begin the log behind it."""
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
                self._logger.error("metadata: the snapshot that was fetched is refused: %s", error)
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
            try:
                self._on_complete()
            except (CorruptMetadata, StorageError) as error:
                self._tell.snapshot_failed(f"snapshot {file.snapshot.name} cannot be read: {error}")
                return
            self._tell.installed(succeeded=True)

        self._host.run_in_worker(sync, synced)
