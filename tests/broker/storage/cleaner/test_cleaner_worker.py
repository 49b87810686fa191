"""The cleaner worker as a process on a real disk: reports, I/O rate and termination."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.broker.storage.cleaner.job import Cleaned, Done, Failed, Job, Report, report_from_line
from kwire.broker.storage.cleaner.worker import PriorityControl, Throttler
from kwire.broker.storage.cleaner.worker_pool import (
    InlineWorkerPool,
    ProcessWorkerPool,
    Worker,
    worker_pool_for,
)
from kwire.broker.storage.disk import RealDisk
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import batches, build, records
from tests.broker.storage.log_harness import LogHarness

WORKER = [sys.executable, "-m", "kwire.broker.storage.cleaner.worker"]


@pytest.fixture
def workers() -> Iterator[ProcessWorkerPool]:
    made = ProcessWorkerPool()
    yield made
    made.close()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Build the job for a log of 40 records with 4 keys."""
    bench = LogHarness(RealDisk(), str(tmp_path))
    bench.config = bench.config._replace(segment_bytes=500, index_interval_bytes=1)
    log = bench.open()
    for number in range(40):
        built = build([(bench.now_ms + number, b"k%d" % (number % 4), b"v", [])])
        bench.send(log, memoryview(built))
    log.flush()
    segments = log.segments
    for segment in segments:
        os.utime(segment.log_path, (1_000, segment.base_offset))
    return Job(
        directory=log.directory,
        segments=[(segment.base_offset, segment.size_bytes) for segment in segments],
        log_start_offset=0,
        first_dirty_offset=0,
        upper_bound_offset=segments[-1].base_offset,
        now_ms=bench.now_ms,
        delete_retention_ms=0,
        segment_bytes=1 << 20,
        segment_index_bytes=1 << 20,
        index_interval_bytes=1,
        map_bytes=1 << 20,
        read_bytes=256,
        bytes_per_second=1e300,
    )


def test_worker_process_cleans_a_log(job: Job, workers: ProcessWorkerPool) -> None:
    worker = workers.start(job)
    cleaned = worker.next_report()
    assert isinstance(cleaned, Cleaned)
    assert cleaned.replaced == [base for base, _ in job.segments[:-1]]
    done = worker.next_report()
    assert isinstance(done, Done)
    assert (done.end_offset, done.keys) == (job.upper_bound_offset, 4)
    assert isinstance(worker.next_report(), Failed)
    written = Path(job.directory, "00000000000000000000.log.cleaned")
    data = written.read_bytes()
    assert len(data) == cleaned.size_bytes
    found = [each.key for at, header in batches(data) for each in records(data, at, header)]
    assert sorted(key for key in found if key) == [b"k0", b"k1", b"k2", b"k3"]
    # The age of a segment without timestamps is that of its file.
    assert int(written.stat().st_mtime) == job.segments[-2][0]


def test_worker_can_be_killed(job: Job, workers: ProcessWorkerPool) -> None:
    worker = workers.start(job._replace(bytes_per_second=1.0))
    worker.kill()
    assert isinstance(worker.next_report(), Failed)
    worker.kill()


def test_worker_exits_with_the_broker(job: Job) -> None:
    slow = job._replace(bytes_per_second=1.0)
    with subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(slow.to_line().encode() + b"\n")
        process.stdin.flush()
        process.stdin.close()
        assert process.wait(30) == 1


def test_worker_without_a_job_exits() -> None:
    assert subprocess.run(WORKER, stdin=subprocess.DEVNULL, check=False, timeout=30).returncode == 1


def all_reports(worker: Worker) -> list[Report]:
    reports = [worker.next_report()]
    while isinstance(reports[-1], Cleaned):
        reports.append(worker.next_report())
    return reports


