"""File regions in the send queue: complete, in order, and never read from a cold disk on the loop."""

from __future__ import annotations

import errno
import os
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from kwire.broker.net.send_queue import SMALL_BYTES, TURN_BYTES, WINDOW_BYTES, SendQueue, Sent
from kwire.broker.net.transport_layer import PlaintextTransportLayer
from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.file_region import CopiedRegion, FileRegion
from kwire.host.platform.files import NOWAIT
from kwire.host.system_os import os as system_calls

if TYPE_CHECKING:
    from tests.broker.net.conftest import ServerHarness


def write_file(path: Path, content: bytes) -> RealDisk:
    path.write_bytes(content)
    return RealDisk()


@pytest.fixture
def content() -> bytes:
    return random.Random(7).randbytes(9 << 20)


@pytest.fixture
def segment(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(content)
    return str(path)


def region(path: str, position: int, size_bytes: int) -> FileRegion:
    return FileRegion(RealDisk().open(path), position, size_bytes)


async def test_regions_between_buffers(harness: ServerHarness, segment: str, content: bytes) -> None:
    spans = [(0, 1), (100, 0), (5, 70_000), (1_000_000, WINDOW_BYTES), (3, len(content) - 3)]
    harness.node.regions = [region(segment, *span) for span in spans]
    client = await harness.connect()
    await client.send(*(b"f%d" % index for index in range(len(spans))), b"eafter")
    for position, size_bytes in spans:
        assert await client.receive() == b"head" + content[position : position + size_bytes] + b"tail"
    assert await client.receive() == b"after"


async def test_copied_regions_between_buffers(harness: ServerHarness, segment: str, content: bytes) -> None:
    spans = [(0, 1), (5, 70_000), (3, 2 * WINDOW_BYTES), (100, 7)]
    harness.node.regions = [
        CopiedRegion(region(segment, *span).read()) if index != 2 else region(segment, *span)
        for index, span in enumerate(spans)
    ]
    client = await harness.connect()
    await client.send(*(b"f%d" % index for index in range(len(spans))), b"eafter")
    for position, size_bytes in spans:
        assert await client.receive() == b"head" + content[position : position + size_bytes] + b"tail"
    assert await client.receive() == b"after"


async def test_large_regions_to_a_slow_reader_do_not_block_others(
    harness: ServerHarness, segment: str
) -> None:
    """Other connections are served between the partial sends."""
    harness.node.regions = [region(segment, 0, 9 << 20)]
    slow, other = await harness.connect(), await harness.connect()
    await slow.send(*[b"f0"] * 5)
    await harness.node.until(lambda: any(c.queue for c in harness.server.connections.values()))
    assert await other.request(b"ehello") == b"hello"
    for _ in range(5):
        assert len(await slow.receive()) == (9 << 20) + 8


async def test_cold_region_is_read_by_a_worker_before_sending(
    harness: ServerHarness, segment: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[tuple[int, int]] = []
    cold_window = SendQueue.cold_window

    def recording(queue: SendQueue) -> object:
        work, end = cold_window(queue)
        windows.append((queue.size_bytes, end))
        return work, end

    monkeypatch.setattr(SendQueue, "_is_resident", lambda *_: False)
    monkeypatch.setattr(SendQueue, "cold_window", recording)
    harness.node.regions = [region(segment, 10, 3 * WINDOW_BYTES)]
    client = await harness.connect()
    await client.send(b"f0", b"f0", b"eafter")
    for _ in range(2):
        assert await client.receive() == b"head" + content[10 : 10 + 3 * WINDOW_BYTES] + b"tail"
    assert await client.receive() == b"after"
    ends = [end for _, end in windows]
    assert ends[0] == 10 + WINDOW_BYTES
    assert max(ends) == 10 + 3 * WINDOW_BYTES
    assert ends.count(10 + WINDOW_BYTES) == 2  # one check per region


async def test_connection_closes_while_a_worker_reads_its_data(
    harness: ServerHarness, segment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[object] = []
    monkeypatch.setattr(SendQueue, "_is_resident", lambda *_: False)
    monkeypatch.setattr(harness.loop, "run_in_worker", lambda work, done: held.append((work, done)))
    harness.node.regions = [region(segment, 0, SMALL_BYTES + 1)]
    client = await harness.connect()
    await client.send(b"f0")
    await harness.node.until(lambda: len(held) == 1)
    await client.stream.aclose()
    await harness.node.until(lambda: len(harness.node.closed) == 1)
    work, done = held[0]  # type: ignore[misc]
    done(work())  # type: ignore[has-type]
    other = await harness.connect()
    assert await other.request(b"ehello") == b"hello"


@pytest.mark.parametrize("cold", [False, True])
async def test_truncated_file_closes_the_connection(
    harness: ServerHarness, segment: str, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    if cold:
        monkeypatch.setattr(SendQueue, "_is_resident", lambda *_: False)
    harness.node.regions = [region(segment, (9 << 20) - 10, 20)]
    client, other = await harness.connect(), await harness.connect()
    await client.send(b"f0")
    with pytest.raises(AssertionError, match="closed after"):
        await client.receive()
    assert await other.request(b"ehello") == b"hello"


async def test_region_of_a_deleted_segment_is_sent(
    harness: ServerHarness, segment: str, content: bytes
) -> None:
    harness.node.regions = [region(segment, 0, 1000)]
    Path(segment).unlink()
    client = await harness.connect()
    assert await client.request(b"f0") == b"head" + content[:1000] + b"tail"


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return a socket pair with small buffers, the first end non-blocking."""
    left, right = socket.socketpair()
    left.setblocking(False)
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return left, right


def test_partial_sends_of_buffers_and_small_regions(segment: str, content: bytes) -> None:
    left, right = socket_pair()
    rng = random.Random(3)
    sizes = [rng.choice([0, 1, 10, 5_000]) for _ in range(700)]
    sizes[400] = SMALL_BYTES + 1
    pieces = [region(segment, 7, size) if number % 3 else content[:size] for number, size in enumerate(sizes)]
    expected = b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in pieces)
    queue = SendQueue(PlaintextTransportLayer(left))
    queue.extend(pieces, len(expected))
    received = bytearray()
    while (sent := queue.send()) is not Sent.ALL:
        assert sent is Sent.BLOCKED
        assert queue.size_bytes > 0
        received += right.recv(3_000)
    left.close()
    while more := right.recv(1 << 20):
        received += more
    assert received == expected
    assert queue.size_bytes == 0
    assert not queue
    right.close()


@pytest.mark.linux("RWF_NOWAIT")
def test_small_cold_region_is_read_by_a_worker(
    segment: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = socket_pair()
    preadv = os.preadv

    def cold(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags == NOWAIT:
            raise BlockingIOError
        return preadv(fd, buffers, position, flags)

    monkeypatch.setattr(system_calls, "preadv", cold)
    queue = SendQueue(PlaintextTransportLayer(left))
    queue.extend([b"head", region(segment, 0, 1000), b"tail"], 1008)
    assert queue.send() is Sent.COLD
    work, end = queue.cold_window()
    work()
    queue.warmed(end)
    assert queue.send() is Sent.ALL
    left.close()
    assert right.recv(2000) == b"head" + content[:1000] + b"tail"
    right.close()


def test_small_regions_are_sent_with_adjacent_buffers(segment: str, content: bytes) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    queue = SendQueue(PlaintextTransportLayer(left))
    queue.extend([b"head", region(segment, 0, 10), b"more", region(segment, 5, 100), b"tail"], 122)
    assert queue.send() is Sent.ALL
    assert right.recv(1000) == b"head" + content[:10] + b"more" + content[5:105] + b"tail"
    left.close()
    right.close()


def test_bytes_sent_per_turn_are_limited(segment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that accepts everything would otherwise block the loop for a complete region."""
    left, right = socket_pair()
    monkeypatch.setattr(system_calls, "sendfile", lambda out, fd, position, count: count)
    queue = SendQueue(PlaintextTransportLayer(left))
    queue.extend([region(segment, 0, 9 << 20)], 9 << 20)
    assert queue.send() is Sent.TURN_OVER
    assert queue.size_bytes == (9 << 20) - TURN_BYTES
    assert queue.send() is Sent.TURN_OVER
    assert queue.send() is Sent.ALL
    left.close()
    right.close()


@pytest.mark.linux("RWF_NOWAIT")
@pytest.mark.parametrize("cold_end", [0, WINDOW_BYTES - 1])
def test_residency_check_covers_both_ends_of_a_window(
    segment: str, monkeypatch: pytest.MonkeyPatch, cold_end: int
) -> None:
    left, right = socket_pair()
    preadv = os.preadv

    def partly_cold(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags == NOWAIT and position == 500 + cold_end:
            raise BlockingIOError
        return preadv(fd, buffers, position, flags)

    monkeypatch.setattr(system_calls, "preadv", partly_cold)
    queue = SendQueue(PlaintextTransportLayer(left))
    queue.extend([region(segment, 500, 2 * WINDOW_BYTES)], 2 * WINDOW_BYTES)
    assert queue.send() is Sent.COLD
    work, end = queue.cold_window()
    work()
    queue.warmed(end)
    assert queue.send() is Sent.BLOCKED
    left.close()
    right.close()


def test_file_system_without_nowait_reads_counts_as_resident(
    segment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = socket_pair()

    def unsupported(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(system_calls, "preadv", unsupported)
    queue = SendQueue(PlaintextTransportLayer(left))
    queue.extend([region(segment, 0, 100)], 100)
    assert queue.send() is Sent.ALL
    left.close()
    right.close()


async def test_unsent_regions_count_as_unsent_bytes(harness: ServerHarness, segment: str) -> None:
    """A client that sends requests and never reads is paused, also if its responses are file regions."""
    harness.node.regions = [region(segment, 0, 9 << 20)]
    client = await harness.connect()
    await client.send(*[b"f0"] * 50)
    await harness.node.until(lambda: any(c.queue.size_bytes for c in harness.server.connections.values()))
    await client.send(b"f0")
    await harness.node.until(lambda: any(c.is_paused for c in harness.server.connections.values()))
    assert len(harness.node.frames) < 51
    with trio.move_on_after(0):
        await client.receive()
