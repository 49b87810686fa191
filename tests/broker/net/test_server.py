"""The shell over real sockets: order of replies, bounds, and who suffers from whom (only the guilty)."""

from __future__ import annotations

import socket
import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from kwire.broker.net import receiving as receiving_module
from kwire.broker.net.listeners import BindError, bind
from kwire.broker.net.receiving import MAX_PENDING_REQUESTS, MAX_UNSENT_BYTES, SCRATCH_BYTES
from kwire.broker.net.settings import Settings

if TYPE_CHECKING:
    from tests.broker.net.conftest import MakeRig, Rig


async def test_replies_leave_in_request_order_though_later_ones_are_ready_first(rig: Rig) -> None:
    client = await rig.connect()
    await client.send(b"efirst", b"pslow", b"pslower", b"elast")
    assert await client.receive() == b"first"
    await rig.node.until(lambda: len(rig.node.frames) == 4)  # all are processed, none waits for another
    rig.node.complete("slower")
    rig.node.complete("slow")
    assert [await client.receive() for _ in range(3)] == [b"slow", b"slower", b"last"]


async def test_requests_wait_for_the_answers_of_those_before(rig: Rig) -> None:
    rig.node.one_at_a_time = True
    client, other = await rig.connect(), await rig.connect()
    await client.send(b"e1", b"pfirst", b"e2", b"psecond", b"e3")
    assert await client.receive() == b"1"
    await rig.node.until(lambda: "first" in rig.node.parked)
    turns = rig.node.turns
    assert await other.ask(b"ehello") == b"hello"
    assert rig.node.frames == [b"e1", b"pfirst", b"ehello"]
    assert rig.node.turns < turns + 5, "it turns though there is nothing to do"
    rig.node.complete("first")
    assert [await client.receive() for _ in range(2)] == [b"first", b"2"]
    await rig.node.until(lambda: "second" in rig.node.parked)
    assert b"e3" not in rig.node.frames
    rig.node.complete("second")
    assert [await client.receive() for _ in range(2)] == [b"second", b"3"]
    assert await client.ask(b"eand it goes on") == b"and it goes on"


async def test_a_parked_reply_can_be_completed_by_another_connection(rig: Rig) -> None:
    waiting, other = await rig.connect(), await rig.connect()
    await waiting.send(b"pnews")
    await rig.node.until(lambda: "news" in rig.node.parked)
    rig.node.on_end_turn = lambda: rig.node.complete("news") if len(rig.node.frames) == 2 else None
    await other.send(b"n")
    assert await waiting.receive() == b"news"


async def test_requests_without_reply_leave_no_gap(rig: Rig) -> None:
    client = await rig.connect()
    await client.send(b"n", b"e1", b"n", b"n", b"e2")
    assert [await client.receive(), await client.receive()] == [b"1", b"2"]


async def test_a_frame_may_arrive_byte_by_byte(rig: Rig) -> None:
    client = await rig.connect()
    for byte in struct.pack(">i", 6) + b"ehello":
        before = rig.node.turns
        await client.send_raw(bytes([byte]))
        await rig.node.until(lambda before=before: rig.node.turns > before)  # type: ignore[misc]
    assert await client.receive() == b"hello"


@pytest.mark.parametrize("size", [SCRATCH_BYTES - 5, SCRATCH_BYTES, SCRATCH_BYTES + 1, 3_000_000, 20_000_000])
async def test_large_frames_arrive_whole_between_small_ones(rig: Rig, size: int) -> None:
    client = await rig.connect()
    payload = bytes(range(251)) * (size // 251 + 1)
    payload = payload[:size]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"ebefore", b"e" + payload, b"eafter")
        assert await client.receive() == b"before"
        assert await client.receive() == payload
        assert await client.receive() == b"after"


async def test_many_pipelined_requests_all_answered_in_order(rig: Rig) -> None:
    client = await rig.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, *(b"e%d" % index for index in range(20_000)))
        for index in range(20_000):
            assert await client.receive() == b"%d" % index


