"""The process of `kwire serve`: its event loop, stop signals, and the notification of its parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kwire.cli.broker_settings import READY_FD

CODE = """
import sys
from kwire.cli.main import main
status = main(["serve", "--data", sys.argv[1], *sys.argv[2:]])
print("trio" in sys.modules)
sys.exit(status)
"""
FREE_PORT = "listeners=PLAINTEXT://127.0.0.1:0"
Start = Callable[..., "ServeProcess"]


class ServeProcess:
    """A process of `kwire serve`, with the pipe that it notifies."""

    def __init__(self, data: Path, arguments: tuple[str, ...]) -> None:
        self.ready_fd, child_fd = os.pipe()
        os.set_inheritable(child_fd, True)
        command = [sys.executable, "-c", CODE, str(data), "--set", FREE_PORT, *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, READY_FD: str(child_fd)},
            pass_fds=[child_fd],
        )
        os.close(child_fd)

    def read_ready_byte(self) -> bytes:
        """Wait until the process serves, and return the byte; return b"" if the process has ended."""
        return os.read(self.ready_fd, 1)

    def end(self, *signals: int) -> tuple[int, str, str]:
        """Send signals, and return the exit status and the last lines of both outputs."""
        for number in signals:
            self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output.splitlines()[-1:][0] if output else "", errors

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.ready_fd)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ServeProcess] = []

    def start_process(*arguments: str) -> ServeProcess:
        started.append(ServeProcess(tmp_path / "data", arguments))
        return started[-1]

    yield start_process
    for process in started:
        process.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_shuts_the_node_down_cleanly(start: Start, tmp_path: Path, number: int) -> None:
    serving = start()
    assert serving.read_ready_byte() == b"\n"
    assert serving.read_ready_byte() == b"", "the process closes the pipe once it serves"
    status, last_line, errors = serving.end(number)
    assert (status, "Shutting down" in errors) == (0, True)
    assert last_line == "False", "without other tasks, trio is not imported"
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_stop_signal_during_the_start_shuts_the_node_down(start: Start) -> None:
    serving = start("--set", "process.roles=broker,controller", "--set", "node.id=1")
    assert serving.process.stderr is not None
    serving.process.stderr.readline()  # the first log line is older than the readiness
    status, _, errors = serving.end(signal.SIGTERM)
    assert (status, "Traceback" in errors) == (0, False)


def test_node_with_an_http_port_runs_under_trio(start: Start) -> None:
    serving = start("--http", "127.0.0.1:0")
    assert serving.read_ready_byte() == b"\n"
    status, last_line, _ = serving.end(signal.SIGTERM)
    assert (status, last_line) == (0, "True")


def test_node_that_cannot_start_writes_no_byte(start: Start) -> None:
    serving = start("--set", "log.segment.bytes=nonsense")
    assert serving.read_ready_byte() == b""
    assert serving.end()[0] == 1
