"""Group commit of the metadata log.

The appends of one turn of the event loop share one write. One sync covers all appends during the previous
sync.
"""

from __future__ import annotations

from collections.abc import Callable

from kwire.broker.raft.metadata_log import MetadataLog
from kwire.broker.storage.disk import SHORTAGE_RETRY_MS, ResourceShortage, StorageError, failure_in
from kwire.host.host import Host


class Writes:
    """The writes and syncs of one log."""

    def __init__(
        self,
        host: Host,
        log: MetadataLog,
        *,
        on_written: Callable[[], None],
        on_synced: Callable[[int], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Take the callbacks. `on_synced` gets the offset up to which the current log is durable."""
        self._host = host
        self._log = log
        self._on_written = on_written
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._is_requested = False
        self._is_under_way = False
        self._is_stopped = False

    def soon(self) -> None:
        """At the end of this turn, write the staged records, then sync them in a worker thread."""
        if not self._is_requested and not self._is_under_way:
            self._is_requested = True
            self._host.call_soon(self._write)

    def now(self) -> None:
        """Write and sync all staged records before returning. Raises StorageError."""
        self._log.commit()
        self._log.flush()

    def stop(self) -> None:
        """Stop writing and calling back."""
        self._is_stopped = True

    def _write(self) -> None:
        self._is_requested = False
        log = self._log
        if self._is_stopped or (log.synced_end_offset >= log.end_offset and not log.awaits_sync):
            return
        try:
            log.commit()
            work, finish = log.begin_flush()
        except ResourceShortage:
            self._write_later()
            return
        except StorageError as error:
            self._on_failed(f"the metadata log failed: {error}")
            return
        self._is_under_way = True

        def done(result: object) -> None:
            self._is_under_way = False
            if self._is_stopped:
                return
            error = failure_in(result)
            if isinstance(error, ResourceShortage):
                self._write_later()
                return
            if error is not None:
                self._on_failed(f"the metadata log failed: {error}")
                return
            finish()
            # After a truncation, the log may end before the part that the sync covered.
            self._on_synced(log.synced_end_offset)
            if not self._is_requested:
                self._write()

        self._host.run_in_worker(work, done)
        self._on_written()

    def _write_later(self) -> None:
        """Try again after a delay, because the process has no free descriptor."""
        self._is_requested = True
        self._host.internode_clock.schedule(SHORTAGE_RETRY_MS, self._write)
