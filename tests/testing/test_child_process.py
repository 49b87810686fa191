"""The child process of `Broker(process="child")`: its start, its end, and what reaches it."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kwire.testing import Broker, Kafka, wait_until
from kwire.testing.child_frames import Call, Result, encode_call, join_error, receive
from kwire.testing.child_process import CHILD_ITSELF, CHILD_PROCESSES, ChildDied, ChildProcess
from kwire.testing.child_server import ChildServer, Connection
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.testing.peer import Peer, produce_request


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(process="child") as broker:
        yield broker


def child() -> ChildProcess:
    """Return the child process of this process."""
    return CHILD_PROCESSES.get()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.proc
def test_all_brokers_run_in_one_process(broker: Broker) -> None:
    with Broker(process="child") as other:
        assert broker.bootstrap_servers != other.bootstrap_servers
        pid = child().pid
        sockets = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.exists()}
        for running in (broker, other):
            port = int(running.bootstrap_servers.rpartition(":")[2])
            [inode] = [
                line.split()[9]
                for line in Path("/proc/net/tcp").read_text().splitlines()
                if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
            ]
            assert f"socket:[{inode}]" in sockets


@pytest.mark.linux("prlimit")
def test_soft_limit_of_descriptors_is_raised_in_the_child_process_only(broker: Broker) -> None:
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert resource.prlimit(child().pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_dead_child_process_is_named_with_its_last_log_lines() -> None:
    with Broker(process="child") as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(1) == b""
        pid = child().pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            ChildDied, match=f"child process {pid} .* signal 9; its last log lines:\n"
        ) as died:
            broker.topics()
        assert "the peer sent an HTTP request" in str(died.value)
        with pytest.raises(RuntimeError, match=r"the broker is not running: call start\(\)"):
            broker.topics()
        assert not broker.is_running
    assert child().pid != pid


def test_broker_starts_again_with_its_data_after_its_process_died(tmp_path: Path) -> None:
    with Broker(process="child", log_dir=tmp_path) as broker:
        broker.faults.drop_response("Produce")
        broker.produce("orders", "first")
        os.kill(child().pid, signal.SIGKILL)
        wait_until(lambda: not broker.is_running)
        broker.start()
        assert [one.value for one in broker.records("orders")] == [b"first"]
        assert not broker.faults.any_pending
        with Peer(broker) as peer:
            peer.request(produce_request("orders"), 9)
        assert len(broker.requests) == 1


def test_process_that_cannot_start_is_reported_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    process = ChildProcess()
    with pytest.raises(
        ChildDied, match=rf"child process {process.pid} of kwire.testing ended with exit status 1"
    ):
        process.call(CHILD_ITSELF, "wait_for_log")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        ChildProcess()
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RuntimeError, match=r"sys\.executable is empty"):
        ChildProcess()


@pytest.mark.proc
def test_inheritable_descriptors_of_the_test_are_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(server.fileno(), True)
        inode = os.readlink(f"/proc/self/fd/{server.fileno()}")
        process = ChildProcess()
        process.call(CHILD_ITSELF, "wait_for_log")
        assert inode not in {
            os.readlink(one) for one in Path(f"/proc/{process.pid}/fd").iterdir() if one.exists()
        }
        process.end()
    assert not is_alive(process.pid)


LOCKED_FORK = """\
import os
from kwire.testing import Broker
from kwire.testing.child_process import CHILD_PROCESSES

CHILD_PROCESSES.get()
CHILD_PROCESSES._lock.acquire()
pid = os.fork()
if not pid:
    with Broker(process="child") as broker:
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_fork_does_not_inherit_a_held_lock() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKED_FORK], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            assert parent.communicate(timeout=20)[0] == "7\n"
        except BaseException:
            os.killpg(parent.pid, signal.SIGKILL)
            raise


class Unknown:
    """An object that cannot be unpickled, like an instance of a class of the test."""

    def __reduce__(self) -> Any:
        return import_module, ("no_such_module",)


def test_argument_that_the_child_process_cannot_import_is_refused(broker: Broker) -> None:
    unknown: Any = Unknown()
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        broker._call(lambda client: client.committed(unknown))
    assert broker.topics() == []


