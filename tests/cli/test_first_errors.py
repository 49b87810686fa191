"""Errors that a new user may get. Each is one line, which says what is wrong and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVE = [sys.executable, "-m", "kwire", "serve"]
ANY_PORT = ("--set", "listeners=PLAINTEXT://127.0.0.1:0")
PROXIES = {
    **dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:1"),
    **dict.fromkeys(("all_proxy", "ALL_PROXY"), "socks5://127.0.0.1:1"),
}
"""Proxies that do not exist."""
TIMEOUT_SECONDS = 60


@contextmanager
def serving(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[list[str]]:
    """Run a broker and yield the lines that it prints when it serves."""
    with subprocess.Popen(
        [*SERVE, *options, "--log-level", "error"],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        assert broker.stdout is not None
        try:
            yield [broker.stdout.readline() for _ in range(2 if "--console" in options else 1)]
        finally:
            broker.terminate()
        assert broker.wait(TIMEOUT_SECONDS) == 0


def run(
    *command: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def refused(*options: str, cwd: Path | None = None) -> str:
    """Return the only line that a broker prints that does not start."""
    done = run(*SERVE, *options, cwd=cwd)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


def address(lines: list[str]) -> str:
    found = re.search(r"serves on ([\d.:]+),", lines[0])
    assert found
    return found[1]


def test_second_broker_gets_advice(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with serving("--data", data, *ANY_PORT) as lines:
        listeners = f"listeners=PLAINTEXT://{address(lines)}"
        same_port = refused("--data", str(tmp_path / "other"), "--set", listeners)
        same_directory = refused("--data", data, *ANY_PORT)
        same_both = refused("--data", data, "--set", listeners)
    assert same_port.startswith(
        f"kwire: cannot listen on {address(lines)} (listener PLAINTEXT): the port is in use:"
    )
    assert re.search(r"set another port in listeners, as --set listeners=PLAINTEXT://\S+ does$", same_port)
    assert re.search(rf", as --data {data}-2 --set listeners=PLAINTEXT://\S+ does$", same_both)
    assert same_directory.endswith(
        " is in use by another broker, which holds .lock: stop that broker, or choose another directory"
    )


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    """Return a directory in which this user cannot create files."""
    directory = tmp_path / "read-only"
    directory.mkdir(mode=0o555)
    if os.access(directory, os.W_OK):  # root can write to every directory of a disk
        directory = Path("/sys")
        if not directory.exists():
            pytest.skip("there is no directory to which root cannot write")
    return directory


def test_read_only_directory_gets_advice(read_only: Path) -> None:
    """The default data directory is in the current directory."""
    line = refused(*ANY_PORT, cwd=read_only)
    assert re.fullmatch(
        r"kwire: no log directory can be used: [\w -]+ \(kwire-data\): "
        "choose another one with --data or in log.dirs",
        line,
    )
    formatted = run(
        sys.executable, "-m", "kwire", "format", "--cluster-id", "9bUdgKesSCiE-S_L-zL7fw", cwd=read_only
    )
    assert formatted.returncode == 1
    assert re.fullmatch(
        r"kwire: no log directory can be used: [\w -]+ \(kwire-data\): "
        r"choose another one with --data or in log.dirs\n",
        formatted.stderr,
    )


@pytest.mark.parametrize("kind", ["first", "second", "both"])
def test_each_unusable_directory_is_named_once(read_only: Path, tmp_path: Path, kind: str) -> None:
    good, bad = str(tmp_path / "good"), [str(read_only / name) for name in ("bad", "worse")]
    directories = {"first": [bad[0], good], "second": [good, bad[0]], "both": bad}[kind]
    line = refused("--set", f"log.dirs={','.join(directories)}", *ANY_PORT)
    failed = line.partition("no log directory can" if kind == "both" else "a log directory cannot")[2]
    for name in bad if kind == "both" else bad[:1]:
        assert failed.count(name) == 1
    assert failed.endswith(": choose another one in log.dirs")


def test_proxies_are_not_used_on_loopback(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path), "--http", "0", "--console")
    with serving(*data, *ANY_PORT, environment=PROXIES) as lines:
        topics = run(
            sys.executable,
            "-m",
            "kwire",
            "topics",
            "list",
            "--bootstrap-server",
            address(lines),
            environment=PROXIES,
        )
        assert (topics.returncode, topics.stderr) == (0, "there are no topics\n")
        found = re.search(r"http://\S+", lines[1])
        assert found
        # The browser of a user may use a proxy, but the console's own connections do not.
        with build_opener(ProxyHandler({})).open(found[0], timeout=TIMEOUT_SECONDS) as page:
            assert b"<h1>Topics</h1>" in page.read()


# Replaces the version, because there may be no older Python here.
OLD = "import sys; sys.version_info, sys.version = (3, 10, 2), '3.10.2 (main)'; "


def test_command_on_an_old_python_names_the_needed_version() -> None:
    program = "import runpy; runpy.run_module('kwire', run_name='__main__')"
    done = run(sys.executable, "-c", OLD + program, cwd=ROOT)
    assert (done.returncode, done.stderr) == (
        1,
        "kwire needs Python 3.11 or newer, and this is Python 3.10.2\n",
    )


def test_import_on_an_old_python_names_the_needed_version() -> None:
    done = run(sys.executable, "-c", OLD + "import kwire.testing", cwd=ROOT)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: kwire needs Python 3.11 or newer, and this is Python 3.10.2"
    )


@pytest.mark.linux("SO_REUSEADDR lets two sockets bind one address until one of them listens")
def test_port_that_another_program_takes_during_the_start_is_reported_once(tmp_path: Path) -> None:
    script = """
import socket, sys
from kwire.broker.net.running_node import RunningNode
from kwire.cli.main import main
from kwire.cli.server import service

others = []

class LateNode(RunningNode):
    def __init__(self, config):
        super().__init__(config)
        other = socket.socket()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", self._bound[0].port))
        other.listen()
        others.append(other)

service.RunningNode = LateNode
sys.exit(main(["serve", *sys.argv[1:]]))
"""
    done = run(sys.executable, "-c", script, "--data", str(tmp_path / "data"), *ANY_PORT)
    assert (done.returncode, done.stdout) == (1, "")
    reports = [line for line in done.stderr.splitlines() if "cannot listen on" in line]
    assert reports == [done.stderr.splitlines()[-1]]
    assert reports[0].startswith("kwire: ")
    assert "the port is in use" in reports[0]
