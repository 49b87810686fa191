"""Benchmarks that are ended early leave no broker behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _brokers(parent_pid: int) -> list[int]:
    """Return the pids of the child processes that run `kwire serve`."""
    children = Path(f"/proc/{parent_pid}/task/{parent_pid}/children").read_text().split()
    return [pid for pid in map(int, children) if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ended_benchmark_stops_its_brokers(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "latency", "--only", "kwire", "--seconds", "60"]
    with (tmp_path / "errors").open("wb") as errors:
        bench = subprocess.Popen(
            command, cwd=ROOT, stdout=errors, stderr=errors, env={**os.environ, "TMPDIR": str(tmp_path)}
        )
    try:
        until = time.monotonic() + 60
        while not (brokers := _brokers(bench.pid)):
            assert bench.poll() is None, (tmp_path / "errors").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        bench.send_signal(number)
        assert bench.wait(60) != 0
    finally:
        bench.kill()
    assert not any(map(_is_running, brokers))
    assert not list(tmp_path.glob("bench-*")), "the data of the brokers is left"
