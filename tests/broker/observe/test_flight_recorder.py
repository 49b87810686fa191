"""The flight recorder: what was asked last is there after a bad end."""

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
from kwire.broker.observe.flight_recorder import KEPT_FILES, KILLED, PREFIX, FlightRecorder
from kwire.broker.observe.ring_file import MAGIC, RingFile, read_ring, remove_orphans, ring_path
from kwire.testing import wait_until
from kwire.wire.api_keys import ApiKey
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.registry import RequestHeader, encode_request
from tests.broker.observe.conftest import observed
from tests.broker.observe.test_metrics import produce

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
"""What is not answered for a minute."""


def lines_of(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


async def test_the_last_requests_are_written_and_those_under_way() -> None:
    async with observed() as node:
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
    produced = [told for told in answered if told["api"] == "Produce"]
    assert produced[-1]["peer"] == "127.0.0.1"
    assert produced[-1]["bytes"] > 100
    assert produced[-1]["response_bytes"] > 10
    assert 0 < produced[-1]["ms"] < 10_000
    assert last["pending"] is True
    assert (last["api"], last["version"], last["client"]) == ("Fetch", 12, "poller")
    assert re.fullmatch(r"\d+-17", last["request"])
    assert all(told["time"].endswith("Z") for told in requests)


async def test_a_request_whose_client_has_gone_is_told_as_well() -> None:
    async with observed() as node:
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


async def test_what_no_disk_takes_is_told_by_the_next_start_that_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with observed() as node:
        running = node.running
        [directory] = map(Path, running.node.config.log_dirs)
        with monkeypatch.context() as full:
            full.setattr(os, "replace", no_room)
            recorder = FlightRecorder(running)
            recorder.begin()
            await trio.to_thread.run_sync(partial(produce, running.bootstrap, "orders", 1))
            assert recorder.write("the disk is full") is None
            recorder.end()
            ring = ring_path(str(directory))
            noted = read_ring(ring)
            FlightRecorder(running).begin()
            assert read_ring(ring) == noted
            assert not list(directory.glob(f"{PREFIX}*"))
        after = FlightRecorder(running)
        after.begin()
        [path] = directory.glob(f"{PREFIX}*")
        head, *requests = lines_of(path)
        assert (head["end"], head["requests"]) == (KILLED, len(noted))
        assert "Produce" in {told["api"] for told in requests}
        after.end()
        assert not Path(ring).exists()


async def test_a_ring_that_makes_no_sense_keeps_no_broker_from_starting() -> None:
    async with observed() as node:
        [directory] = map(Path, node.running.node.config.log_dirs)
        ring = ring_path(str(directory))
        requests = RequestLog()
        requests.begin(
            RequestHeader(ApiKey.PRODUCE, 9, 17, "shop"), client_bytes("shop", "::1"), 7, 10, math.nan
        )
        made(Path(ring), str(directory))
        with open(ring, "r+b") as file:
            requests.move_to(mmap.mmap(file.fileno(), 0), Path(ring).stat().st_size - SLOTS_BYTES)
        assert len(read_ring(ring)) == 1
        recorder = FlightRecorder(node.running)
        recorder.begin()
        assert read_ring(ring) == []
        assert not list(directory.glob(f"{PREFIX}*")), "nor is there anything to tell"
        recorder.end()


async def test_of_one_that_was_killed_before_it_was_asked_anything_there_is_no_file() -> None:
    async with observed() as node:
        [directory] = map(Path, node.running.node.config.log_dirs)
        made(Path(ring_path(str(directory))), str(directory))
        recorder = FlightRecorder(node.running)
        recorder.begin()
        assert not list(directory.glob(f"{PREFIX}*"))
        recorder.end()


def test_a_broker_that_is_killed_is_told_of_by_the_next_one(tmp_path: Path) -> None:
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
    # One that stops leaves nothing to tell.
    end(broker, signal.SIGTERM)
    assert not Path(ring_path(str(tmp_path))).exists()
    broker, _ = start()
    assert list(tmp_path.glob(f"{PREFIX}*")) == [path]
    end(broker, signal.SIGTERM)


def made(path: Path, directory: str = "") -> RingFile:
    return RingFile(str(path), RequestLog(), now_ms=5_000, clock=2.0, directory=directory)


def test_a_ring_tells_what_its_node_was_asked(tmp_path: Path) -> None:
    requests = RequestLog()
    ring = RingFile(str(tmp_path / "ring"), requests, now_ms=5_000, clock=2.0)
    assert read_ring(ring.path) == []
    header = RequestHeader(ApiKey.PRODUCE, 9, 17, "shop")
    requests.finish(requests.begin(header, client_bytes("shop", "::1"), 7, 10, 3.0), 20, 0.5)
    requests.begin(header, client_bytes("shop", "::1"), 7, 10, 3.5)
    assert [(time_ms, noted.seconds) for time_ms, noted in read_ring(ring.path)] == [
        (6_000, 0.5),
        (6_500, None),
    ]
    assert [noted for _, noted in read_ring(ring.path)] == requests.all()
    ring.remove()
    assert not (tmp_path / "ring").exists()
    assert len(requests.all()) == 2


def test_a_ring_has_all_its_room_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ring"
    ring = made(path)
    assert path.stat().st_blocks * 512 >= path.stat().st_size > SLOTS_BYTES
    ring.remove()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match="No space"):
        made(path)
    assert not path.exists()


