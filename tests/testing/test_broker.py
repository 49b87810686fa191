"""`Broker`: the broker that users embed in their tests."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kwire.broker.config import ConfigError
from kwire.broker.net.running_node import RunningNode
from kwire.broker.node.node import Node
from kwire.broker.storage.disk import StorageError
from kwire.testing import Broker
from kwire.testing.broker import Process
from kwire.testing.embedded_broker import EmbeddedBroker
from kwire.wire import registry
from kwire.wire.errors import ApiError
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.schema import Message

MINUTE_MS = 60_000


class Connection:
    """A connection with one request at a time."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self.sock = socket.create_connection((host, int(port)))
        self.stream = self.sock.makefile("rb")

    def request(self, request: Message, version: int) -> Message:
        response_class = registry.API_VERSIONS[request.API_KEY].response_class
        self.sock.sendall(registry.encode_request(request, version, 1, "test"))
        [size] = struct.unpack(">i", self.stream.read(4))
        return registry.decode_response(response_class, version, self.stream.read(size))[1]

    def close(self) -> None:
        self.stream.close()
        self.sock.close()


def topics(broker: Broker) -> list[str | None]:
    client = Connection(broker)
    response = client.request(MetadataRequest(topics=None), 12)
    client.close()
    assert isinstance(response, MetadataResponse)
    return [topic.name for topic in response.topics]


def create(broker: Broker, name: str) -> None:
    client = Connection(broker)
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    response = client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    client.close()
    assert isinstance(response, CreateTopicsResponse)
    assert [topic.error_code for topic in response.topics] == [0]


def test_broker_runs_in_the_block_and_removes_its_data(process: Process) -> None:
    config = {"num.partitions": 3, "auto.create.topics.enable": False}
    with Broker(config, process=process) as broker:
        create(broker, "t")
        assert topics(broker) == ["t"]
        assert Path(broker.log_dir, "t-0").is_dir()
        directory = broker.log_dir
    assert not Path(directory).exists()
    with pytest.raises(RuntimeError):
        _ = broker.bootstrap_servers


def test_data_in_log_dir_is_kept_for_the_next_start(tmp_path: Path, process: Process) -> None:
    broker = Broker(log_dir=tmp_path, process=process)
    for expected in ([], ["t"]):
        broker.start()
        assert topics(broker) == expected
        if not expected:
            create(broker, "t")
        broker.stop()
        broker.stop()
        assert Path(tmp_path, ".kafka_cleanshutdown").exists()


