"""The server over real sockets: response order, limits, and isolation of connections."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from kwire.broker.net import receiver as receiver_module
from kwire.broker.net.connection import Connection
from kwire.broker.net.listeners import BindError, bind
from kwire.broker.net.serve import run_waits
from kwire.broker.net.socket_server import LOCAL_SEND_BUFFER_BYTES
from kwire.broker.net.socket_settings import SYSTEM_DEFAULT, SocketSettings

if TYPE_CHECKING:
    from tests.broker.net.conftest import MakeHarness, ServerHarness


async def test_responses_are_sent_in_request_order(
    harness: ServerHarness,
) -> None:
    client = await harness.connect()
    await client.send(b"efirst", b"pslow", b"pslower", b"elast")
    assert await client.receive() == b"first"
    await harness.node.until(lambda: len(harness.node.frames) == 4)  # all requests are handled concurrently
    harness.node.complete("slower")
    harness.node.complete("slow")
    assert [await client.receive() for _ in range(3)] == [b"slow", b"slower", b"last"]


async def test_ordered_request_waits_for_the_responses_before_it(harness: ServerHarness) -> None:
    harness.node.one_at_a_time = True
    client, other = await harness.connect(), await harness.connect()
    await client.send(b"e1", b"pfirst", b"e2", b"psecond", b"e3")
    assert await client.receive() == b"1"
    await harness.node.until(lambda: "first" in harness.node.delayed)
    turns = harness.node.turns
    assert await other.request(b"ehello") == b"hello"
    assert harness.node.frames == [b"e1", b"pfirst", b"ehello"]
    assert harness.node.turns < turns + 5, "the loop turns without work"
    harness.node.complete("first")
    assert [await client.receive() for _ in range(2)] == [b"first", b"2"]
    await harness.node.until(lambda: "second" in harness.node.delayed)
    assert b"e3" not in harness.node.frames
    harness.node.complete("second")
    assert [await client.receive() for _ in range(2)] == [b"second", b"3"]
    assert await client.request(b"eand it goes on") == b"and it goes on"


async def test_delayed_response_is_completed_by_another_connection(harness: ServerHarness) -> None:
    waiting, other = await harness.connect(), await harness.connect()
    await waiting.send(b"pnews")
    await harness.node.until(lambda: "news" in harness.node.delayed)
    harness.node.on_end_turn = lambda: (
        harness.node.complete("news") if len(harness.node.frames) == 2 else None
    )
    await other.send(b"n")
    assert await waiting.receive() == b"news"


async def test_requests_without_response_leave_no_gap(harness: ServerHarness) -> None:
    client = await harness.connect()
    await client.send(b"n", b"e1", b"n", b"n", b"e2")
    assert [await client.receive(), await client.receive()] == [b"1", b"2"]


async def test_connection_closes_after_the_last_response(harness: ServerHarness) -> None:
    client = await harness.connect()
    await client.send(b"e1", b"pfirst", b"c", b"enever handled")
    assert await client.receive() == b"1"
    harness.node.complete("first")
    assert await client.receive() == b"first"
    assert await client.is_closed()
    assert b"enever handled" not in harness.node.frames


async def test_response_to_a_closed_connection_is_dropped(harness: ServerHarness) -> None:
    client = await harness.connect()
    await client.send(b"plate")
    await harness.node.until(lambda: "late" in harness.node.delayed)
    await client.stream.aclose()
    await harness.node.until(lambda: len(harness.node.closed) == 1)
    harness.node.complete("late")
    other = await harness.connect()
    assert await other.request(b"ehello") == b"hello"
    assert len(harness.server.connections) == 1


async def test_connection_limit_per_address(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    harness = await make_harness(max_connections_per_ip=1, max_connections_per_ip_overrides={"127.0.0.1": 2})
    first, second = await harness.connect(), await harness.connect()
    assert await first.request(b"e1") == b"1"
    assert await second.request(b"e2") == b"2"
    third = await harness.connect()
    assert await third.is_closed()
    assert "Rejected connection from 127.0.0.1: it already has 2 connections" in caplog.text
    await first.stream.aclose()
    await harness.node.until(lambda: len(harness.server.connections) == 1)
    assert await (await harness.connect()).request(b"e4") == b"4"


async def test_connection_beyond_max_connections_waits_in_the_backlog(make_harness: MakeHarness) -> None:
    harness = await make_harness(max_connections=2)
    first, second = await harness.connect(), await harness.connect()
    assert await first.request(b"e1") == b"1"
    assert await second.request(b"e2") == b"2"
    third = await harness.connect()
    await third.send(b"e3")
    assert await first.request(b"e1") == b"1"
    assert b"e3" not in harness.node.frames
    await second.stream.aclose()
    assert await third.receive() == b"3"


async def test_inter_broker_connection_closes_the_oldest_client_connection(
    make_harness: MakeHarness,
) -> None:
    harness = await make_harness(max_connections=2, inter_broker_listener="INTERNAL")
    internal_port = harness.listen("INTERNAL")
    oldest, newer = await harness.connect(), await harness.connect()
    for client in (oldest, newer):
        assert await client.request(b"e") == b""
        harness.clock.advance(1)
    peer = await harness.connect(internal_port)
    assert await peer.request(b"ebroker") == b"broker"
    assert await oldest.is_closed()
    assert await newer.request(b"ehere") == b"here"


async def test_ipv6_and_wildcard_listeners(harness: ServerHarness) -> None:
    port = harness.listen("ANY", "")
    over_ipv4 = await harness.connect(port)
    assert await over_ipv4.request(b"e4") == b"4"
    assert harness.node.channels[-1].peer_host == "127.0.0.1"  # not ::ffff:127.0.0.1
    assert harness.node.channels[-1].listener == "ANY"
    if socket.has_dualstack_ipv6():
        over_ipv6 = await harness.connect(port, "::1")
        assert await over_ipv6.request(b"e6") == b"6"
        assert harness.node.channels[-1].peer_host == "::1"


async def test_bind_error_names_the_port(harness: ServerHarness) -> None:
    with pytest.raises(BindError, match=rf"cannot listen on 127.0.0.1:{harness.port} .*in use"):
        bind("PLAINTEXT", "127.0.0.1", harness.port, SocketSettings())


async def test_drain_answers_received_requests_and_accepts_no_more(harness: ServerHarness) -> None:
    client, idle = await harness.connect(), await harness.connect()
    assert await idle.request(b"e1") == b"1"
    await client.send(b"plong poll", b"ebehind it")
    await harness.node.until(lambda: "long poll" in harness.node.delayed)
    harness.node.on_begin_shutdown = lambda: harness.node.complete("long poll", b"nothing yet")
    port = harness.port
    await run_waits(harness.server.drain())
    assert [await client.receive(), await client.receive()] == [b"nothing yet", b"behind it"]
    assert await client.is_closed()
    assert await idle.is_closed()
    with pytest.raises(OSError, match="all attempts to connect"):
        await harness.connect(port)
    assert not harness.server.connections
    assert len(harness.node.closed) == 2


async def test_drain_times_out_without_a_response(harness: ServerHarness) -> None:
    client = await harness.connect()
    await client.send(b"pforever")
    await harness.node.until(lambda: "forever" in harness.node.delayed)
    await run_waits(harness.server.drain(timeout_ms=1))
    assert await client.is_closed()


async def test_drain_answers_frames_deferred_by_the_turn_budget(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "TURN_BUDGET_SECONDS", 0)
    client = await harness.connect()
    await client.send(b"e0", *(b"e%d" % index for index in range(1, 60)))
    assert await client.receive() == b"0"
    await run_waits(harness.server.drain())
    received = [await client.receive() for _ in range(len(harness.node.frames) - 1)]
    assert received == [b"%d" % index for index in range(1, len(harness.node.frames))]
    assert await client.is_closed()


@pytest.mark.parametrize(("given", "expected"), [(SYSTEM_DEFAULT, LOCAL_SEND_BUFFER_BYTES), (50_000, 50_000)])
async def test_send_buffer_of_a_local_connection_is_limited(
    make_harness: MakeHarness, given: int, expected: int
) -> None:
    harness = await make_harness(send_buffer_bytes=given)
    client = await harness.connect()
    assert await client.request(b"ehello") == b"hello"
    (connection,) = harness.server.connections.values()
    # Linux doubles the requested size, up to its limit.
    with socket.socket(fileno=os.dup(connection.fd)) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * expected


@pytest.mark.parametrize("method", ["finish_turn", "resume"])
async def test_exception_of_one_connection_does_not_keep_others_from_sending(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """No event would come for the others."""
    original = getattr(Connection, method)

    def failing(connection: Connection) -> object:
        if connection.peer[1] == failing_port:
            raise ValueError("invalid")
        return original(connection)

    clients = [await harness.connect() for _ in range(3)]
    for client in clients:
        assert await client.request(b"e1") == b"1"
    failing_port = clients[0].stream.socket.getsockname()[1]
    first, *others = harness.server.connections.values()
    assert first.peer[1] == failing_port
    monkeypatch.setattr(Connection, method, failing)

    def end_turn() -> None:
        harness.node.on_end_turn = lambda: None
        for connection in (first, *others):
            if method == "finish_turn":
                harness.node.complete(str(connection.channel.id))
            else:
                connection._waiting = bytearray(b"\0\0\0\2e2")
                harness.server._again.append(connection)

    if method == "finish_turn":
        for client, connection in zip(clients, (first, *others), strict=True):
            await client.send(b"p%d" % connection.channel.id)
        await harness.node.until(lambda: len(harness.node.delayed) == len(clients))
    harness.node.on_end_turn = end_turn
    harness.loop.wake()
    for client, connection in zip(clients[1:], others, strict=True):
        expected = b"%d" % connection.channel.id if method == "finish_turn" else b"2"
        assert await client.receive() == expected
    assert await clients[0].is_closed()
    assert f"Closing connection {first}: an unexpected error" in caplog.text
