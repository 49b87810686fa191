"""Starting workers: a process for a disk that other processes see, and a plain call for one in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from broker.storage.cleaner.job import Cleaned, Job, Report, report_from_line, report_line
from broker.storage.cleaner.worker import reports
from broker.storage.disk import Disk, RealDisk

_SOURCE_ROOT = Path(__file__).resolve().parents[3]


class Worker(Protocol):
    """A job under way."""

    def next_report(self) -> Report:
        """Wait for the next report, in any thread. After Done or Failed there is none."""

    def kill(self) -> None:
        """End it, whatever it does, and wait for that; who waits for a report gets Failed."""


class ChildWorker:
    """A worker in a process of its own."""

    def __init__(self, job: Job) -> None:
        environment = dict(os.environ)
        # The worker finds the same modules as this process, installed or not.
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(_SOURCE_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "broker.storage.cleaner.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._reading = threading.Lock()
        assert self._process.stdin is not None
        with suppress(OSError):  # If it is dead already, the first report will say so.
            self._process.stdin.write(job.line().encode() + b"\n")
            self._process.stdin.flush()

    def next_report(self) -> Report:
        assert self._process.stdout is not None
        with self._reading:
            line = b"" if self._process.stdout.closed else self._process.stdout.readline()
        report = report_from_line(line)
        if not isinstance(report, Cleaned):
            self.kill()
        return report

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        with self._reading:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()


class InlineWorker:
    """A worker that cleans a bit whenever it is asked for a report."""

    def __init__(self, job: Job, disk: Disk) -> None:
        self._reports: Iterator[Report] | None = reports(Job.from_line(job.line()), disk)

    def next_report(self) -> Report:
        report = next(self._reports, None) if self._reports is not None else None
        return report_from_line(report_line(report) if report is not None else "")

    def kill(self) -> None:
        self._reports = None


def launcher(disk: Disk) -> Callable[[Job], Worker]:
    """How workers are started that clean logs on this disk."""
    if isinstance(disk, RealDisk):
        return ChildWorker
    return lambda job: InlineWorker(job, disk)
