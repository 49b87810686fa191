"""The broker that users embed in their tests."""

from __future__ import annotations

import gc
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kwire.broker.config import ConfigError
from kwire.broker.node.node import Node
from kwire.broker.storage.disk import StorageError
from kwire.testing import Broker
from kwire.wire import registry
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.schema import Message

MINUTE_MS = 60_000


class Client:
    """A connection that asks one thing at a time."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self.sock = socket.create_connection((host, int(port)))
        self.stream = self.sock.makefile("rb")

    def ask(self, request: Message, version: int) -> Message:
        response_class = registry.API_VERSIONS[request.API_KEY].response_class
        self.sock.sendall(registry.encode_request(request, version, 1, "test"))
        [size] = struct.unpack(">i", self.stream.read(4))
        return registry.decode_response(response_class, version, self.stream.read(size))[1]

    def close(self) -> None:
        self.stream.close()
        self.sock.close()


def topics(broker: Broker) -> list[str | None]:
    client = Client(broker)
    answer = client.ask(MetadataRequest(topics=None), 12)
    client.close()
    assert isinstance(answer, MetadataResponse)
    return [topic.name for topic in answer.topics]


def create(broker: Broker, name: str) -> None:
    client = Client(broker)
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    client.close()
    assert isinstance(answer, CreateTopicsResponse)
    assert [topic.error_code for topic in answer.topics] == [0]


def test_it_serves_in_the_block_and_takes_its_data_along() -> None:
    with Broker({"num.partitions": 3, "auto.create.topics.enable": False}) as broker:
        create(broker, "t")
        assert topics(broker) == ["t"]
        assert Path(broker.log_dir, "t-0").is_dir()
        directory = broker.log_dir
    assert not Path(directory).exists()
    with pytest.raises(RuntimeError):
        _ = broker.bootstrap_servers


def test_data_in_a_directory_of_the_users_is_there_at_the_next_start(tmp_path: Path) -> None:
    broker = Broker(log_dir=tmp_path)
    for expected in ([], ["t"]):
        broker.start()
        assert topics(broker) == expected
        if not expected:
            create(broker, "t")
        broker.stop()
        broker.stop()
        assert Path(tmp_path, ".kafka_cleanshutdown").exists()


def test_what_stays_is_left_as_a_clean_end_leaves_it(tmp_path: Path) -> None:
    """A start after any other end opens all that the log files hold: records that were deleted come back."""
    broker = Broker({"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"})
    broker.start()
    create(broker, "t")
    broker.stop()
    assert all(Path(tmp_path, name, ".kafka_cleanshutdown").exists() for name in "ab")
    with Broker() as broker:
        broker.restart()
        assert broker._running.broker is not None
        [directory] = broker._running.broker.log_manager.directories()
        assert directory.had_clean_shutdown


def test_several_run_beside_each_other() -> None:
    with Broker() as one, Broker() as other:
        create(one, "t")
        assert topics(one) == ["t"]
        assert topics(other) == []


def test_what_it_cannot_be_told_is_said_and_leaves_nothing_behind() -> None:
    before = resources()
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker({"num.partitions": "many"}).start()
    assert all(set(now) <= set(then) for now, then in zip(resources(), before, strict=True))


def resources() -> tuple[list[threading.Thread], list[str]]:
    """Threads and descriptors of this process."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # it was the listing's own
    return threading.enumerate(), sorted(descriptors)


def hundred_starts() -> None:
    """To be run in a process of its own, where nobody else opens and leaves anything."""
    with Broker() as broker:
        create(broker, "once")
    gc.collect()
    gc.disable()  # descriptors are given back, not collected
    before = resources()
    for _ in range(100):
        with Broker() as broker:
            create(broker, "t")
    assert resources() == before
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Node)]


def test_a_hundred_starts_leave_nothing_behind() -> None:
    program = "from tests.testing.test_broker import hundred_starts; hundred_starts(); print('done')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout == "done\n", done.stderr


def test_time_passes_deadline_by_deadline_and_is_over_when_the_call_returns() -> None:
    with Broker() as broker:
        loop = broker._running.loop
        seen: list[tuple[str, int]] = []
        began_ms = loop.monotonic_ms()

        def note(name: str) -> None:
            # Real time goes on, too.
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