class Unsendable:
    """An object whose pickling fails with an error of its own."""

    def __reduce__(self) -> Any:
        raise LookupError("no pickle")

    def __str__(self) -> str:
        raise ValueError("no text")


class UnsendableError(Exception):
    """An exception that can be neither sent nor printed."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (Unsendable(), None, "cannot be sent: LookupError: no pickle"),
        (None, UnsendableError(Unsendable()), "UnsendableError"),
    ],
)
def test_result_that_cannot_be_sent_is_an_error_of_its_call(
    value: object, error: Exception | None, text: str
) -> None:
    server = ChildServer()
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    with ours, patch.object(server, "execute", side_effect=error, return_value=value):
        thread = threading.Thread(target=Connection(theirs, server).serve)
        thread.start()
        for _ in range(2):  # the connection is still open
            ours.sendall(encode_call(Call(CHILD_ITSELF, "any", (), None, [])))
            result = Result(*pickle.loads(receive(ours.recv)))
            assert result.error is not None
            with pytest.raises(RuntimeError, match=text):
                raise join_error(result.error)
    thread.join(10)
    logging.getLogger().removeHandler(server.log)


SCRIPT = """\
from kwire.testing import Broker
with Broker(process="child") as broker:
    broker.produce("orders", "first")
    print(len(broker.records("orders")))
"""


@pytest.mark.parametrize("closed", ["", "<&-"])
def test_script_prints_no_error_at_its_end(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, SCRIPT]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


STREAMS = """\
import os
from kwire.testing.child_process import CHILD_ITSELF, ChildProcess
process = ChildProcess()
process.call(CHILD_ITSELF, "wait_for_log")
links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)]
assert links[0] == "/dev/null", links
assert links[1] == links[2], links
assert links[1].endswith("kwire child process (deleted)"), links
"""


@pytest.mark.proc
@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_child_process_has_its_streams_if_the_test_has_none(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, STREAMS]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


PARENT = """\
import os, sys, time
from kwire.testing import Broker
from kwire.testing.child_process import CHILD_PROCESSES

broker = Broker(process="child")
broker.start()
if sys.argv[1] == "fork" and not os.fork():
    time.sleep(60)          # keeps the sockets of its parent open
log_dir = broker.log_dir
if sys.argv[1] == "hang":
    broker.hang()
