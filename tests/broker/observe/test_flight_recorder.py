"""The flight recorder: the last requests are on disk after a crash."""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from kwire.broker.api.request.request_log import SLOTS_BYTES, RequestLog, client_bytes
from kwire.broker.observe.flight_recorder import KEPT_FILES, KILLED, FlightRecorder
from kwire.broker.observe.ring_file import MAGIC, PREFIX, RingFile, read_ring, remove_orphans, ring_path
from kwire.testing import wait_until
from kwire.wire.api_keys import ApiKey
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.registry import RequestHeader, encode_request
from tests.broker.observe.conftest import serve_observed
from tests.broker.observe.test_metrics import produce
from tests.broker.storage.descriptor_limit import no_free_descriptors
from tests.durability.child import ROOT

POLL = encode_request(
    FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1,
        max_bytes=100,
        topics=[
            FetchTopic(
                topic="orders",
                partitions=[FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=100)],
            )
        ],
    ),
    12,
    17,
    "poller",
)
"""A long poll that the broker does not answer for a minute."""


def lines_of(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


async def test_recorder_writes_completed_and_pending_requests() -> None:
    async with serve_observed() as node:
        running = node.running
        await trio.to_thread.run_sync(partial(produce, running.bootstrap, "orders", 1))
        host, port = running.bootstrap.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(POLL)
            with trio.fail_after(5):
                while not any(c.channel.slots for c in running.server.connections.values()):
                    await trio.lowlevel.checkpoint()
            path = FlightRecorder(running).write("made up", "by a test")
            assert path is not None
            head, *requests = lines_of(path)
    assert head.pop("time").endswith("Z")
    assert head == {"node": "node 1", "end": "made up", "trace": "by a test", "requests": len(requests)}
    *answered, last = requests
    produced = [entry for entry in answered if entry["api"] == "Produce"]
    assert produced[-1]["peer"] == "127.0.0.1"
    assert produced[-1]["bytes"] > 100
    assert produced[-1]["response_bytes"] > 10
    assert 0 < produced[-1]["ms"] < 10_000
    assert last["pending"] is True
    assert (last["api"], last["version"], last["client"]) == ("Fetch", 12, "poller")
    assert re.fullmatch(r"\d+-17", last["request"])
    assert all(entry["time"].endswith("Z") for entry in requests)


async def test_recorder_writes_pending_requests_of_closed_connections() -> None:
    async with serve_observed() as node:
        running = node.running
        await trio.to_thread.run_sync(partial(produce, running.bootstrap, "orders", 1))
        host, port = running.bootstrap.split(":")
        stream = await trio.open_tcp_stream(host, int(port))
        await stream.send_all(POLL)
        with trio.fail_after(5):
            while not any(c.channel.slots for c in running.server.connections.values()):
                await trio.lowlevel.checkpoint()
            await stream.aclose()
            while any(c.channel.slots for c in running.server.connections.values()):
                await trio.lowlevel.checkpoint()
        path = FlightRecorder(running).write("made up")
        assert path is not None
        *_, last = lines_of(path)
    assert (last["api"], last["client"], last["pending"]) == ("Fetch", "poller", True)


async def test_a_record_that_does_not_fit_is_written_at_a_later_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail_no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with serve_observed() as node:
        running = node.running
        [directory] = map(Path, running.node.config.log_dirs)
        with monkeypatch.context() as full:
            full.setattr(os, "replace", fail_no_space)
            recorder = FlightRecorder(running)
            recorder.begin()
            await trio.to_thread.run_sync(partial(produce, running.bootstrap, "orders", 1))
            assert recorder.write("the disk is full") is None
            recorder.end()
            ring = ring_path(str(directory))
            recorded = read_ring(ring)
            FlightRecorder(running).begin()
            assert read_ring(ring) == recorded
            assert not list(directory.glob(f"{PREFIX}*"))
        after = FlightRecorder(running)
        after.begin()
        [path] = directory.glob(f"{PREFIX}*")
        head, *requests = lines_of(path)
        assert (head["end"], head["requests"]) == (KILLED, len(recorded))
        assert "Produce" in {entry["api"] for entry in requests}
        after.end()
        assert not Path(ring).exists()


async def test_recorder_writes_its_file_without_a_free_descriptor() -> None:
    async with serve_observed() as node:
        running = node.running
        await trio.to_thread.run_sync(partial(produce, running.bootstrap, "orders", 1))
        recorder = FlightRecorder(running)
        recorder.begin()
        with no_free_descriptors():
            path = recorder.write("the process has no free descriptor", "by a test")
        assert path is not None
        head, *requests = lines_of(path)
    assert head["end"] == "the process has no free descriptor"
    assert head["requests"] == len(requests) > 0


def test_failure_of_a_node_imports_no_module(tmp_path: Path) -> None:
    """An import opens files, and the process may have no free descriptor."""
    program = """
import builtins, sys
import kwire.cli.server.serve
from kwire.broker.observe.flight_recorder import FlightRecorder
from kwire.broker.config import load
from kwire.broker.net.running_node import RunningNode
from kwire.broker.net.loop_events import Wait
import math

running = RunningNode(load(None, {}, {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": sys.argv[1]}))
running.loop.run_until([Wait((running.ready,), math.inf)])
recorder = FlightRecorder(running)
recorder.begin()
before = set(sys.modules)
assert recorder.write("made up", "by a test")
running.failure.report("made up")
assert set(sys.modules) == before, set(sys.modules) - before
running.close()
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=ROOT)


async def test_a_corrupt_ring_does_not_stop_the_broker_from_starting() -> None:
    async with serve_observed() as node:
        [directory] = map(Path, node.running.node.config.log_dirs)
        ring = ring_path(str(directory))
        requests = RequestLog()
        requests.begin(
            RequestHeader(ApiKey.PRODUCE, 9, 17, "shop"), client_bytes("shop", "::1"), 7, 10, math.nan
        )
        make_ring(Path(ring), str(directory))
        with open(ring, "r+b") as file:
            requests.move_to(mmap.mmap(file.fileno(), 0), Path(ring).stat().st_size - SLOTS_BYTES)
        assert len(read_ring(ring)) == 1
        recorder = FlightRecorder(node.running)
        recorder.begin()
        assert read_ring(ring) == []
        assert not list(directory.glob(f"{PREFIX}*")), "there is nothing to report"
        recorder.end()


async def test_a_broker_killed_before_any_request_leaves_no_file() -> None:
    async with serve_observed() as node:
        [directory] = map(Path, node.running.node.config.log_dirs)
        make_ring(Path(ring_path(str(directory))), str(directory))
        recorder = FlightRecorder(node.running)
        recorder.begin()
        assert not list(directory.glob(f"{PREFIX}*"))
        recorder.end()


def test_next_start_writes_the_requests_of_a_killed_broker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(tmp_path)]

    def start() -> tuple[subprocess.Popen[str], str]:
        broker = subprocess.Popen(
            [*command, "--set", "listeners=PLAINTEXT://127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        assert broker.stdout is not None
        found = re.search(r"serves on ([\d.:]+),", broker.stdout.readline())
        assert found
        return broker, found[1]

    def end(broker: subprocess.Popen[str], number: signal.Signals) -> None:
        broker.send_signal(number)
        broker.wait(30)
        assert broker.stdout is not None
        broker.stdout.close()

    broker, bootstrap = start()
    produce(bootstrap, "orders", 1)
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(POLL)
        wait_until(lambda: read_ring(ring_path(str(tmp_path)))[-1][1].client_id == "poller")
        end(broker, signal.SIGKILL)
    assert not list(tmp_path.glob(f"{PREFIX}*"))
    broker, _ = start()
    [path] = tmp_path.glob(f"{PREFIX}*")
    head, *requests = lines_of(path)
    assert (head["end"], head["requests"]) == (KILLED, len(requests))
    *_, produced, last = requests
    assert (produced["api"], produced["peer"]) == ("Produce", "127.0.0.1")
    assert produced["bytes"] > 100
    assert 0 < produced["ms"] < 10_000
    assert "pending" not in produced
    assert (last["api"], last["version"], last["peer"]) == ("Fetch", 12, "127.0.0.1")
    assert last["bytes"] == len(POLL) - 4
    assert last["pending"] is True
    assert re.fullmatch(r"\d+-17", last["request"])
    assert requests[0]["time"] <= produced["time"] <= last["time"] <= head["time"]
    # A broker that stops cleanly leaves no file.
    end(broker, signal.SIGTERM)
    assert not Path(ring_path(str(tmp_path))).exists()
    broker, _ = start()
    assert list(tmp_path.glob(f"{PREFIX}*")) == [path]
    end(broker, signal.SIGTERM)


def make_ring(path: Path, directory: str = "") -> RingFile:
    return RingFile(str(path), RequestLog(), now_ms=5_000, clock=2.0, directory=directory)


def test_a_ring_contains_the_requests_of_its_node(tmp_path: Path) -> None:
    requests = RequestLog()
    ring = RingFile(str(tmp_path / "ring"), requests, now_ms=5_000, clock=2.0)
    assert read_ring(ring.path) == []
    header = RequestHeader(ApiKey.PRODUCE, 9, 17, "shop")
    requests.finish(requests.begin(header, client_bytes("shop", "::1"), 7, 10, 3.0), 20, 0.5)
    requests.begin(header, client_bytes("shop", "::1"), 7, 10, 3.5)
    assert [(time_ms, recorded.seconds) for time_ms, recorded in read_ring(ring.path)] == [
        (6_000, 0.5),
        (6_500, None),
    ]
    assert [recorded for _, recorded in read_ring(ring.path)] == requests.all()
    ring.remove()
    assert not (tmp_path / "ring").exists()
    assert len(requests.all()) == 2


def test_disk_space_of_a_ring_is_allocated_at_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ring"
    ring = make_ring(path)
    assert path.stat().st_blocks * 512 >= path.stat().st_size > SLOTS_BYTES
    ring.remove()

    def fail_no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kwire.broker.observe.ring_file.allocate", fail_no_space)
    with pytest.raises(OSError, match="No space"):
        make_ring(path)
    assert not path.exists()


def test_a_ring_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    foreign, path = tmp_path / "foreign", tmp_path / "ring"
    foreign.write_bytes(b"precious")
    path.symlink_to(foreign)
    with pytest.raises(OSError, match="ring"):
        read_ring(str(path))
    with pytest.raises(OSError, match="ring"):
        make_ring(path)
    assert foreign.read_bytes() == b"precious"


def test_rings_of_removed_directories_are_deleted(tmp_path: Path) -> None:
    removed, there = tmp_path / "removed", tmp_path / "there"
    there.mkdir()
    for name, home in (("held", removed), ("there", there), ("nobodys", "")):
        make_ring(tmp_path / f"{PREFIX}{name}", str(home))
    left_behind = (tmp_path / f"{PREFIX}held").read_bytes()
    (tmp_path / f"{PREFIX}removed").write_bytes(left_behind)
    (tmp_path / f"{PREFIX}older").write_bytes(left_behind.replace(MAGIC, MAGIC[:-1] + b"1", 1))
    (tmp_path / f"{PREFIX}short").write_bytes(MAGIC)
    remove_orphans(str(tmp_path))
    remaining = {path.name.removeprefix(PREFIX) for path in tmp_path.glob(f"{PREFIX}*")}
    assert remaining == {"held", "there", "nobodys", "short"}


def test_each_directory_has_its_own_ring(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert ring_path(str(tmp_path)) == ring_path(f"{tmp_path}/other/..")
    assert ring_path(str(tmp_path)) != ring_path(str(tmp_path / "other"))


@pytest.mark.parametrize("content", [b"", b"no ring", MAGIC, b"\0" * 200_000])
def test_a_file_that_is_not_a_ring_is_ignored(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ring"
    path.write_bytes(content)
    assert read_ring(str(path)) == []


async def test_old_files_are_deleted_and_a_failed_write_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve_observed() as node:
        running = node.running
        log_dir = Path(running.node.config.log_dirs[0])
        for number in range(KEPT_FILES + 3):
            (log_dir / f"{PREFIX}200{number}.jsonl").touch()
        path = FlightRecorder(running).write("made up")
        assert path is not None
        kept = sorted(found.name for found in log_dir.glob(f"{PREFIX}*"))
        assert len(kept) == KEPT_FILES
        assert kept[-1] == Path(path).name
        caplog.clear()
        recorder = FlightRecorder(running)
        for directory in running.node.config.log_dirs:
            Path(directory).rename(f"{directory}-removed")
        assert recorder.write("made up") is None
        assert "Cannot write the diagnostic file with the last requests" in caplog.text
        for directory in running.node.config.log_dirs:
            Path(f"{directory}-removed").rename(directory)


def test_an_aborted_broker_writes_its_last_requests(tmp_path: Path) -> None:
    """Systemd ends a service with SIGABRT when its loop hangs."""
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(tmp_path), "--log-format", "json"]
    with subprocess.Popen(
        [*command, "--set", "listeners=PLAINTEXT://127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KWIRE_SLOW_REQUEST_MS": "0"},
    ) as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        found = re.search(r"serves on ([\d.:]+),", broker.stdout.readline())
        assert found
        produce(found[1], "orders", 1)
        broker.send_signal(signal.SIGABRT)
        logged = [json.loads(line) for line in broker.stderr.read().splitlines()]
        assert broker.wait(30) == -signal.SIGABRT
    [path] = tmp_path.glob(f"{PREFIX}*")
    head, *requests = lines_of(path)
    assert head["end"] == "SIGABRT"
    assert "serve.py" in head["trace"]
    assert "Produce" in [entry["api"] for entry in requests]
    assert str(path) in logged[-1]["message"]
    slow = [line for line in logged if line["message"].startswith("Slow request: Produce")]
    assert [line["request"] for line in slow] == [
        entry["request"] for entry in requests if entry["api"] == "Produce"
    ]
