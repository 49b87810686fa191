"""Benchmarks that are ended early leave no process and no incomplete download behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
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


@pytest.mark.proc
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


FAKE_MAVEN = """#!/bin/sh
for argument; do case "$argument" in -DoutputDirectory=*) directory="${argument#*=}";; esac; done
mkdir -p "$directory"
touch "$directory/kafka_2.13-4.3.1.jar"
echo $$ > "$directory/pid"
exec sleep 600
"""


def _checkout(directory: Path) -> Path:
    """Return a copy of the checkout whose interop/target is empty."""
    checkout = directory / "checkout"
    (checkout / "interop").mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in ("interop", "bench"):
            (checkout / path.name).symlink_to(path)
    shutil.copytree(ROOT / "bench", checkout / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "reference.py", "pom.xml"):
        shutil.copy(ROOT / "interop" / name, checkout / "interop" / name)
    return checkout


def test_terminated_download_of_apache_kafka_stops_maven_and_is_not_used(tmp_path: Path) -> None:
    checkout, programs = _checkout(tmp_path), tmp_path / "programs"
    programs.mkdir()
    for name in ("mvn", "java"):
        (programs / name).write_text(FAKE_MAVEN)
        (programs / name).chmod(0o755)
    jars = checkout / "interop" / "target" / "kafka"
    jars.mkdir(parents=True)
    (jars / ".complete").write_text("another version")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["make", "--old-file=.venv/.ready", "bench", f"BIN={Path(sys.executable).parent}"]
    with (tmp_path / "output").open("wb") as output:
        make = subprocess.Popen(
            command, cwd=checkout, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    maven = 0
    try:
        until = time.monotonic() + 60
        while not maven:
            assert make.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
            pid = jars / "pid"
            maven = int(pid.read_text() or 0) if pid.exists() else 0
        make.terminate()
        assert make.wait(60) != 0
        assert not _is_running(maven)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(make.pid, signal.SIGKILL)
        make.wait()
    found = subprocess.run(
        [sys.executable, "-c", "from bench.brokers import why_missing; print(why_missing('apache'))"],
        cwd=checkout, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "its jars are missing" in found.stdout
