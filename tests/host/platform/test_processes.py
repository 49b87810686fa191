"""The CPU time, arguments, priorities and limits of processes."""

from __future__ import annotations

import resource
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.host.platform.processes import (
    OPEN_FILES,
    cpu_seconds,
    has_argument,
    open_file_limits,
    run_when_idle,
    watch_process,
    yield_to_others,
)
from kwire.host.system_os import os


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = "import sys; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "one file"), str(tmp_path / "zwölf")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as found:
        assert found.stdout is not None
        assert found.stdout.read(1) == b"."
        yield found
        found.kill()


@pytest.mark.parametrize("name", ["one file", "zwölf"])
def test_arguments_of_a_process_are_known(
    process: subprocess.Popen[bytes], tmp_path: Path, name: str
) -> None:
    assert has_argument(process.pid, str(tmp_path / name))
    assert not has_argument(process.pid, str(tmp_path / "other"))
    process.kill()
    process.wait()
    assert not has_argument(process.pid, str(tmp_path / name))


def test_directory_of_open_files_lists_each_descriptor(tmp_path: Path) -> None:
    descriptor = os.open(str(tmp_path), os.O_RDONLY)
    assert str(descriptor) in os.listdir(OPEN_FILES)
    os.close(descriptor)


def test_limit_is_one_that_setrlimit_accepts() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, highest = open_file_limits()
    assert soft == before[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_priorities_can_be_lowered_in_a_process_of_its_own() -> None:
    for function in (yield_to_others, run_when_idle):
        program = f"from kwire.host.platform.processes import {function.__name__}; {function.__name__}()"
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_cpu_time_of_a_process_grows_or_is_unknown() -> None:
    before = cpu_seconds(os.getpid())
    if before is not None:
        while (now := cpu_seconds(os.getpid())) == before:
            sum(range(10_000))
        assert now is not None
        assert now > before
    assert cpu_seconds(2**22 + 1) is None


def test_end_of_a_watched_process_ends_the_poll(process: subprocess.Popen[bytes]) -> None:
    poll = select.poll()
    interval_ms = watch_process(poll, process.pid)
    process.kill()
    assert poll.poll(interval_ms) or interval_ms is not None