def test_stop_writes_the_clean_shutdown_file(tmp_path: Path, process: Process) -> None:
    """After an unclean shutdown, log recovery would restore deleted records."""
    broker = Broker({"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}, process=process)
    broker.start()
    create(broker, "t")
    broker.stop()
    assert all(Path(tmp_path, name, ".kafka_cleanshutdown").exists() for name in "ab")


def test_restart_shuts_down_cleanly() -> None:
    with Broker() as broker:
        broker.restart()
        node = running(broker).broker
        assert node is not None
        [directory] = node.log_manager.directories()
        assert directory.had_clean_shutdown


def running(broker: Broker) -> RunningNode:
    """Return the node of a broker in a thread."""
    assert isinstance(broker._embedded, EmbeddedBroker)
    return broker._embedded.running


def test_two_brokers_run_independently(process: Process) -> None:
    with Broker(process=process) as one, Broker(process=process) as other:
        create(one, "t")
        assert topics(one) == ["t"]
        assert topics(other) == []


def refused_start(process: Process) -> None:
    """Start a broker with an invalid configuration, and check that no thread or descriptor is left."""
    if process == "child":
        assert not Broker(process=process).requests, "the child process is running now"
    before = resources()
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker({"num.partitions": "many"}, process=process).start()
    threads, descriptors = resources()
    assert set(threads) <= set(before[0])
    assert set(descriptors) <= set(before[1])


@pytest.mark.proc
def test_invalid_config_is_refused_without_leaking_resources(process: Process) -> None:
    run_alone(f"refused_start({process!r})")


def run_alone(call: str) -> None:
    """Run a function of this module in a process in which no other code opens files or starts threads."""
    program = f"from tests.testing.test_broker import *; {call}; print('done')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout == "done\n", done.stderr


def resources() -> tuple[list[threading.Thread], list[str]]:
    """Return the threads and file descriptors of this process."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the descriptor of the listing
    return threading.enumerate(), sorted(descriptors)


def hundred_starts() -> None:
    """Start and stop a hundred brokers, and check that no thread, descriptor or node is left."""
    with Broker() as broker:
        create(broker, "once")
    gc.collect()
    gc.disable()  # the broker closes descriptors without the garbage collector
    before = resources()
    for _ in range(100):
        with Broker() as broker:
            create(broker, "t")
    assert resources() == before
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Node)]


@pytest.mark.proc
def test_hundred_starts_leak_no_threads_or_descriptors() -> None:
    run_alone("hundred_starts()")


def test_advance_runs_timers_in_order_before_it_returns() -> None:
    with Broker() as broker:
        loop = running(broker).loop
        seen: list[tuple[str, int]] = []
        began_ms = loop.monotonic_ms()

        def note(name: str) -> None:
            # Real time passes too.
            seen.append((name, (loop.monotonic_ms() - began_ms) // MINUTE_MS))

        def first() -> None:
            note("first")
            loop.schedule(MINUTE_MS, lambda: note("of the first"))
            loop.run_in_worker(lambda: 1, lambda result: note("worked"))

        def schedule() -> None:
            loop.schedule(MINUTE_MS, first)
            loop.schedule(3 * MINUTE_MS, lambda: note("last"))
            loop.schedule(5 * MINUTE_MS, lambda: note("never"))

        loop.call_from_thread(schedule)
        broker.advance(4 * MINUTE_MS)
        assert seen == [("first", 1), ("worked", 1), ("of the first", 2), ("last", 3)]
        assert topics(broker) == []


def test_advancing_a_week_applies_retention_in_few_turns() -> None:
    day_ms = 24 * 60 * MINUTE_MS
    with Broker() as broker:
        loop = running(broker).loop
        broker.create_topic("a-day", config={"retention.ms": day_ms})
        broker.create_topic("a-week", config={"retention.ms": 7 * day_ms - MINUTE_MS})
        broker.create_topic("longer", config={"retention.ms": 8 * day_ms})
        for topic in ("a-day", "a-week", "longer"):
            broker.produce(topic, "a record")
        turns: list[int] = []
        handle = loop.end_turn

        def count_turn() -> bool:
            turns.append(loop.monotonic_ms())
            return handle()

        loop.end_turn = count_turn
        broker.advance(7 * day_ms)
        loop.end_turn = handle
        remaining = {topic: len(broker.records(topic)) for topic in ("a-day", "a-week", "longer")}
        assert remaining == {"a-day": 0, "a-week": 0, "longer": 1}
        assert len(set(turns)) < 5_000, "a week has more than 600,000 seconds"


def test_importing_kwire_testing_does_not_import_the_broker() -> None:
    program = "import sys, kwire.testing; print(*sorted(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    ours = [name for name in output.split() if name.partition(".")[0] in ("kwire", "trio")]
    assert ours == [
        "kwire",
        "kwire.host",
        "kwire.host.platform",
        "kwire.host.second_instance",
        "kwire.host.system_os",
        "kwire.host.system_socket",
        "kwire.host.system_time",
        "kwire.testing",
        "kwire.testing.acl",
        "kwire.testing.arguments",
        "kwire.testing.awaitable",
        "kwire.testing.broker",
        "kwire.testing.broker_thread",
        "kwire.testing.client_pool",
        "kwire.testing.denials",
        "kwire.testing.disk_space",
        "kwire.testing.embedded_broker",
        "kwire.testing.embedded_kafka",
        "kwire.testing.event_loop",
        "kwire.testing.faults",
        "kwire.testing.green_threads",
        "kwire.testing.kafka",
        "kwire.testing.kept_modules",
        "kwire.testing.lookup_table",
        "kwire.testing.loop_thread",
        "kwire.testing.named_resources",
        "kwire.testing.one_shot_event",
        "kwire.testing.recorder",
        "kwire.testing.reservations",
        "kwire.testing.results",
        "kwire.testing.started_brokers",
        "kwire.testing.thread_call",
        "kwire.testing.tls",
        "kwire.testing.unexpected_errors",
        "kwire.testing.users",
        "kwire.wire",
        "kwire.wire.mechanisms",  # only names
        "kwire.wire.named_tuple",
        "kwire.wire.plural",
    ]


def test_embedded_broker_does_not_import_unused_modules() -> None:
    program = "import sys, kwire.testing\nwith kwire.testing.Broker(): print(*sorted(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "kwire.broker.net.running_node" in output.split()
    assert {"trio", "ssl", "subprocess", "dataclasses", "inspect", "pathlib"}.isdisjoint(output.split())
    assert {"kwire.client", "kwire.coordinator.groups.state_machine"}.isdisjoint(output.split())


def test_second_broker_cannot_use_a_locked_directory(tmp_path: Path, process: Process) -> None:
    program = (
        f"import fcntl; fcntl.lockf(open({str(tmp_path / '.lock')!r}, 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    with Broker(log_dir=tmp_path, process=process):
        with pytest.raises(StorageError, match="in use"):
            Broker(log_dir=tmp_path, process=process).start()
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in other.stderr, (
            "the failed start has released the lock of the running broker"
        )
    with Broker(log_dir=tmp_path, process=process):
        pass


def test_topic_names_may_not_differ_only_in_case_if_the_file_system_ignores_case(tmp_path: Path) -> None:
    with Broker(log_dir=tmp_path) as broker:
        broker.create_topic("orders")
        broker.create_topic("Orders")
        (tmp_path / "META.PROPERTIES").touch()  # as if this were another name of meta.properties
        with pytest.raises(ApiError, match="differs only in case from existing topic"):
            broker.create_topic("ORDERS")
        broker.create_topic("payments")


def test_records_have_the_timestamp_of_the_advanced_clock(process: Process) -> None:
    with Broker({"log.retention.check.interval.ms": MINUTE_MS}, process=process) as broker:
        broker.create_topic("kept", config={"retention.ms": 10 * MINUTE_MS})
        broker.create_topic(
            "compacted",
            config={"cleanup.policy": "compact", "segment.ms": MINUTE_MS, "max.compaction.lag.ms": MINUTE_MS},
        )
        broker.produce("compacted", "old", "new", key="k")
        broker.advance(60 * MINUTE_MS)
        broker.produce("kept", "first")
        broker.produce("compacted", "last", key="another")  # rolls the segment
        broker.advance(5 * MINUTE_MS)
        assert [one.value for one in broker.records("kept")] == [b"first"]
        assert [one.value for one in broker.records("compacted")] == [b"new", b"last"]
        broker.advance(10 * MINUTE_MS)
        assert broker.records("kept") == []


@pytest.mark.parametrize(("delay_ms", "error"), [(-1, ValueError), (1.5, TypeError), ("x", TypeError)])
def test_invalid_delay_is_refused_and_the_broker_still_advances(
    delay_ms: Any, error: type[Exception], process: Process
) -> None:
    with Broker(process=process) as broker:
        with pytest.raises(error):
            broker.advance(delay_ms)
        broker.advance(MINUTE_MS)


def test_broker_still_advances_after_an_interrupted_advance(process: Process) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def advance_a_millennium() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        broker.advance(1000 * 365 * 24 * 60 * MINUTE_MS)  # takes 80 ms

    with Broker(process=process) as broker:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                advance_a_millennium()
        finally:
            signal.signal(signal.SIGALRM, before)
        broker.advance(MINUTE_MS)


INTERRUPTED_PROGRAM = """\
import random, signal, sys, threading, time
from kwire.testing import Broker

def interrupt(number, frame):
    raise KeyboardInterrupt

def names():
    return {thread.name for thread in threading.enumerate()}

signal.signal(signal.SIGALRM, interrupt)
broker, interrupted, rng = Broker(process=sys.argv[1]), 0, random.Random(48)
broker.start()  # imports all modules: an interrupt can leave the locks of Python's imports held
broker.stop()
for number in range(int(sys.argv[2])):
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.006))
        broker.start()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    broker.stop()
    assert not broker.is_running
    until = time.monotonic() + 10
    while "kwire broker" in names() and time.monotonic() < until:
        time.sleep(0.001)
    assert "kwire broker" not in names(), names()
