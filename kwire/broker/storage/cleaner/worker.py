"""The worker process of the log cleaner: `python -m kwire.broker.storage.cleaner.worker`.

The worker reads jobs from standard input. It writes one line for each complete segment, and one line at the
end of a job. The process exits when the broker closes the worker's standard input or dies.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue

from kwire.broker.storage.cleaner.job import Failed, Job, Report, report_line
from kwire.broker.storage.cleaner.log_rewriter import LogRewriter, Sync, sync_at_once
from kwire.broker.storage.disk import Disk, DiskFile, FileMissing, RealDisk, ResourceShortage, StorageError
from kwire.host.platform.processes import cpu_seconds, yield_to_others
from kwire.wire.batch import CorruptBatch

NICENESS = 10
"""The value that is added to the niceness of the process when the broker is busy."""
BUSY = 0.3
"""The share of a CPU core above which the broker counts as busy."""
CHECK_INTERVAL_SECONDS = 0.1
IDLE_SECONDS = 30.0
"""The time without a job after which the process exits."""


def reports(
    job: Job,
    disk: Disk,
    *,
    throttle: Callable[[int], None] = lambda size_bytes: None,
    set_modified: Callable[[str, int], None] = lambda path, modified_ms: None,
    sync: Sync = sync_at_once,
) -> Iterator[Report]:
    """Clean a log and yield the reports: Cleaned for each new segment, then Done or Failed.

    `throttle` is called with the size of each read and write. `set_modified` sets a file's modification time.
    """
    try:
        yield from LogRewriter(job, disk, throttle=throttle, set_modified=set_modified, sync=sync).run()
    except FileMissing as error:
        # Retention or a topic deletion has removed a file of the log.
        yield Failed(str(error), is_permanent=False)
    except ResourceShortage as error:
        yield Failed(str(error), is_permanent=False)
    except StorageError as error:
        yield Failed(str(error), is_permanent=False, is_disk_error=True)
    except CorruptBatch as error:
        yield Failed(str(error), is_permanent=True)


class Throttler:
    """A limit for the bytes that are read and written per second. A call sleeps if the limit is exceeded."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._due = time.monotonic()

    def __call__(self, size_bytes: int) -> None:
        now = time.monotonic()
        # Unused capacity from earlier must not allow a long burst now.
        self._due = max(self._due, now - 0.3) + size_bytes / self._bytes_per_second
        if self._due > now:
            time.sleep(self._due - now)


class PriorityControl:
    """Lowers this process's priority once, as soon as the broker is busy.

    The priority then stays low, because a process without privileges cannot raise it again. It is not low
    from the start, because other processes would then delay the cleaning even if the broker is idle.
    """

    def __init__(
        self, busy_seconds: Callable[[], float | None], lower_priority: Callable[[], object]
    ) -> None:
        """`busy_seconds` returns the CPU time that the broker has used, or None if it is unknown.

        A broker with an unknown CPU time counts as busy at the first check.
        """
        self._busy_seconds = busy_seconds
        self._lower_priority = lower_priority
        self._checked = time.monotonic()
        self._used = busy_seconds()
        self.is_lowered = False

    def reset(self) -> None:
        """Start to measure the broker's CPU time again."""
        self._checked, self._used = time.monotonic(), self._busy_seconds()

    def check(self) -> None:
        """Lower the priority if the broker was busy since the last check. Must be called often."""
        now = time.monotonic()
        if self.is_lowered or now < self._checked + CHECK_INTERVAL_SECONDS:
            return
        used = self._busy_seconds()
        if used is None or self._used is None or used - self._used > BUSY * (now - self._checked):
            self.is_lowered = True
            self._lower_priority()
        self._checked, self._used = now, used


class _Jobs:
    """The jobs from the broker, one per line. The process exits when the broker is gone."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> Job | None:
        """Wait for a job; return None if none arrives for IDLE_SECONDS."""
        try:
            return Job.from_line(self._lines.get(timeout=IDLE_SECONDS).decode())
        except Empty:
            return None

    def _listen(self) -> None:
        # Do not read from sys.stdin: the waiting thread would hold the lock of the buffer of sys.stdin.
        rest = b""
        while more := os.read(sys.stdin.fileno(), 1 << 20):
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                self._lines.put(line)
        os._exit(1)


class _SyncingAhead:
    """A `Sync` function that syncs files in a thread while the next segment is written."""

    def __call__(self, files: Sequence[DiskFile]) -> Callable[[], None]:
        failed: list[StorageError] = []

        def sync() -> None:
            try:
                for file in files:
                    file.sync()
            except StorageError as error:
                failed.append(error)

        thread = threading.Thread(target=sync, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no memory or no id for another thread
            sync()

        def wait() -> None:
            if thread.ident is not None:
                thread.join()
            if failed:
                raise failed[0]

        return wait


def _set_modified(path: str, modified_ms: int) -> None:
    os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


def main() -> int:
    """Run jobs until no job has arrived for IDLE_SECONDS, or the priority was lowered. Return 0."""
    # The garbage collector is off: the thousands of key lists have no cycles, and the search takes time.
    gc.disable()
    yield_to_others()
    priority = PriorityControl(lambda: cpu_seconds(os.getppid()), lambda: os.nice(NICENESS))
    jobs = _Jobs()
    # A process with lowered priority exits after its job. The next job then runs in a new process with normal
    # priority.
    while not priority.is_lowered and (job := jobs.next()):
        _run_job(job, priority)
        gc.collect()
    return 0


def _run_job(job: Job, priority: PriorityControl) -> None:
    throttler = Throttler(job.bytes_per_second)

    def throttle(size_bytes: int) -> None:
        priority.check()
        throttler(size_bytes)

    priority.reset()
    found = reports(job, RealDisk(), throttle=throttle, set_modified=_set_modified, sync=_SyncingAhead())
    for report in found:
        sys.stdout.write(report_line(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    sys.exit(main())