async def test_one_connections_burst_does_not_hold_back_another(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a burst is served, a single request of somebody else is answered within a few turns."""
    monkeypatch.setattr(receiving_module, "TURN_BUDGET_SECONDS", 0)
    busy, quiet = await rig.connect(), await rig.connect()
    assert await quiet.ask(b"eready") == b"ready"
    await busy.send(*(b"n" for _ in range(5_000)), b"edone")
    await quiet.send(b"equick")
    assert await quiet.receive() == b"quick"
    assert rig.node.frames.index(b"equick") < 5_000
    assert await busy.receive() == b"done"


@pytest.mark.parametrize("announced", [-1, -(2**31), 1001, 2**31 - 1, 0x47455420])
async def test_an_impossible_size_closes_that_connection_only(
    make_rig: MakeRig, announced: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await make_rig(request_max_bytes=1000)
    guilty, innocent = await rig.connect(), await rig.connect()
    await guilty.send_raw(struct.pack(">i", announced))
    assert await guilty.is_closed()
    assert await innocent.ask(b"estill here") == b"still here"
    assert str(announced) in caplog.text
    assert "127.0.0.1" in caplog.text


async def test_the_largest_size_allowed_is_allowed(make_rig: MakeRig) -> None:
    rig = await make_rig(request_max_bytes=1000)
    client = await rig.connect()
    assert len(await client.ask(b"e" * 1000)) == 999


async def test_a_peer_who_breaks_the_protocol_is_closed(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    guilty, innocent = await rig.connect(), await rig.connect()
    assert await guilty.ask(b"efine") == b"fine"
    await guilty.send(b"w", b"enever handled")
    assert await guilty.is_closed()
    assert await innocent.ask(b"ehello") == b"hello"
    assert b"enever handled" not in rig.node.frames
    assert "a peer that knows no better" in caplog.text
    assert len(rig.node.closed) == 1


@pytest.mark.parametrize("broken", [b"\0\0\0\1w", struct.pack(">i", -1)], ids=["frame", "size"])
async def test_what_was_asked_before_the_protocol_was_broken_is_answered(rig: Rig, broken: bytes) -> None:
    client = await rig.connect()
    later = b"\0\0\0\6elater"
    await client.send_raw(b"\0\0\0\6ehello" + b"\0\0\0\6pnever" + broken + later)
    assert await client.receive() == b"hello"
    await rig.node.until(lambda: "never" in rig.node.parked)
    assert not rig.node.closed
    await client.send_raw(later)
    rig.node.complete("never")
    assert await client.receive() == b"never"
    assert await client.is_closed()
    assert b"elater" not in rig.node.frames


async def test_our_own_bug_is_logged_with_its_traceback_and_costs_one_connection(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    unlucky, innocent = await rig.connect(), await rig.connect()
    await unlucky.send(b"x")
    assert await unlucky.is_closed()
    assert await innocent.ask(b"ehello") == b"hello"
    assert "ZeroDivisionError" in caplog.text


async def test_closing_after_the_last_reply(rig: Rig) -> None:
    client = await rig.connect()
    await client.send(b"e1", b"pfirst", b"c", b"enever handled")
    assert await client.receive() == b"1"
    rig.node.complete("first")
    assert await client.receive() == b"first"
    assert await client.is_closed()
    assert b"enever handled" not in rig.node.frames


async def test_a_reply_to_a_peer_who_left_is_dropped(rig: Rig) -> None:
    client = await rig.connect()
    await client.send(b"plate")
    await rig.node.until(lambda: "late" in rig.node.parked)
    await client.stream.aclose()
    await rig.node.until(lambda: len(rig.node.closed) == 1)
    rig.node.complete("late")
    other = await rig.connect()
    assert await other.ask(b"ehello") == b"hello"
    assert len(rig.server.connections) == 1


async def test_a_slow_reader_is_not_read_from_and_costs_bounded_memory(rig: Rig) -> None:
    client, other = await rig.connect(), await rig.connect()
    reply_bytes, count = 256 << 10, 400
    await client.send(*(b"z%d" % reply_bytes for _ in range(count)))
    await rig.node.until(lambda: any(c.is_paused for c in rig.server.connections.values()))
    (paused,) = (c for c in rig.server.connections.values() if c.is_paused)
    assert paused.queue.size_bytes + paused.channel.queued_bytes <= MAX_UNSENT_BYTES + reply_bytes
    assert len(rig.node.frames) < count
    assert await other.ask(b"ehello") == b"hello"
    for _ in range(count):
        assert len(await client.receive()) == reply_bytes
    assert await client.ask(b"eand it goes on") == b"and it goes on"
    assert not paused.is_paused


async def test_pending_requests_of_one_connection_are_bounded(rig: Rig) -> None:
    client, other = await rig.connect(), await rig.connect()
    count = 3 * MAX_PENDING_REQUESTS
    await client.send(*(b"p%d" % index for index in range(count)))
    await rig.node.until(lambda: any(c.is_paused for c in rig.server.connections.values()))
    assert len(rig.node.parked) == MAX_PENDING_REQUESTS
    assert await other.ask(b"ehello") == b"hello"
    for index in range(count):
        await rig.node.until(lambda index=index: str(index) in rig.node.parked)  # type: ignore[misc]
        rig.node.complete(str(index))
        assert await client.receive() == b"%d" % index


async def test_half_a_frame_and_silence_is_an_idle_connection(make_rig: MakeRig) -> None:
    rig = await make_rig(max_idle_ms=10_000)
    halfway, active = await rig.connect(), await rig.connect()
    await halfway.send_raw(struct.pack(">i", 1000) + b"e")
    assert await active.ask(b"e1") == b"1"
    rig.clock.advance(9_000)
    assert await active.ask(b"e2") == b"2"
    assert len(rig.server.connections) == 2
    rig.clock.advance(1_000)
    assert await halfway.is_closed()
    assert await active.ask(b"e3") == b"3"
    rig.clock.advance(10_000)
    assert await active.is_closed()


async def test_a_slow_loris_holds_no_more_than_it_sent(rig: Rig) -> None:
    """A hundred peers announce 100 MiB each, and send a few bytes."""
    clients = [await rig.connect() for _ in range(100)]
    for client in clients:
        await client.send_raw(struct.pack(">i", 104_857_600) + b"e" * 100)
    await rig.node.until(lambda: sum(c.held_bytes for c in rig.server.connections.values()) >= 10_400)
    assert sum(c.held_bytes for c in rig.server.connections.values()) == 10_400
    assert await (await rig.connect()).ask(b"ehello") == b"hello"


async def test_a_large_frame_holds_at_most_four_times_what_arrived(rig: Rig) -> None:
    client = await rig.connect()
    sent = 500_000
    await client.send_raw(struct.pack(">i", 104_857_600) + bytes(sent - 4))
    await rig.node.until(lambda: sum(c.held_bytes for c in rig.server.connections.values()) >= sent)
    assert sum(c.held_bytes for c in rig.server.connections.values()) <= 4 * sent


async def test_frames_of_a_turn_share_one_copy_and_may_be_written_to(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views stay valid, and apart from what arrives later: storage patches and keeps them."""
    kept: list[memoryview] = []
    handle = rig.node.handle_frame

    def keep(channel: object, frame: memoryview) -> None:
        frame[-1:] = b"!"
        kept.append(frame)
        handle(channel, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.node, "handle_frame", keep)
    client = await rig.connect()
    await client.send(b"eone?", b"etwo?")
    await client.send(b"ethree?")
    assert [await client.receive() for _ in range(3)] == [b"one!", b"two!", b"three!"]
    assert [bytes(frame) for frame in kept] == [b"eone!", b"etwo!", b"ethree!"]


async def test_a_turn_that_is_over_its_budget_takes_one_frame_of_each(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving_module, "TURN_BUDGET_SECONDS", 0)
    seen: list[int] = []
    rig.node.on_end_turn = lambda: seen.append(len(rig.node.frames))
    client = await rig.connect()
    await client.send(*(b"e%d" % index for index in range(95)))
    assert [await client.receive() for _ in range(95)] == [b"%d" % index for index in range(95)]
    assert all(later - earlier <= 1 for earlier, later in pairwise(seen))


async def test_connections_per_address(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = await make_rig(max_connections_per_ip=1, max_connections_per_ip_overrides={"127.0.0.1": 2})
    first, second = await rig.connect(), await rig.connect()
    assert await first.ask(b"e1") == b"1"
    assert await second.ask(b"e2") == b"2"
    third = await rig.connect()
    assert await third.is_closed()
    assert "127.0.0.1 is refused: it has 2 connections" in caplog.text
    await first.stream.aclose()
    await rig.node.until(lambda: len(rig.server.connections) == 1)
    assert await (await rig.connect()).ask(b"e4") == b"4"


async def test_at_max_connections_the_next_waits_in_the_backlog(make_rig: MakeRig) -> None:
    rig = await make_rig(max_connections=2)
    first, second = await rig.connect(), await rig.connect()
    assert await first.ask(b"e1") == b"1"
    assert await second.ask(b"e2") == b"2"
    third = await rig.connect()
    await third.send(b"e3")
    assert await first.ask(b"e1") == b"1"
    assert b"e3" not in rig.node.frames
    await second.stream.aclose()
    assert await third.receive() == b"3"


async def test_the_listener_between_brokers_makes_room_by_closing_the_oldest_of_the_others(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig(max_connections=2, inter_broker_listener="INTERNAL")
    internal_port = rig.listen("INTERNAL")
    oldest, newer = await rig.connect(), await rig.connect()
    for client in (oldest, newer):
        assert await client.ask(b"e") == b""
        rig.clock.advance(1)
    peer = await rig.connect(internal_port)
    assert await peer.ask(b"ebroker") == b"broker"
    assert await oldest.is_closed()
    assert await newer.ask(b"ehere") == b"here"


async def test_ipv6_and_wildcard_listeners(rig: Rig) -> None:
    port = rig.listen("ANY", "")
    over_ipv4 = await rig.connect(port)
    assert await over_ipv4.ask(b"e4") == b"4"
    assert rig.node.channels[-1].peer_host == "127.0.0.1"  # not ::ffff:127.0.0.1
    assert rig.node.channels[-1].listener == "ANY"
    if socket.has_dualstack_ipv6():
        over_ipv6 = await rig.connect(port, "::1")
        assert await over_ipv6.ask(b"e6") == b"6"
        assert rig.node.channels[-1].peer_host == "::1"


async def test_a_port_in_use_is_named(rig: Rig) -> None:
    with pytest.raises(BindError, match=rf"cannot listen on 127.0.0.1:{rig.port} .*in use"):
        bind("PLAINTEXT", "127.0.0.1", rig.port, Settings())


async def test_draining_answers_what_was_received_and_takes_nothing_more(rig: Rig) -> None:
    client, idle = await rig.connect(), await rig.connect()
    assert await idle.ask(b"e1") == b"1"
    await client.send(b"plong poll", b"ebehind it")
    await rig.node.until(lambda: "long poll" in rig.node.parked)
    rig.node.on_begin_shutdown = lambda: rig.node.complete("long poll", b"nothing yet")
    port = rig.port
    await rig.server.drain()
    assert [await client.receive(), await client.receive()] == [b"nothing yet", b"behind it"]
    assert await client.is_closed()
    assert await idle.is_closed()
    with pytest.raises(OSError, match="all attempts to connect"):
        await rig.connect(port)
    assert not rig.server.connections
    assert len(rig.node.closed) == 2


async def test_draining_ends_though_a_reply_never_comes(rig: Rig) -> None:
    client = await rig.connect()
    await client.send(b"pforever")
    await rig.node.until(lambda: "forever" in rig.node.parked)
    await rig.server.drain(timeout_ms=1)
    assert await client.is_closed()


async def test_frames_that_had_to_wait_are_answered_by_a_drain(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving_module, "TURN_BUDGET_SECONDS", 0)
    client = await rig.connect()
    await client.send(b"e0", *(b"e%d" % index for index in range(1, 60)))
    assert await client.receive() == b"0"
    await rig.server.drain()
    received = [await client.receive() for _ in range(len(rig.node.frames) - 1)]
    assert received == [b"%d" % index for index in range(1, len(rig.node.frames))]
    assert await client.is_closed()