def test_a_week_passes_with_few_looks_and_nothing_that_is_due_is_left() -> None:
    day_ms = 24 * 60 * MINUTE_MS
    with Broker() as broker:
        loop = broker._running.loop
        broker.create_topic("a-day", config={"retention.ms": day_ms})
        broker.create_topic("a-week", config={"retention.ms": 7 * day_ms - MINUTE_MS})
        broker.create_topic("longer", config={"retention.ms": 8 * day_ms})
        for topic in ("a-day", "a-week", "longer"):
            broker.produce(topic, "a record")
        turns: list[int] = []
        handle, loop.end_turn = loop.end_turn, lambda: turns.append(loop.monotonic_ms()) or handle()
        broker.advance(7 * day_ms)
        loop.end_turn = handle
        left = {topic: len(broker.records(topic)) for topic in ("a-day", "a-week", "longer")}
        assert left == {"a-day": 0, "a-week": 0, "longer": 1}
        assert len(set(turns)) < 5_000, "a week has more than 600,000 seconds"


def test_importing_it_imports_no_broker() -> None:
    program = "import sys, kwire.testing; print(*sorted(sys.modules))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    ours = [name for name in told.split() if name.partition(".")[0] in ("kwire", "trio")]
    assert ours == [
        "kwire",
        "kwire.testing",
        "kwire.testing.broker",
        "kwire.testing.broker_thread",
        "kwire.testing.disk_space",
        "kwire.testing.embedded_kafka",
        "kwire.testing.faults",
        "kwire.testing.kafka",
        "kwire.testing.recorder",
        "kwire.testing.results",
        "kwire.testing.users",
        "kwire.wire",
        "kwire.wire.mechanisms",  # names alone
        "kwire.wire.named_tuple",
    ]


def test_a_broker_in_a_test_starts_without_what_it_does_not_need() -> None:
    program = "import sys, kwire.testing\nwith kwire.testing.Broker(): print(*sorted(sys.modules))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "kwire.broker.net.running_node" in told.split()
    assert {"trio", "ssl", "subprocess", "dataclasses", "inspect", "pathlib"}.isdisjoint(told.split())
    assert {"kwire.client", "kwire.coordinator.groups.state_machine"}.isdisjoint(told.split())


def test_two_never_share_a_directory(tmp_path: Path) -> None:
    program = (
        f"import fcntl; fcntl.lockf(open({str(tmp_path / '.lock')!r}, 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    with Broker(log_dir=tmp_path):
        with pytest.raises(StorageError, match="in use"):
            Broker(log_dir=tmp_path).start()
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in other.stderr, "the attempt has given up the lock of who runs"
    with Broker(log_dir=tmp_path):
        pass


def test_what_a_test_appends_is_of_the_time_that_it_has_let_pass() -> None:
    with Broker({"log.retention.check.interval.ms": MINUTE_MS}) as broker:
        broker.create_topic("kept", config={"retention.ms": 10 * MINUTE_MS})
        broker.create_topic(
            "compacted",
            config={"cleanup.policy": "compact", "segment.ms": MINUTE_MS, "max.compaction.lag.ms": MINUTE_MS},
        )
        broker.produce("compacted", "old", "new", key="k")
        broker.advance(60 * MINUTE_MS)
        broker.produce("kept", "first")
        broker.produce("compacted", "last", key="another")  # begins a segment: the one before is closed
        broker.advance(5 * MINUTE_MS)
        assert [one.value for one in broker.records("kept")] == [b"first"]
        assert [one.value for one in broker.records("compacted")] == [b"new", b"last"]
        broker.advance(10 * MINUTE_MS)
        assert broker.records("kept") == []


@pytest.mark.parametrize(("delay_ms", "error"), [(-1, ValueError), (1.5, TypeError), ("x", TypeError)])
def test_time_that_is_none_is_refused_and_breaks_nothing(delay_ms: Any, error: type[Exception]) -> None:
    with Broker() as broker:
        with pytest.raises(error):
            broker.advance(delay_ms)
        broker.advance(MINUTE_MS)


def test_who_interrupts_an_advance_has_a_broker_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    with Broker() as broker:
        with monkeypatch.context() as patch:
            # Not threading.Event itself: the broker's workers may begin just then, and wait for one, too.
            patch.setattr("kwire.testing.broker.threading", SimpleNamespace(Event=Interrupted))
            with pytest.raises(KeyboardInterrupt):
                broker.advance(1000 * 365 * 24 * 60 * MINUTE_MS)
        broker.advance(MINUTE_MS)


FORKS = """\
import os, sys
from kwire.testing import Broker

with Broker() as broker:
    broker.produce("orders", "before")
    children = []
    for child in range(3):
        children.append(os.fork())
        if not children[-1]:
            for number in range(10):
                broker.produce("orders", f"{child}: {number}")
            sys.exit(7)                     # out of the block, and with all that is done at exit
    for number in range(10):
        broker.produce("orders", f"parent: {number}")
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    assert os.path.isdir(broker.log_dir), "a child has removed the data"
    print(len(broker.records("orders")))
    directory = broker.log_dir
assert not os.path.exists(directory)
"""


def test_processes_that_are_forked_ask_it_and_take_nothing_with_them() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("[7, 7, 7]\n41\n", "")
