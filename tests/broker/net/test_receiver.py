"""The receiver: frames are complete, in order and limited in size; errors close their own connection."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from kwire.broker.net import receiver as receiver_module
from kwire.broker.net.receiver import MAX_PENDING_REQUESTS, MAX_UNSENT_BYTES, SCRATCH_BYTES
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import RequestHeader

if TYPE_CHECKING:
    from kwire.broker.api.request.context import Channel, RequestContext
    from tests.broker.net.conftest import MakeHarness, ServerHarness


async def test_frame_may_arrive_byte_by_byte(harness: ServerHarness) -> None:
    client = await harness.connect()
    for byte in struct.pack(">i", 6) + b"ehello":
        before = harness.node.turns
        await client.send_raw(bytes([byte]))
        await harness.node.until(lambda before=before: harness.node.turns > before)  # type: ignore[misc]
    assert await client.receive() == b"hello"


@pytest.mark.parametrize("size", [SCRATCH_BYTES - 5, SCRATCH_BYTES, SCRATCH_BYTES + 1, 3_000_000, 20_000_000])
async def test_large_frames_between_small_ones(harness: ServerHarness, size: int) -> None:
    client = await harness.connect()
    payload = bytes(range(251)) * (size // 251 + 1)
    payload = payload[:size]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"ebefore", b"e" + payload, b"eafter")
        assert await client.receive() == b"before"
        assert await client.receive() == payload
        assert await client.receive() == b"after"


async def test_pipelined_requests_are_answered_in_order(harness: ServerHarness) -> None:
    client = await harness.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, *(b"e%d" % index for index in range(20_000)))
        for index in range(20_000):
            assert await client.receive() == b"%d" % index


class FakeAuthentication:
    """Authentication that limits the frame size until it completes."""

    expects_raw_tokens = session_expires = False
    MOST_BYTES = 16

    def __init__(self, channel: Channel) -> None:
        self.after = channel.max_frame_bytes
        self.failed: RequestContext | None = None
        channel.authentication = self
        channel.max_frame_bytes = self.MOST_BYTES

    def handle_frame(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        return False

    def fail_invalid_size(self, channel: Channel, reason: str, now_ms: int) -> bool:
        if channel.max_frame_bytes == self.after:
            return False
        channel.ending = True
        self.failed = channel.open_slot(RequestHeader(ApiKey.PRODUCE, 0, 0, None), now_ms)
        return True


@pytest.mark.parametrize("size", [-1, FakeAuthentication.MOST_BYTES + 1, SCRATCH_BYTES, 2**31 - 1])
async def test_frame_size_limit_before_authentication(harness: ServerHarness, size: int) -> None:
    authentications: list[FakeAuthentication] = []
    harness.node.on_opened = lambda channel: authentications.append(FakeAuthentication(channel))
    client = await harness.connect()
    fits = b"e" + b"x" * (FakeAuthentication.MOST_BYTES - 1)
    assert await client.request(fits) == fits[1:]
    await client.send_raw(struct.pack(">i", size) + b"\0" * (2 * SCRATCH_BYTES))
    await harness.node.until(lambda: authentications[0].failed is not None)
    await client.send(b"enever taken")
    harness.clock.advance(1_000)
    failed = authentications[0].failed
    assert failed is not None
    failed.closes = True
    failed.complete_encoded([b"\0\0\0\4told"])
    harness.loop.wake()
    assert await client.receive() == b"told"
    assert await client.is_closed()
    assert harness.node.frames == [fits]


async def test_frame_size_limit_is_raised_after_authentication(harness: ServerHarness) -> None:
    authentications: list[FakeAuthentication] = []
    harness.node.on_opened = lambda channel: authentications.append(FakeAuthentication(channel))
    client = await harness.connect()
    assert await client.request(b"e1") == b"1"
    harness.node.channels[0].max_frame_bytes = authentications[0].after
    longer = bytes(2 * SCRATCH_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"e" + longer)
        assert await client.receive() == longer
    await client.send_raw(struct.pack(">i", -1))
    assert await client.is_closed()
    assert authentications[0].failed is None


async def test_burst_of_one_connection_does_not_delay_another(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a burst, a request of another connection is answered within a few turns."""
    monkeypatch.setattr(receiver_module, "TURN_BUDGET_SECONDS", 0)
    busy, quiet = await harness.connect(), await harness.connect()
    assert await quiet.request(b"eready") == b"ready"
    await busy.send(*(b"n" for _ in range(5_000)), b"edone")
    await quiet.send(b"equick")
    assert await quiet.receive() == b"quick"
    assert harness.node.frames.index(b"equick") < 5_000
    assert await busy.receive() == b"done"