print(CHILD_PROCESSES.get().pid, log_dir, flush=True)
if sys.argv[1] != "exit":
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["exit", "killed", "fork", "hang"])
@pytest.mark.proc
def test_child_process_ends_with_its_parent(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert how == "exit" or is_alive(int(pid))
        if how != "exit":
            parent.kill()
        parent.wait()
        wait_until(lambda: not is_alive(int(pid)), description="the end of the child process")
        wait_until(lambda: not Path(directory).exists(), description="the removal of the data")
        if how == "fork":
            os.killpg(parent.pid, signal.SIGKILL)


def test_interrupt_of_the_terminal_does_not_end_the_child_process() -> None:
    program = (
        PARENT.replace("    time.sleep(60)\n", "    signal.pause()\n") + "\nbroker.topics(); broker.stop()"
    )
    program = "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\n" + program
    with subprocess.Popen(
        [sys.executable, "-c", program, "wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        time.sleep(0.05)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait(10) == 0


@pytest.mark.proc
def test_fifty_starts_leak_no_descriptors_or_threads_in_either_process() -> None:
    def use() -> None:
        with Broker(process="child") as one:
            one.create_topic("t")

    def resources() -> list[int]:
        return [
            len(list(Path(f"/proc/{pid}/{kind}").iterdir()))
            for pid in (child().pid, os.getpid())
            for kind in ("fd", "task")
        ]

    use()
    before = resources()
    for _ in range(50):
        use()
    wait_until(lambda: all(now <= then for now, then in zip(resources(), before, strict=True)))


def test_log_of_the_broker_reaches_caplog(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with Peer(broker) as peer:
        peer.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: caplog.records)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("kwire.net", logging.WARNING)
    assert "Closing connection" in record.getMessage()


def test_level_of_the_parent_process_applies(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kwire.net")
    broker.topics()
    Peer(broker).sock.close()
    wait_until(lambda: "Accepted connection" in caplog.text)


def test_log_thread_continues_after_a_line_that_cannot_be_created(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kwire.net")
    broker.topics()
    with patch("time.time", side_effect=ValueError):
        for _ in range(3):
            Peer(broker).sock.close()
            broker.topics()
        time.sleep(0.05)  # the log thread receives the other lines
    caplog.clear()
    Peer(broker).sock.close()
    wait_until(lambda: "Accepted connection" in caplog.text)


def test_broker_ends_when_its_object_is_collected(tmp_path: Path) -> None:
    broker = Broker(process="child", log_dir=tmp_path)
    broker.start()
    host, _, port = broker.bootstrap_servers.rpartition(":")
    del broker
    gc.collect()

    def is_refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    wait_until(is_refused, description="the end of the broker")


def test_calls_of_several_threads_do_not_wait_for_each_other(broker: Broker) -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(broker.records("late", count=1)))
    thread.start()
    began = time.monotonic()
    fault = broker.faults.delay("Fetch", 0)
    broker.advance(1000)
    assert (fault.hits, len(broker.requests)) == (0, 0)
    assert time.monotonic() - began < 5, "the calls have waited for the thread"
    with Kafka(broker.bootstrap_servers) as kafka:
        kafka.produce("late", "x")
    thread.join(20)
    assert len(found) == 1


def test_enum_of_the_test_is_a_topic_name(broker: Broker) -> None:
    topic: Any = StrEnum("topic", {"ORDERS": "orders"}, module="no_such_module")
    broker.produce(topic.ORDERS, "first")
    assert broker.topics() == ["orders"]
    with pytest.raises(ApiError) as refused:
        broker.create_topic(topic.ORDERS)
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_exchange_that_the_test_holds_gets_its_result_after_clear(broker: Broker) -> None:
    topic = broker.new_topic()
    with Peer(broker) as peer:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, partitions=[partition])]
        peer.send(FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20, topics=topics), 12)
        [held] = broker.wait_until(lambda: broker.requests.find("Fetch"))
        assert (held.outcome, held.response, held.response_bytes) == (None, None, 0)
        broker.requests.clear()
        assert list(broker.requests) == []
        assert "no response yet" in str(held)
    wait_until(lambda: held.outcome == "the client disconnected")
    assert broker.requests.find("Fetch") == []


def test_exchanges_keep_their_identity(broker: Broker) -> None:
    with Peer(broker) as peer:
        for _ in range(3):
            peer.request(produce_request(broker.new_topic()), 9)
    found = broker.requests.find("Produce")
    assert found == list(broker.requests) == broker.requests.find("Produce")


def raise_error(*args: object, **kwargs: object) -> None:
    raise OSError("a double was called")


DOUBLES: list[str] = [
    "builtins.open",
    "io.open",
    "os.open",
    "os.close",
    "os.fork",
    "os.fstat",
    "os.getcwd",
    "os.listdir",
    "os.makedirs",
    "os.posix_spawn",
    "os.pread",
    "os.read",
    "os.stat",
    "os.waitpid",
    "os.write",
    "select.epoll" if sys.platform == "linux" else "select.kqueue",
    "select.poll",
    "select.select",
    "socket.create_connection",
    "socket.getaddrinfo",
    "socket.socket",
    "subprocess.Popen",
    "tempfile.mkdtemp",
    "threading.Thread",
    "time.time",
]


def use(broker: Broker) -> None:
    """Call methods of all kinds."""
    broker.produce("orders", "first")
    fault = broker.faults.return_error("Produce", "INVALID_RECORD", times=None)
    broker.advance(60_000)
    broker.restart()
    broker.crash()
    broker.start()
    assert [one.value for one in broker.records("orders", count=1)] == [b"first"]
    assert (fault.hits, len(broker.requests)) == (0, 0)


@pytest.mark.parametrize("started_before", [True, False])
def test_broker_does_not_notice_replaced_functions(started_before: bool) -> None:
    broker = Broker(process="child")
    stack: list[Callable[[], object]] = []
    if started_before:
        broker.start()
    try:
        for name in DOUBLES:
            double = patch(name, raise_error)
            double.start()
            stack.append(double.stop)
        if not started_before:
            broker.start()
        use(broker)
        broker.stop()
    finally:
        while stack:
            stack.pop()()