assert interrupted
with broker:
    print(broker.topics())
"""


def test_interrupted_start_leaves_no_running_broker(process: Process) -> None:
    # In a process of its own: an interrupt can leave locks of Python's logging held.
    # Few child processes: an interrupted start may leave one that ends a moment later.
    interrupts = "15" if process == "child" else "150"
    program = [sys.executable, "-c", INTERRUPTED_PROGRAM, process, interrupts]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=90)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


FORKING_PROGRAM = """\
import os, sys
from kwire.testing import Broker
from kwire.testing.broker import Process
from kwire.testing.embedded_broker import EmbeddedBroker

with Broker() as broker:
    broker.produce("orders", "before")
    children = []
    for child in range(3):
        children.append(os.fork())
        if not children[-1]:
            for number in range(10):
                broker.produce("orders", f"{child}: {number}")
            sys.exit(7)                         # leaves the block, and runs the exit handlers
    for number in range(10):
        broker.produce("orders", f"parent: {number}")
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    assert os.path.isdir(broker.log_dir), "a child has removed the data"
    print(len(broker.records("orders")))
    directory = broker.log_dir
assert not os.path.exists(directory)
"""


def test_forked_processes_use_the_broker_and_do_not_remove_its_data(process: Process) -> None:
    program = [sys.executable, "-c", FORKING_PROGRAM, process]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("[7, 7, 7]\n41\n", "")