@pytest.mark.parametrize("announced", [-1, -(2**31), 1001, 2**31 - 1, 0x15030100])
async def test_invalid_frame_size_closes_only_its_connection(
    make_harness: MakeHarness, announced: int, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await make_harness(request_max_bytes=1000)
    bad_peer, other = await harness.connect(), await harness.connect()
    await bad_peer.send_raw(struct.pack(">i", announced))
    assert await bad_peer.is_closed()
    assert await other.request(b"estill here") == b"still here"
    assert str(announced) in caplog.text
    assert "127.0.0.1" in caplog.text


async def test_frame_of_the_maximum_size_is_received(make_harness: MakeHarness) -> None:
    harness = await make_harness(request_max_bytes=1000)
    client = await harness.connect()
    assert len(await client.request(b"e" * 1000)) == 999


async def test_protocol_error_closes_the_connection(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    bad_peer, other = await harness.connect(), await harness.connect()
    assert await bad_peer.request(b"efine") == b"fine"
    await bad_peer.send(b"w", b"enever handled")
    assert await bad_peer.is_closed()
    assert await other.request(b"ehello") == b"hello"
    assert b"enever handled" not in harness.node.frames
    assert "a peer that knows no better" in caplog.text
    assert len(harness.node.closed) == 1


@pytest.mark.parametrize("broken", [b"\0\0\0\1w", struct.pack(">i", -1)], ids=["frame", "size"])
async def test_requests_before_a_protocol_error_are_answered(harness: ServerHarness, broken: bytes) -> None:
    client = await harness.connect()
    later = b"\0\0\0\6elater"
    await client.send_raw(b"\0\0\0\6ehello" + b"\0\0\0\6pnever" + broken + later)
    assert await client.receive() == b"hello"
    await harness.node.until(lambda: "never" in harness.node.delayed)
    assert not harness.node.closed
    await client.send_raw(later)
    harness.node.complete("never")
    assert await client.receive() == b"never"
    assert await client.is_closed()
    assert b"elater" not in harness.node.frames


async def test_exception_in_a_handler_is_logged_and_closes_only_its_connection(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    unlucky, other = await harness.connect(), await harness.connect()
    await unlucky.send(b"x")
    assert await unlucky.is_closed()
    assert await other.request(b"ehello") == b"hello"
    assert "ZeroDivisionError" in caplog.text


async def test_slow_reader_is_paused_and_its_memory_is_limited(harness: ServerHarness) -> None:
    client, other = await harness.connect(), await harness.connect()
    response_bytes, count = 256 << 10, 400
    await client.send(*(b"z%d" % response_bytes for _ in range(count)))
    await harness.node.until(lambda: any(c.is_paused for c in harness.server.connections.values()))
    (paused,) = (c for c in harness.server.connections.values() if c.is_paused)
    assert paused.queue.size_bytes + paused.channel.queued_bytes <= MAX_UNSENT_BYTES + response_bytes
    assert len(harness.node.frames) < count
    assert await other.request(b"ehello") == b"hello"
    for _ in range(count):
        assert len(await client.receive()) == response_bytes
    assert await client.request(b"eand it goes on") == b"and it goes on"
    assert not paused.is_paused


async def test_pending_requests_per_connection_are_limited(harness: ServerHarness) -> None:
    client, other = await harness.connect(), await harness.connect()
    count = 3 * MAX_PENDING_REQUESTS
    await client.send(*(b"p%d" % index for index in range(count)))
    await harness.node.until(lambda: any(c.is_paused for c in harness.server.connections.values()))
    assert len(harness.node.delayed) == MAX_PENDING_REQUESTS
    assert await other.request(b"ehello") == b"hello"
    for index in range(count):
        await harness.node.until(lambda index=index: str(index) in harness.node.delayed)  # type: ignore[misc]
        harness.node.complete(str(index))
        assert await client.receive() == b"%d" % index


async def test_connection_with_half_a_frame_is_closed_when_idle(make_harness: MakeHarness) -> None:
    harness = await make_harness(max_idle_ms=10_000)
    halfway, active = await harness.connect(), await harness.connect()
    await halfway.send_raw(struct.pack(">i", 1000) + b"e")
    assert await active.request(b"e1") == b"1"
    harness.clock.advance(9_000)
    assert await active.request(b"e2") == b"2"
    assert len(harness.server.connections) == 2
    harness.clock.advance(1_000)
    assert await halfway.is_closed()
    assert await active.request(b"e3") == b"3"
    harness.clock.advance(10_000)
    assert await active.is_closed()


async def test_announced_frame_sizes_allocate_no_memory(harness: ServerHarness) -> None:
    """A hundred connections announce 100 MiB each, and send a few bytes."""
    clients = [await harness.connect() for _ in range(100)]
    for client in clients:
        await client.send_raw(struct.pack(">i", 104_857_600) + b"e" * 100)
    await harness.node.until(lambda: sum(c.held_bytes for c in harness.server.connections.values()) >= 10_400)
    assert sum(c.held_bytes for c in harness.server.connections.values()) == 10_400
    assert await (await harness.connect()).request(b"ehello") == b"hello"


async def test_large_frame_allocates_at_most_four_times_the_received_bytes(harness: ServerHarness) -> None:
    client = await harness.connect()
    sent = 500_000
    await client.send_raw(struct.pack(">i", 104_857_600) + bytes(sent - 4))
    await harness.node.until(lambda: sum(c.held_bytes for c in harness.server.connections.values()) >= sent)
    assert sum(c.held_bytes for c in harness.server.connections.values()) <= 4 * sent


async def test_frames_of_a_turn_share_one_writable_buffer(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage modifies and keeps the views, so later data must not overwrite them."""
    kept: list[memoryview] = []
    handle = harness.node.handle_frame

    def keep(channel: object, frame: memoryview) -> None:
        frame[-1:] = b"!"
        kept.append(frame)
        handle(channel, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.node, "handle_frame", keep)
    client = await harness.connect()
    await client.send(b"eone?", b"etwo?")
    await client.send(b"ethree?")
    assert [await client.receive() for _ in range(3)] == [b"one!", b"two!", b"three!"]
    assert [bytes(frame) for frame in kept] == [b"eone!", b"etwo!", b"ethree!"]


async def test_turn_over_its_budget_handles_one_frame_per_connection(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "TURN_BUDGET_SECONDS", 0)
    seen: list[int] = []
    harness.node.on_end_turn = lambda: seen.append(len(harness.node.frames))
    client = await harness.connect()
    await client.send(*(b"e%d" % index for index in range(95)))
    assert [await client.receive() for _ in range(95)] == [b"%d" % index for index in range(95)]
    assert all(later - earlier <= 1 for earlier, later in pairwise(seen))