def test_a_ring_is_nobody_elses(tmp_path: Path) -> None:
    theirs, path = tmp_path / "theirs", tmp_path / "ring"
    theirs.write_bytes(b"precious")
    path.symlink_to(theirs)
    with pytest.raises(OSError, match="ring"):
        read_ring(str(path))
    with pytest.raises(OSError, match="ring"):
        made(path)
    assert theirs.read_bytes() == b"precious"


def test_a_ring_whose_directory_is_gone_is_forgotten(tmp_path: Path) -> None:
    gone, there = tmp_path / "gone", tmp_path / "there"
    there.mkdir()
    for name, home in (("held", gone), ("there", there), ("nobodys", "")):
        made(tmp_path / f"{PREFIX}{name}", str(home))
    left_behind = (tmp_path / f"{PREFIX}held").read_bytes()
    (tmp_path / f"{PREFIX}gone").write_bytes(left_behind)
    (tmp_path / f"{PREFIX}older").write_bytes(left_behind.replace(MAGIC, MAGIC[:-1] + b"1", 1))
    (tmp_path / f"{PREFIX}short").write_bytes(MAGIC)
    remove_orphans(str(tmp_path))
    left = {path.name.removeprefix(PREFIX) for path in tmp_path.glob(f"{PREFIX}*")}
    assert left == {"held", "there", "nobodys", "short"}


def test_each_directory_has_a_ring_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert ring_path(str(tmp_path)) == ring_path(f"{tmp_path}/other/..")
    assert ring_path(str(tmp_path)) != ring_path(str(tmp_path / "other"))


@pytest.mark.parametrize("content", [b"", b"no ring", MAGIC, b"\0" * 200_000])
def test_what_is_no_ring_is_passed_over(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "ring"
    place.write_bytes(content)
    assert read_ring(str(place)) == []


async def test_few_files_are_kept_and_where_none_can_be_written_that_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with observed() as node:
        running = node.running
        place = Path(running.node.config.log_dirs[0])
        for number in range(KEPT_FILES + 3):
            (place / f"{PREFIX}200{number}.jsonl").touch()
        path = FlightRecorder(running).write("made up")
        assert path is not None
        kept = sorted(found.name for found in place.glob(f"{PREFIX}*"))
        assert len(kept) == KEPT_FILES
        assert kept[-1] == Path(path).name
        caplog.clear()
        recorder = FlightRecorder(running)
        for directory in running.node.config.log_dirs:
            Path(directory).rename(f"{directory}-gone")
        assert recorder.write("made up") is None
        assert "could not write the last requests" in caplog.text
        for directory in running.node.config.log_dirs:
            Path(f"{directory}-gone").rename(directory)


def test_a_broker_that_is_aborted_tells_what_it_was_asked_last(tmp_path: Path) -> None:
    """As systemd ends one whose loop hangs."""
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
    assert "Produce" in [told["api"] for told in requests]
    assert str(path) in logged[-1]["message"]
    slow = [line for line in logged if line["message"].startswith("slow request: Produce")]
    assert [line["request"] for line in slow] == [
        told["request"] for told in requests if told["api"] == "Produce"
    ]
