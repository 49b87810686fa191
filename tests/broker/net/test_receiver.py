"""Frames out of bytes: whole, in order, bounded, and whose fault it is where they are not."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from kwire.broker.net import receiver as receiving_module
from kwire.broker.net.receiver import MAX_PENDING_REQUESTS, MAX_UNSENT_BYTES, SCRATCH_BYTES
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import RequestHeader

if TYPE_CHECKING:
    from kwire.broker.api.request.context import Channel, RequestContext
    from tests.broker.net.conftest import MakeHarness, ServerHarness


async def test_a_frame_may_arrive_byte_by_byte(harness: ServerHarness) -> None:
    client = await harness.connect()
    for byte in struct.pack(">i", 6) + b"ehello":
        before = harness.node.turns
        await client.send_raw(bytes([byte]))
        await harness.node.until(lambda before=before: harness.node.turns > before)  # type: ignore[misc]
    assert await client.receive() == b"hello"


@pytest.mark.parametrize("size", [SCRATCH_BYTES - 5, SCRATCH_BYTES, SCRATCH_BYTES + 1, 3_000_000, 20_000_000])
async def test_large_frames_arrive_whole_between_small_ones(harness: ServerHarness, size: int) -> None:
    client = await harness.connect()
    payload = bytes(range(251)) * (size // 251 + 1)
    payload = payload[:size]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"ebefore", b"e" + payload, b"eafter")
        assert await client.receive() == b"before"
        assert await client.receive() == payload
        assert await client.receive() == b"after"


async def test_many_pipelined_requests_all_answered_in_order(harness: ServerHarness) -> None:
    client = await harness.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, *(b"e%d" % index for index in range(20_000)))
        for index in range(20_000):
            assert await client.receive() == b"%d" % index


class Asks:
    """Takes no longer frame than this of a connection, before which it is known who asks."""

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


@pytest.mark.parametrize("size", [-1, Asks.MOST_BYTES + 1, SCRATCH_BYTES, 2**31 - 1])
async def test_how_long_a_frame_may_be_is_the_connections_own(harness: ServerHarness, size: int) -> None:
    asked: list[Asks] = []
    harness.node.on_opened = lambda channel: asked.append(Asks(channel))
    client = await harness.connect()
    fits = b"e" + b"x" * (Asks.MOST_BYTES - 1)
    assert await client.ask(fits) == fits[1:]
    await client.send_raw(struct.pack(">i", size) + b"\0" * (2 * SCRATCH_BYTES))
    await harness.node.until(lambda: asked[0].failed is not None)
    await client.send(b"enever taken")
    harness.clock.advance(1_000)
    failed = asked[0].failed
    assert failed is not None
    failed.closes = True
    failed.complete_encoded([b"\0\0\0\4told"])
    harness.loop.wake()
    assert await client.receive() == b"told"
    assert await client.is_closed()
    assert harness.node.frames == [fits]


async def test_a_connection_may_have_longer_frames_once_it_is_known_who_asks(harness: ServerHarness) -> None:
    asked: list[Asks] = []
    harness.node.on_opened = lambda channel: asked.append(Asks(channel))
    client = await harness.connect()
    assert await client.ask(b"e1") == b"1"
    harness.node.channels[0].max_frame_bytes = asked[0].after
    longer = bytes(2 * SCRATCH_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"e" + longer)
        assert await client.receive() == longer
    await client.send_raw(struct.pack(">i", -1))
    assert await client.is_closed()
    assert asked[0].failed is None


async def test_one_connections_burst_does_not_hold_back_another(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a burst is served, a single request of somebody else is answered within a few turns."""
    monkeypatch.setattr(receiving_module, "TURN_BUDGET_SECONDS", 0)
    busy, quiet = await harness.connect(), await harness.connect()
    assert await quiet.ask(b"eready") == b"ready"
    await busy.send(*(b"n" for _ in range(5_000)), b"edone")
    await quiet.send(b"equick")
    assert await quiet.receive() == b"quick"
    assert harness.node.frames.index(b"equick") < 5_000
    assert await busy.receive() == b"done"


