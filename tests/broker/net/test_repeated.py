"""Requests that repeat the last one: answered where they are received, and only if nothing is before them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from kwire.broker.api.request.repeated_request import RepeatedRequest
from kwire.broker.net import receiver as receiving_module
from tests.broker.net.conftest import HEADER

if TYPE_CHECKING:
    from tests.broker.net.conftest import Client, ServerHarness

FRAME = b"e\0\0\1" + b"\0\0\0\7" + b"heartbeat"
"""Command and argument to the node, and a frame with a correlation id to the connection."""


def numbered(number: int) -> bytes:
    return FRAME[:4] + struct.pack(">i", number) + FRAME[8:]


class Beats:
    """What the node would say if it were asked again, and how often it was."""

    def __init__(self) -> None:
        self.steady = True
        self.times = 0

    def again(self) -> bool:
        self.times += 1
        return self.steady


async def repeating(harness: ServerHarness, answer: bytes = b"fine") -> tuple[Client, Beats]:
    """A client whose next frame like `FRAME` is a repeated one, to be answered with its id and `answer`."""
    client = await harness.connect()
    assert await client.ask(FRAME) == FRAME[1:]
    beats = Beats()
    reply = struct.pack(">ii", 4 + len(answer), 7) + answer
    harness.node.channels[-1].repeated_request = RepeatedRequest(HEADER, FRAME, reply, beats.again)
    return client, beats


async def test_the_same_again_is_answered_without_the_node(harness: ServerHarness) -> None:
    client, beats = await repeating(harness)
    for number in (8, 9, -1):
        assert await client.ask(numbered(number)) == struct.pack(">i", number) + b"fine"
    assert beats.times == 3
    assert harness.node.frames == [FRAME]
    noted = harness.server.request_metrics.log.all()[1:]  # those behind the first one
    assert [one.correlation_id for one in noted] == [8, 9, -1]
    assert {(one.client_id, one.size_bytes, one.response_bytes) for one in noted} == {
        (HEADER.client_id, len(FRAME), 4 + 4 + len(b"fine"))
    }
    took = [one.seconds for one in noted if one.seconds is not None]
    assert len(took) == 3
    assert 0 <= min(took) <= max(took) < 10


async def test_what_is_not_steady_any_more_or_another_request_goes_to_the_node(
    harness: ServerHarness,
) -> None:
    client, beats = await repeating(harness)
    beats.steady = False
    assert await client.ask(numbered(8)) == numbered(8)[1:]
    beats.steady = True
    other = numbered(9)[:-1] + b"!"
    assert await client.ask(other) == other[1:]
    assert await client.ask(numbered(9) + b"!") == numbered(9)[1:] + b"!"
    assert len(harness.node.frames) == 4


async def test_nothing_overtakes_what_waits(harness: ServerHarness) -> None:
    client, beats = await repeating(harness)
    await client.send(b"pslow")
    await harness.node.until(lambda: "slow" in harness.node.parked)
    await client.send(numbered(8))
    await harness.node.until(lambda: len(harness.node.frames) == 3)
    harness.node.complete("slow")
    assert [await client.receive() for _ in range(2)] == [b"slow", numbered(8)[1:]]
    assert beats.times == 0
    assert await client.ask(numbered(9)) == b"\0\0\0\x09fine"


async def test_several_frames_as_long_as_the_one_are_several(harness: ServerHarness) -> None:
    client, _ = await repeating(harness)
    # Together with their sizes as long as the repeated request with its own.
    first, second = b"e" + FRAME[1:6], b"e" + bytes(len(FRAME) - 4 - 7)
    await client.send(first, second)
    assert [await client.receive() for _ in range(2)] == [first[1:], second[1:]]
    await client.send(numbered(8), numbered(9))
    assert [(await client.receive())[-4:] for _ in range(2)] == [b"beat"] * 2


async def test_a_frame_in_pieces_goes_to_the_node(harness: ServerHarness) -> None:
    client, _ = await repeating(harness)
    data = struct.pack(">i", len(FRAME)) + numbered(8)
    before = harness.node.turns
    await client.send_raw(data[:9])
    await harness.node.until(lambda: harness.node.turns > before)
    await client.send_raw(data[9:])
    assert await client.receive() == numbered(8)[1:]


async def test_a_peer_who_does_not_read_gets_all_of_it_later(harness: ServerHarness) -> None:
    large = bytes(range(256)) * (64 << 10)
    client, beats = await repeating(harness, large)
    await client.send(numbered(8))
    await harness.node.until(lambda: beats.times == 1)
    for number in (8, 9):
        assert await client.receive() == struct.pack(">i", number) + large
        await client.send(numbered(number + 1))


async def test_nothing_overtakes_what_could_not_be_sent_yet(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = bytes(range(256)) * (64 << 10)
    # So that it goes on receiving.
    monkeypatch.setattr(receiving_module, "MAX_UNSENT_BYTES", 2 * len(large))
    client, beats = await repeating(harness, large)
    await client.send(numbered(8))
    await harness.node.until(lambda: beats.times == 1)
    await client.send(numbered(9))
    await harness.node.until(lambda: len(harness.node.frames) == 2)
    assert await client.receive() == b"\0\0\0\x08" + large
    assert await client.receive() == numbered(9)[1:]
