"""The process that cleans logs: `python -m kwire.broker.storage.cleaner.worker`, its jobs on standard input.

It prints a line for each segment that is complete, and one at the end of each job, and lives no longer than
whoever holds the other end of its input: the broker, which may have been killed.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from kwire.broker.storage.cleaner.job import Failed, Job, Report, report_line
from kwire.broker.storage.cleaner.log_rewriter import LogRewriter, Sync, sync_at_once
from kwire.broker.storage.disk import Disk, DiskFile, FileMissing, RealDisk, StorageError
from kwire.wire.batch import CorruptBatch

NICENESS = 10
"""How far this process stands back behind a broker that has much to do, whose clients wait."""
BUSY = 0.3
"""The part of a core that such a broker uses."""
CHECK_INTERVAL_SECONDS = 0.1
IDLE_SECONDS = 30.0
"""How long it waits for another job."""


def reports(
    job: Job,
    disk: Disk,
    *,
    throttle: Callable[[int], None] = lambda size_bytes: None,
    set_modified: Callable[[str, int], None] = lambda path, modified_ms: None,
    sync: Sync = sync_at_once,
) -> Iterator[Report]:
    """Clean, and say what came of it: the last report is Done or Failed."""
    try:
        yield from LogRewriter(job, disk, throttle=throttle, set_modified=set_modified, sync=sync).run()
    except FileMissing as error:
        # Retention, or the deletion of the topic, was faster.
        yield Failed(str(error), is_permanent=False)
    except StorageError as error:
        yield Failed(str(error), is_permanent=False, is_disk_error=True)
    except CorruptBatch as error:
        yield Failed(str(error), is_permanent=True)


class Throttler:
    """Sleeps where more than so many bytes a second are read and written."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._due = time.monotonic()

    def __call__(self, size_bytes: int) -> None:
        now = time.monotonic()
        # What was not used a while ago cannot be caught up on.
        self._due = max(self._due, now - 0.3) + size_bytes / self._bytes_per_second
        if self._due > now:
            time.sleep(self._due - now)


class PriorityControl:
    """Lets the broker go first as soon as it has much to do, and from then on.

    Standing back from the start would leave the cleaning to the end of whatever else the machine does, though
    the broker itself may be idle. An ordinary process cannot take its niceness back.
    """

    def __init__(
        self, busy_seconds: Callable[[], float | None], lower_priority: Callable[[], object]
    ) -> None:
        """`busy_seconds` is the broker's processor time so far, None if that cannot be known."""
        self._busy_seconds = busy_seconds
        self._lower_priority = lower_priority
        self._checked = time.monotonic()
        self._used = busy_seconds()
        self.is_lowered = self._used is None
        if self.is_lowered:
            lower_priority()

    def reset(self) -> None:
        """What the broker did until now does not count."""
        self._checked, self._used = time.monotonic(), self._busy_seconds()

    def check(self) -> None:
        """To be called often."""
        now = time.monotonic()
        if self.is_lowered or now < self._checked + CHECK_INTERVAL_SECONDS:
            return
        used = self._busy_seconds()
        if used is None or self._used is None or used - self._used > BUSY * (now - self._checked):
            self.is_lowered = True
            self._lower_priority()
        self._checked, self._used = now, used


def _busy_seconds_of_the_broker() -> float | None:
    try:
        with open(f"/proc/{os.getppid()}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class _Jobs:
    """The jobs that the broker hands over, one a line. When it is gone, so is this process."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> Job | None:
        """Wait for a job; None if there was none for long."""
        try:
            return Job.from_line(self._lines.get(timeout=IDLE_SECONDS).decode())
        except Empty:
            return None

    def _listen(self) -> None:
        # Not by way of sys.stdin, whose buffer would be locked by the thread that waits on.
        rest = b""
        while more := os.read(sys.stdin.fileno(), 1 << 20):
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                self._lines.put(line)
        os._exit(1)


class _SyncingAhead:
    """Syncs files in a thread, while the next segment is being written."""

    def __call__(self, files: Sequence[DiskFile]) -> Callable[[], None]:
        failed: list[StorageError] = []

        def sync() -> None:
            try:
                for file in files:
                    file.sync()
            except StorageError as error:
                failed.append(error)

        thread = threading.Thread(target=sync, daemon=True)
        thread.start()

        def wait() -> None:
            thread.join()
            if failed:
                raise failed[0]

        return wait


def _set_modified(path: str, modified_ms: int) -> None:
    os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


def main() -> int:
    """Do one job after the other, until there is none for a while."""
    # Lists of keys come and go by the thousand, none of them in a cycle, and looking for cycles takes time.
    gc.disable()
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # Never takes the processor from a broker that wakes up.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    courtesy = PriorityControl(_busy_seconds_of_the_broker, lambda: os.nice(NICENESS))
    jobs = _Jobs()
    # What stands back once does so for good: the next job deserves a process that need not.
    while not courtesy.is_lowered and (job := jobs.next()):
        _do(job, courtesy)
        gc.collect()
    return 0


def _do(job: Job, courtesy: PriorityControl) -> None:
    pace = Throttler(job.bytes_per_second)

    def throttle(size_bytes: int) -> None:
        courtesy.check()
        pace(size_bytes)

    courtesy.reset()
    found = reports(job, RealDisk(), throttle=throttle, set_modified=_set_modified, sync=_SyncingAhead())
    for report in found:
        sys.stdout.write(report_line(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    sys.exit(main())