@pytest.mark.parametrize("announced", [-1, -(2**31), 1001, 2**31 - 1, 0x47455420])
async def test_an_impossible_size_closes_that_connection_only(
    make_harness: MakeHarness, announced: int, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await make_harness(request_max_bytes=1000)
    guilty, innocent = await harness.connect(), await harness.connect()
    await guilty.send_raw(struct.pack(">i", announced))
    assert await guilty.is_closed()
    assert await innocent.ask(b"estill here") == b"still here"
    assert str(announced) in caplog.text
    assert "127.0.0.1" in caplog.text


async def test_the_largest_size_allowed_is_allowed(make_harness: MakeHarness) -> None:
    harness = await make_harness(request_max_bytes=1000)
    client = await harness.connect()
    assert len(await client.ask(b"e" * 1000)) == 999


async def test_a_peer_who_breaks_the_protocol_is_closed(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    guilty, innocent = await harness.connect(), await harness.connect()
    assert await guilty.ask(b"efine") == b"fine"
    await guilty.send(b"w", b"enever handled")
    assert await guilty.is_closed()
    assert await innocent.ask(b"ehello") == b"hello"
    assert b"enever handled" not in harness.node.frames
    assert "a peer that knows no better" in caplog.text
    assert len(harness.node.closed) == 1


@pytest.mark.parametrize("broken", [b"\0\0\0\1w", struct.pack(">i", -1)], ids=["frame", "size"])
async def test_what_was_asked_before_the_protocol_was_broken_is_answered(
    harness: ServerHarness, broken: bytes
) -> None:
    client = await harness.connect()
    later = b"\0\0\0\6elater"
    await client.send_raw(b"\0\0\0\6ehello" + b"\0\0\0\6pnever" + broken + later)
    assert await client.receive() == b"hello"
    await harness.node.until(lambda: "never" in harness.node.parked)
    assert not harness.node.closed
    await client.send_raw(later)
    harness.node.complete("never")
    assert await client.receive() == b"never"
    assert await client.is_closed()
    assert b"elater" not in harness.node.frames


async def test_our_own_bug_is_logged_with_its_traceback_and_costs_one_connection(
    harness: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    unlucky, innocent = await harness.connect(), await harness.connect()
    await unlucky.send(b"x")
    assert await unlucky.is_closed()
    assert await innocent.ask(b"ehello") == b"hello"
    assert "ZeroDivisionError" in caplog.text


async def test_a_slow_reader_is_not_read_from_and_costs_bounded_memory(harness: ServerHarness) -> None:
    client, other = await harness.connect(), await harness.connect()
    response_bytes, count = 256 << 10, 400
    await client.send(*(b"z%d" % response_bytes for _ in range(count)))
    await harness.node.until(lambda: any(c.is_paused for c in harness.server.connections.values()))
    (paused,) = (c for c in harness.server.connections.values() if c.is_paused)
    assert paused.queue.size_bytes + paused.channel.queued_bytes <= MAX_UNSENT_BYTES + response_bytes
    assert len(harness.node.frames) < count
    assert await other.ask(b"ehello") == b"hello"
    for _ in range(count):
        assert len(await client.receive()) == response_bytes
    assert await client.ask(b"eand it goes on") == b"and it goes on"
    assert not paused.is_paused


async def test_pending_requests_of_one_connection_are_bounded(harness: ServerHarness) -> None:
    client, other = await harness.connect(), await harness.connect()
    count = 3 * MAX_PENDING_REQUESTS
    await client.send(*(b"p%d" % index for index in range(count)))
    await harness.node.until(lambda: any(c.is_paused for c in harness.server.connections.values()))
    assert len(harness.node.parked) == MAX_PENDING_REQUESTS
    assert await other.ask(b"ehello") == b"hello"
    for index in range(count):
        await harness.node.until(lambda index=index: str(index) in harness.node.parked)  # type: ignore[misc]
        harness.node.complete(str(index))
        assert await client.receive() == b"%d" % index


async def test_half_a_frame_and_silence_is_an_idle_connection(make_harness: MakeHarness) -> None:
    harness = await make_harness(max_idle_ms=10_000)
    halfway, active = await harness.connect(), await harness.connect()
    await halfway.send_raw(struct.pack(">i", 1000) + b"e")
    assert await active.ask(b"e1") == b"1"
    harness.clock.advance(9_000)
    assert await active.ask(b"e2") == b"2"
    assert len(harness.server.connections) == 2
    harness.clock.advance(1_000)
    assert await halfway.is_closed()
    assert await active.ask(b"e3") == b"3"
    harness.clock.advance(10_000)
    assert await active.is_closed()


async def test_a_slow_loris_holds_no_more_than_it_sent(harness: ServerHarness) -> None:
    """A hundred peers announce 100 MiB each, and send a few bytes."""
    clients = [await harness.connect() for _ in range(100)]
    for client in clients:
        await client.send_raw(struct.pack(">i", 104_857_600) + b"e" * 100)
    await harness.node.until(lambda: sum(c.held_bytes for c in harness.server.connections.values()) >= 10_400)
    assert sum(c.held_bytes for c in harness.server.connections.values()) == 10_400
    assert await (await harness.connect()).ask(b"ehello") == b"hello"


async def test_a_large_frame_holds_at_most_four_times_what_arrived(harness: ServerHarness) -> None:
    client = await harness.connect()
    sent = 500_000
    await client.send_raw(struct.pack(">i", 104_857_600) + bytes(sent - 4))
    await harness.node.until(lambda: sum(c.held_bytes for c in harness.server.connections.values()) >= sent)
    assert sum(c.held_bytes for c in harness.server.connections.values()) <= 4 * sent


async def test_frames_of_a_turn_share_one_copy_and_may_be_written_to(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views stay valid, and apart from what arrives later: storage patches and keeps them."""
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


async def test_a_turn_that_is_over_its_budget_takes_one_frame_of_each(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving_module, "TURN_BUDGET_SECONDS", 0)
    seen: list[int] = []
    harness.node.on_end_turn = lambda: seen.append(len(harness.node.frames))
    client = await harness.connect()
    await client.send(*(b"e%d" % index for index in range(95)))
    assert [await client.receive() for _ in range(95)] == [b"%d" % index for index in range(95)]
    assert all(later - earlier <= 1 for earlier, later in pairwise(seen))
