"""The imitation of macOS, and the core of the tests that run on it. `make test-portable` runs all of them."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("the imitation needs epoll", allow_module_level=True)
assert sys.platform == "linux"

from tests.portable.darwin_names import missing_names  # noqa: E402
from tests.portable.kqueue import (  # noqa: E402
    KQ_EV_ADD,
    KQ_EV_DELETE,
    KQ_EV_DISABLE,
    KQ_EV_ENABLE,
    KQ_EV_EOF,
    KQ_EV_ERROR,
    KQ_EV_ONESHOT,
    KQ_FILTER_READ,
    KQ_FILTER_TIMER,
    KQ_FILTER_WRITE,
    kevent,
    kqueue,
)

ROOT = Path(__file__).parents[2]
CORE = (
    "tests/host/platform",
    "tests/broker/net/test_loop.py",
    "tests/broker/net/test_send_queue.py",
    "tests/testing/test_broker.py::test_second_broker_cannot_use_a_locked_directory",
)
PROGRAM = """\
import fcntl, os, select, sys
import kwire.host.platform.events, kwire.host.platform.files, kwire.host.system_os
from kwire.testing import Broker
kept = hasattr(select, "epoll"), hasattr(os, "eventfd"), sys.platform
seen = [kwire.host.platform.events.select, kwire.host.platform.files.fcntl, kwire.host.platform.events.sys]
with Broker() as broker:
    broker.produce("orders", b"first")
    print(kept, hasattr(seen[0], "epoll"), hasattr(seen[1], "F_OFD_SETLK"), seen[2].platform)
    print(hasattr(kwire.host.system_os.os, "eventfd"), broker.records("orders", count=1)[0].value)
"""


@pytest.fixture
def queue() -> Iterator[kqueue]:
    found = kqueue()
    yield found
    found.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


Pair = tuple[socket.socket, socket.socket]


def found(queue: kqueue, timeout: float | None = 0) -> list[tuple[int, int, bool]]:
    return [
        (event.ident, event.filter, bool(event.flags & KQ_EV_EOF))
        for event in queue.control(None, 9, timeout)
    ]


def test_directions_of_a_descriptor_have_separate_filters(queue: kqueue, pair: Pair) -> None:
    left, right = pair
    fd = left.fileno()
    queue.control([kevent(fd, KQ_FILTER_READ), kevent(fd, KQ_FILTER_WRITE)], 0)
    right.sendall(b"12345")
    assert found(queue) == [(fd, KQ_FILTER_READ, False), (fd, KQ_FILTER_WRITE, False)]
    assert queue.control(None, 1, 0)[0].data == 5
    queue.control([kevent(fd, KQ_FILTER_WRITE, KQ_EV_DISABLE)], 0)
    assert found(queue) == [(fd, KQ_FILTER_READ, False)]
    queue.control([kevent(fd, KQ_FILTER_WRITE, KQ_EV_ENABLE), kevent(fd, KQ_FILTER_READ, KQ_EV_DELETE)], 0)
    assert found(queue) == [(fd, KQ_FILTER_WRITE, False)]


@pytest.mark.parametrize("flag", [KQ_EV_DELETE, KQ_EV_ENABLE, KQ_EV_DISABLE])
def test_change_of_a_missing_filter_is_an_error(queue: kqueue, pair: Pair, flag: int) -> None:
    fd = pair[0].fileno()
    queue.control([kevent(fd, KQ_FILTER_READ)], 0)
    with pytest.raises(FileNotFoundError):
        queue.control([kevent(fd, KQ_FILTER_WRITE, flag)], 0)
    [event] = queue.control([kevent(fd, KQ_FILTER_WRITE, flag)], 1, 0)
    assert (event.flags & KQ_EV_ERROR, event.data) == (KQ_EV_ERROR, errno.ENOENT)


def test_end_of_the_stream_is_an_event_of_both_filters(queue: kqueue, pair: Pair) -> None:
    left, right = pair
    fd = left.fileno()
    queue.control([kevent(fd, KQ_FILTER_READ), kevent(fd, KQ_FILTER_WRITE)], 0)
    right.shutdown(socket.SHUT_WR)
    assert found(queue) == [(fd, KQ_FILTER_READ, True), (fd, KQ_FILTER_WRITE, False)]
    right.close()
    assert found(queue) == [(fd, KQ_FILTER_READ, True), (fd, KQ_FILTER_WRITE, True)]
    queue.control([kevent(fd, KQ_FILTER_READ, KQ_EV_DELETE), kevent(fd, KQ_FILTER_WRITE, KQ_EV_DELETE)], 0)
    assert found(queue) == []


def test_closed_descriptor_loses_its_filters(queue: kqueue, pair: Pair) -> None:
    fd = os.dup(pair[0].fileno())
    queue.control([kevent(fd, KQ_FILTER_READ), kevent(fd, KQ_FILTER_WRITE)], 0)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        queue.control([kevent(fd, KQ_FILTER_READ, KQ_EV_DELETE)], 0)
    with socket.socket() as other:
        assert other.fileno() == fd
        with pytest.raises(FileNotFoundError):
            queue.control([kevent(fd, KQ_FILTER_READ, KQ_EV_DELETE)], 0)


def test_timer_is_reported_once(queue: kqueue) -> None:
    flags = KQ_EV_ADD | KQ_EV_ONESHOT
    queue.control([kevent(7, KQ_FILTER_TIMER, flags, data=3_600_000)], 0)
    queue.control([kevent(7, KQ_FILTER_TIMER, flags, data=1)], 0)
    assert select.select([queue.fileno()], [], [])[0]
    assert found(queue, None) == [(7, KQ_FILTER_TIMER, False)]
    with pytest.raises(FileNotFoundError):
        queue.control([kevent(7, KQ_FILTER_TIMER, KQ_EV_DELETE)], 0)


def test_forked_process_has_no_queue(queue: kqueue) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0 if queue.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not queue.closed


def test_missing_names_are_those_that_macos_lacks() -> None:
    missing = missing_names()
    assert {"eventfd", "posix_fallocate", "posix_fadvise", "RWF_NOWAIT", "memfd_create"} <= {*missing["os"]}
    assert {"epoll", "EPOLLIN"} <= {*missing["select"]}
    assert "F_OFD_SETLK" in missing["fcntl"]
    assert not {"pread", "preadv", "pwritev", "sendfile", "posix_spawn", "fsync"} & {*missing["os"]}


def test_only_modules_of_kwire_see_the_imitation(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text(json.dumps(missing_names()))
    environment = {
        **os.environ,
        "KWIRE_TESTS_MISSING_NAMES": str(tmp_path / "names.json"),
        "PYTHONPATH": str(Path(__file__).parent / "site"),
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    kept = "(True, True, 'linux')"
    assert ran.stdout == f"{kept} False False darwin\nFalse b'first'\n", ran.stderr


@pytest.mark.linux("epoll")
def test_core_of_the_tests_passes_on_the_imitation() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.portable.plugin", *CORE]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr
