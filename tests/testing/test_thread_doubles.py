"""An embedded broker in a test that replaces files, sockets and other functions of its process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import pytest_socket
from pyfakefs.fake_filesystem_unittest import Patcher

from kwire.testing import Broker, Cluster

Double = Callable[[], AbstractContextManager[Any]]

FILE_FUNCTIONS = (
    "access", "chmod", "close", "fdatasync", "fsync", "ftruncate", "fstat", "getpid", "listdir", "lseek",
    "makedirs", "mkdir", "open", "pread", "pwritev", "read", "remove", "rename", "replace", "rmdir",
    "scandir", "stat", "statvfs", "unlink", "urandom", "write",
)  # fmt: skip


@contextmanager
def mocks(*names: str, **behavior: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch(name, **behavior))
        yield


@contextmanager
def blocked_sockets() -> Iterator[None]:
    pytest_socket.disable_socket()
    try:
        yield
    finally:
        pytest_socket.enable_socket()


DOUBLES: dict[str, Double] = {
    "open": lambda: mocks("builtins.open", "io.open", new_callable=mock.mock_open, read_data="x"),
    "failing open": lambda: mocks("builtins.open", "io.open", side_effect=OSError),
    "os": lambda: mocks(*(f"os.{name}" for name in FILE_FUNCTIONS)),
    "failing os": lambda: mocks(*(f"os.{name}" for name in FILE_FUNCTIONS), side_effect=OSError),
    "os.path": lambda: mocks("os.path.exists", "os.path.isdir", "os.path.isfile", return_value=False),
    "os.environ": lambda: mock.patch.dict(os.environ, clear=True),
    "shutil and tempfile": lambda: mocks("shutil.rmtree", "tempfile.mkdtemp", "tempfile.TemporaryDirectory"),
    "pyfakefs": Patcher,
    "pytest-socket": blocked_sockets,
    "sockets": lambda: mocks("socket.socket", "socket.create_connection", "socket.getaddrinfo"),
    "failing sockets": lambda: mocks(
        "socket.socket", "socket.create_connection", "socket.getaddrinfo", side_effect=OSError
    ),
    "threading.Thread": lambda: mocks("threading.Thread"),
    "random": lambda: mocks("random.Random", "random.SystemRandom", "random.random", "random.getrandbits"),
    "subprocess": lambda: mocks("subprocess.Popen", "subprocess.run"),
}


@pytest.fixture(params=list(DOUBLES.values()), ids=list(DOUBLES))
def double(request: pytest.FixtureRequest) -> Double:
    found: Double = request.param
    return found


@pytest.fixture(scope="module", autouse=True)
def broker() -> Iterator[Broker]:
    """Start a broker, which imports the broker's modules before a test replaces what they import."""
    with Broker() as broker:
        yield broker


def test_broker_serves_while_a_test_replaces_functions(broker: Broker, double: Double) -> None:
    with double():
        orders = broker.new_topic("orders", partitions=3)
        broker.produce(orders, "order 1")
        broker.restart()
        broker.produce(orders, "order 2")
        broker.advance(60_000)
        broker.crash()
        broker.start()
        broker.produce(orders, "order 3")
    assert [one.value for one in broker.records(orders, count=3)] == [b"order 1", b"order 2", b"order 3"]


def test_broker_that_starts_while_a_test_replaces_functions_has_real_files(double: Double) -> None:
    broker = Broker()
    with double():
        broker.start()
        broker.produce("orders", "order 1")
    directory = broker.log_dir
    assert "orders-0" in os.listdir(directory)
    with double():
        broker.stop()
    assert not os.path.exists(directory)


@pytest.mark.parametrize("replaced", ["pyfakefs", "failing sockets", "threading.Thread"])
def test_cluster_starts_and_serves_while_a_test_replaces_functions(replaced: str) -> None:
    with DOUBLES[replaced](), Cluster() as cluster:
        orders = cluster.new_topic("orders")
        cluster.produce(orders, "order 1")
        cluster.leader(orders).crash()
        cluster.produce(orders, "order 2")
        assert len(cluster.records(orders, count=2)) == 2


@pytest.mark.parametrize(
    "replace",
    [
        "import pytest_socket; pytest_socket.disable_socket()",
        "from pyfakefs.fake_filesystem_unittest import Patcher; Patcher().setUp()",
        "from unittest import mock; mock.patch('socket.socket').start(); mock.patch('builtins.open').start()",
    ],
)
def test_broker_serves_if_functions_are_replaced_before_the_import(replace: str) -> None:
    program = f"""
from kwire import testing
{replace}
with testing.Broker() as broker:
    broker.produce("orders", "order 1")
    assert len(broker.records("orders", count=1)) == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
