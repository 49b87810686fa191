"""Starting workers: processes for a real disk, and generators in this process for a disk in memory."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from kwire.broker.storage.cleaner.job import Cleaned, Job, Report, report_from_line, report_line
from kwire.broker.storage.disk import Disk

_SOURCE_ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))


class Worker(Protocol):
    """A running job."""

    def next_report(self) -> Report:
        """Wait for the next report. May run in any thread. The last report is Done or Failed."""

    def kill(self) -> None:
        """Kill the worker and wait until it has exited. A waiting call of `next_report` returns Failed."""


class WorkerPool(Protocol):
    """The workers of a broker."""

    def start(self, job: Job) -> Worker:
        """Start a job. May be called in any thread."""

    def reap_exited(self) -> None:
        """Remove idle workers that have exited."""

    def close(self) -> None:
        """End the idle workers. A worker with a job ends after the job."""


class _Process:
    """A worker process, with or without a job."""

    def __init__(self) -> None:
        import subprocess  # a late import, because it takes 3 ms

        environment = dict(os.environ)
        # The worker must find the same modules as this process, even if they are not installed.
        environment["PYTHONPATH"] = os.pathsep.join(
            [_SOURCE_ROOT, *filter(None, [environment.get("PYTHONPATH")])]
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kwire.broker.storage.cleaner.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._reading = threading.Lock()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send_job(self, job: Job) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # if the process has exited, the first report shows it
            self._process.stdin.write(job.to_line().encode() + b"\n")
            self._process.stdin.flush()

    def read_line(self) -> bytes:
        """Read a line of the process's output; the result is empty if the process has exited."""
        assert self._process.stdout is not None
        with self._reading:
            return b"" if self._process.stdout.closed else self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        with self._reading:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()


class ProcessWorkerPool:
    """Worker processes, which are reused, because starting a process takes as long as cleaning 50 MB."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._changing = threading.Lock()
        self._closed = False

    def start(self, job: Job) -> ProcessWorker:
        with self._changing:
            process = self._idle.pop() if self._idle else None
        return ProcessWorker(self, job, process)

    def reap_exited(self) -> None:
        with self._changing:
            ended = [process for process in self._idle if not process.is_alive]
            self._idle = [process for process in self._idle if process not in ended]
        for process in ended:
            process.kill()

    def close(self) -> None:
        with self._changing:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()

    def release(self, process: _Process) -> None:
        """Take back a process after its job, for the next job."""
        with self._changing:
            if not self._closed:
                self._idle.append(process)
                return
        process.kill()


class ProcessWorker:
    """A job in a worker process."""

    def __init__(self, workers: ProcessWorkerPool, job: Job, idle: _Process | None) -> None:
        """Start the job in the process `idle`, which may have exited already, or else in a new process."""
        self._workers = workers
        self._job = job
        self._may_have_exited = idle is not None
        self._changing = threading.Lock()
        self._process: _Process | None = idle or _Process()
        self._process.send_job(job)

    def next_report(self) -> Report:
        process = self._process
        line = process.read_line() if process is not None else b""
        if not line and self._may_have_exited:
            with self._changing:
                if self._process is process and process is not None:
                    process.kill()
                    process = self._process = _Process()
                    process.send_job(self._job)
                    self._may_have_exited = False
            line = process.read_line() if process is not None else b""
        self._may_have_exited = False
        report = report_from_line(line)
        if not isinstance(report, Cleaned):
            with self._changing:
                process, self._process = self._process, None
            if process is not None:
                if line:
                    self._workers.release(process)
                else:
                    process.kill()
        return report

    def kill(self) -> None:
        with self._changing:
            process, self._process = self._process, None
        if process is not None:
            process.kill()


class InlineWorkerPool:
    """Workers for a disk that other processes cannot access."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def start(self, job: Job) -> InlineWorker:
        return InlineWorker(job, self._disk)

    def reap_exited(self) -> None:
        return

    def close(self) -> None:
        return


class InlineWorker:
    """A job that runs in the calls of `next_report`, each time up to the next report."""

    def __init__(self, job: Job, disk: Disk) -> None:
        # Imported late: a broker with worker processes does not need these modules.
        from kwire.broker.storage.cleaner.worker import reports

        self._reports: Iterator[Report] | None = reports(Job.from_line(job.to_line()), disk)

    def next_report(self) -> Report:
        report = next(self._reports, None) if self._reports is not None else None
        return report_from_line(report_line(report) if report is not None else "")

    def kill(self) -> None:
        self._reports = None


def worker_pool_for(disk: Disk) -> WorkerPool:
    """Return a pool of processes if other processes can access the disk, or else an InlineWorkerPool."""
    return ProcessWorkerPool() if disk.is_shared else InlineWorkerPool(disk)
