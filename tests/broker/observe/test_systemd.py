"""Notifications of a systemd service, received on a socket like systemd's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kwire.broker.observe.systemd import READY, STOPPING, WATCHDOG, SystemdNotifier

UNIT = Path(__file__).resolve().parents[3] / "docker" / "kwire.service"


@pytest.fixture
def notify_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """Return a socket like the one on which systemd receives notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(30)
        yield sock


@pytest.mark.parametrize("also", [[], ["--http", "0"], ["--console", "--http", "0"]])
def test_a_service_notifies_ready_watchdog_and_stopping(
    also: list[str], notify_socket: socket.socket, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(tmp_path / "data"), *also]
    with subprocess.Popen(
        [*command, "--set", "listeners=PLAINTEXT://127.0.0.1:0", "--log-level", "error"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "NOTIFY_SOCKET": notify_socket.getsockname(), "WATCHDOG_USEC": "100000"},
    ) as broker:
        notifications: list[str] = []
        while READY not in notifications:
            notifications += notify_socket.recv(1000).decode().split("\n")
        assert any(line.startswith("STATUS=serves on 127.0.0.1:") for line in notifications)
        for _ in range(2):
            assert notify_socket.recv(1000).decode() == WATCHDOG
        broker.send_signal(signal.SIGTERM)
        while (last := notify_socket.recv(1000).decode()) == WATCHDOG:
            pass
        assert last == STOPPING
        assert broker.wait(30) == 0


def test_notify_socket_may_be_abstract() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0kwire-test-{os.getpid()}")
        sock.settimeout(10)
        SystemdNotifier({"NOTIFY_SOCKET": f"@kwire-test-{os.getpid()}"}).notify(READY, "STATUS=well")
        assert sock.recv(1000) == b"READY=1\nSTATUS=well"


def test_without_systemd_there_is_no_notification_and_no_watchdog() -> None:
    for environ in ({}, {"WATCHDOG_USEC": "1000000"}, {"NOTIFY_SOCKET": "/no/such/socket"}):
        notifier = SystemdNotifier(environ)
        assert notifier.watchdog_seconds == 0
        notifier.notify(READY)


def test_the_watchdog_of_another_process_is_ignored() -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1500000"}
    assert SystemdNotifier({**environ, "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 1.5
    assert SystemdNotifier({**environ, "WATCHDOG_PID": "1"}).watchdog_seconds == 0
    assert SystemdNotifier({**environ, "WATCHDOG_USEC": "soon"}).watchdog_seconds == 0


async def test_a_blocked_loop_sends_no_watchdog_notification(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifications: list[str] = []
    notifier = SystemdNotifier({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"})
    monkeypatch.setattr(notifier, "notify", notifications.append)
    turns = [True]

    class Loop:
        def call_soon(self, callback: Any) -> None:
            if turns[0]:
                callback()

    running: Any = type("Running", (), {"loop": Loop(), "failure": type("Failure", (), {"reason": ""})})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.run_watchdog, running)
        await trio.sleep(31)
        assert notifications == [WATCHDOG] * 3
        turns[0] = False
        await trio.sleep(120)
        assert notifications == [WATCHDOG] * 3
        nursery.cancel_scope.cancel()


def test_unit_file_matches_the_command_line() -> None:
    unit = ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    command, *arguments = service["ExecStart"].split()
    assert command.endswith("/kwire")
    from kwire.cli.main import _parser

    options = _parser().parse_args(arguments)
    assert (options.command, options.data) == ("serve", "/var/lib/" + service["StateDirectory"])
