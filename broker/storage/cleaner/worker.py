"""The process that cleans one log: `python -m broker.storage.cleaner.worker`, a job on its standard input.

It prints a line for each segment that is complete, and one at the end, and lives no longer than whoever holds
the other end of its input: the broker, which may have been killed.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from broker.storage.cleaner.job import Done, Failed, Job, Report, report_line
from broker.storage.cleaner.rewriting import LogCleaning
from broker.storage.disk import Disk, FileMissing, RealDisk, StorageError
from kwire.batch import CorruptBatch

NICENESS = 10
"""How far this process stands back behind a broker that has much to do, whose clients wait."""
BUSY = 0.3
"""The part of a core that such a broker uses."""
LOOK_SECONDS = 0.1


def reports(
    job: Job,
    disk: Disk,
    *,
    throttle: Callable[[int], None] = lambda size_bytes: None,
    set_modified: Callable[[str, int], None] = lambda path, modified_ms: None,
) -> Iterator[Report]:
    """Clean, and say what came of it: the last report is Done or Failed."""
    try:
        yield from LogCleaning(job, disk, throttle=throttle, set_modified=set_modified).run()
    except FileMissing as error:
        # Retention, or the deletion of the topic, was faster.
        yield Failed(str(error), for_good=False)
    except StorageError as error:
        yield Failed(str(error), for_good=False)
    except CorruptBatch as error:
        yield Failed(str(error), for_good=True)


class Pace:
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


class Courtesy:
    """Lets the broker go first as soon as it has much to do, and from then on.

    Standing back from the start would leave the cleaning to the end of whatever else the machine does, though
    the broker itself may be idle. An ordinary process cannot take its niceness back.
    """

    def __init__(self, busy_seconds: Callable[[], float | None], step_back: Callable[[], object]) -> None:
        """`busy_seconds` is the broker's processor time so far, None if that cannot be known."""
        self._busy_seconds = busy_seconds
        self._step_back = step_back
        self._looked = time.monotonic()
        self._used = busy_seconds()
        self._is_behind = self._used is None
        if self._is_behind:
            step_back()

    def look(self) -> None:
        """To be called often."""
        now = time.monotonic()
        if self._is_behind or now < self._looked + LOOK_SECONDS:
            return
        used = self._busy_seconds()
        if used is None or self._used is None or used - self._used > BUSY * (now - self._looked):
            self._is_behind = True
            self._step_back()
        self._looked, self._used = now, used


def _busy_seconds_of_the_broker() -> float | None:
    try:
        with open(f"/proc/{os.getppid()}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _end_with_the_broker() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _set_modified(path: str, modified_ms: int) -> None:
    os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


def main() -> int:
    """Take a job, do it."""
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # Never takes the processor from a broker that wakes up.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    courtesy = Courtesy(_busy_seconds_of_the_broker, lambda: os.nice(NICENESS))
    line = bytearray()
    # Not by way of sys.stdin, whose buffer would be locked by the thread that waits on.
    while not line.endswith(b"\n"):
        more = os.read(sys.stdin.fileno(), 1 << 20)
        if not more:
            return 1
        line += more
    job = Job.from_line(line.decode())
    threading.Thread(target=_end_with_the_broker, daemon=True).start()
    done = False
    pace = Pace(job.bytes_per_second)

    def throttle(size_bytes: int) -> None:
        courtesy.look()
        pace(size_bytes)

    for report in reports(job, RealDisk(), throttle=throttle, set_modified=_set_modified):
        sys.stdout.write(report_line(report) + "\n")
        sys.stdout.flush()
        done = isinstance(report, Done)
    return 0 if done else 1


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    sys.exit(main())
