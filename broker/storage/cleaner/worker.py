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

from broker.storage.cleaner.job import Done, Failed, Job, Report, report_line
from broker.storage.cleaner.rewriting import LogCleaning
from broker.storage.disk import Disk, FileMissing, RealDisk, StorageError
from kwire.batch import CorruptBatch

NICENESS = 10
"""How far this process stands back behind the broker, whose clients wait."""


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


def _end_with_the_broker() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _set_modified(path: str, modified_ms: int) -> None:
    os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


def main() -> int:
    """Take a job, do it."""
    os.nice(NICENESS)
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
    for report in reports(job, RealDisk(), throttle=Pace(job.bytes_per_second), set_modified=_set_modified):
        sys.stdout.write(report_line(report) + "\n")
        sys.stdout.flush()
        done = isinstance(report, Done)
    return 0 if done else 1


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    sys.exit(main())