def processes() -> list[str]:
    """Return the worker processes of this process."""
    # -ww: otherwise ps truncates a long path to COLUMNS.
    children = subprocess.run(
        ["ps", "-ww", "--ppid", str(os.getpid()), "-o", "pid=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split()[0] for line in children.stdout.splitlines() if "cleaner.worker" in line]


def test_worker_process_is_reused(job: Job, workers: ProcessWorkerPool) -> None:
    first = all_reports(workers.start(job))
    (used,) = processes()
    assert all_reports(workers.start(job)) == first
    assert processes() == [used]
    workers.close()
    assert processes() == []


def test_dead_idle_worker_process_is_replaced(job: Job, workers: ProcessWorkerPool) -> None:
    first = all_reports(workers.start(job))
    (pid,) = processes()
    os.kill(int(pid), signal.SIGKILL)
    assert all_reports(workers.start(job)) == first
    (again,) = processes()
    assert again != pid


@pytest.mark.linux("waitid")
def test_exited_worker_process_is_removed(job: Job, workers: ProcessWorkerPool) -> None:
    if sys.platform == "linux":
        all_reports(workers.start(job))
        (pid,) = processes()
        os.kill(int(pid), signal.SIGKILL)
        os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
        workers.reap_exited()
        assert processes() == []


def test_job_that_ends_after_the_stop_leaves_no_process(job: Job, workers: ProcessWorkerPool) -> None:
    worker = workers.start(job)
    workers.close()
    all_reports(worker)
    assert processes() == []


def test_deleted_log_is_no_permanent_failure(job: Job, workers: ProcessWorkerPool) -> None:
    Path(job.directory, "00000000000000000000.log").unlink()
    report = workers.start(job).next_report()
    assert isinstance(report, Failed)
    assert not report.is_permanent


def test_memory_disk_has_workers_in_the_same_process() -> None:
    assert isinstance(worker_pool_for(RealDisk()), ProcessWorkerPool)
    disk = MemoryDisk()
    disk.make_directory("/data")
    job = Job("/data", [(0, 0)], 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1.0)
    workers = worker_pool_for(disk)
    assert isinstance(workers, InlineWorkerPool)
    worker = workers.start(job)
    assert isinstance(worker.next_report(), Done)
    worker.kill()
    assert isinstance(worker.next_report(), Failed)


def test_io_rate_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", sleep)
    pace = Throttler(1000.0)
    rng = random.Random(0)
    told = 0
    for _ in range(200):
        size_bytes = rng.randint(1, 500)
        told += size_bytes
        pace(size_bytes)
    assert told / 1000 - 0.5 <= now[0] <= told / 1000 + 1e-6


def test_worker_yields_to_a_busy_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used = [100.0], [1.0]
    stepped: list[float] = []
    monkeypatch.setattr("kwire.broker.storage.cleaner.worker.time.monotonic", lambda: clock[0])
    courtesy = PriorityControl(lambda: used[0], lambda: stepped.append(clock[0]))
    for _ in range(10):  # a tenth of a core
        clock[0] += 0.2
        used[0] += 0.02
        courtesy.check()
    assert stepped == []
    for _ in range(10):  # half a core
        clock[0] += 0.2
        used[0] += 0.1
        courtesy.check()
    assert len(stepped) == 1


def test_worker_yields_if_the_broker_load_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stepped = [100.0], []
    monkeypatch.setattr("kwire.broker.storage.cleaner.worker.time.monotonic", lambda: clock[0])
    courtesy = PriorityControl(lambda: None, lambda: stepped.append(clock[0]))
    courtesy.check()
    assert not courtesy.is_lowered, "a process with lowered priority accepts no job"
    clock[0] += 0.2
    courtesy.check()
    assert stepped == [100.2]


WITHOUT_PROC = """\
import builtins, sys
opened = builtins.open
def open_(path, *args, **kwargs):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(path)
    return opened(path, *args, **kwargs)
builtins.open = open_
from kwire.broker.storage.cleaner.worker import main
sys.exit(main())
"""


def test_worker_process_cleans_a_log_where_proc_cannot_be_read(job: Job) -> None:
    program = [sys.executable, "-c", WITHOUT_PROC]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(job.to_line().encode() + b"\n")
        process.stdin.flush()
        reports = [report_from_line(process.stdout.readline().decode()) for _ in range(2)]
        process.stdin.close()
    assert [type(report) for report in reports] == [Cleaned, Done]
