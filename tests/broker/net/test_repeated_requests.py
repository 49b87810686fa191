"""Requests that repeat the previous request: the receiver answers them if nothing is pending."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from kwire.broker.api.request.gate import Gate
from kwire.broker.api.request.repeated_request import RepeatedRequest
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.net import receiver as receiver_module
from tests.broker.net.conftest import HEADER

if TYPE_CHECKING:
    from tests.broker.net.conftest import Client, ServerHarness

FRAME = b"e\0\0\1" + b"\0\0\0\7" + b"heartbeat"
"""Command and argument of the fake node, which are also a request with a correlation id."""


def frame_with_id(number: int) -> bytes:
    return FRAME[:4] + struct.pack(">i", number) + FRAME[8:]


class Repeats:
    """Whether a response may be repeated, which the test sets, and how often the receiver has checked it."""

    def __init__(self) -> None:
        self.valid = True
        self.calls = 0

    def is_repeatable(self) -> bool:
        self.calls += 1
        return self.valid


async def connect_repeating(harness: ServerHarness, answer: bytes = b"fine") -> tuple[Client, Repeats]:
    """Connect a client whose next frame like `FRAME` is answered as a repeated request."""
    client = await harness.connect()
    assert await client.request(FRAME) == FRAME[1:]
    repeats = Repeats()
    reply = struct.pack(">ii", 4 + len(answer), 7) + answer
    channel, gate = harness.node.channels[-1], Gate(MetadataImage)
    channel.repeated_request = RepeatedRequest(HEADER, FRAME, reply, repeats.is_repeatable, gate)
    return client, repeats


async def test_repeated_request_is_answered_without_the_node(harness: ServerHarness) -> None:
    client, repeats = await connect_repeating(harness)
    for number in (8, 9, -1):
        assert await client.request(frame_with_id(number)) == struct.pack(">i", number) + b"fine"
    assert repeats.calls == 3
    assert harness.node.frames == [FRAME]
    logged = harness.server.request_metrics.log.all()[1:]  # without the first request
    assert [one.correlation_id for one in logged] == [8, 9, -1]
    assert {(one.client_id, one.size_bytes, one.response_bytes) for one in logged} == {
        (HEADER.client_id, len(FRAME), 4 + 4 + len(b"fine"))
    }
    durations = [one.seconds for one in logged if one.seconds is not None]
    assert len(durations) == 3
    assert 0 <= min(durations) <= max(durations) < 10


async def test_changed_state_or_request_goes_to_the_node(
    harness: ServerHarness,
) -> None:
    client, repeats = await connect_repeating(harness)
    repeats.valid = False
    assert await client.request(frame_with_id(8)) == frame_with_id(8)[1:]
    repeats.valid = True
    other = frame_with_id(9)[:-1] + b"!"
    assert await client.request(other) == other[1:]
    assert await client.request(frame_with_id(9) + b"!") == frame_with_id(9)[1:] + b"!"
    assert len(harness.node.frames) == 4


async def test_repeated_request_does_not_overtake_a_pending_request(harness: ServerHarness) -> None:
    client, repeats = await connect_repeating(harness)
    await client.send(b"pslow")
    await harness.node.until(lambda: "slow" in harness.node.delayed)
    await client.send(frame_with_id(8))
    await harness.node.until(lambda: len(harness.node.frames) == 3)
    harness.node.complete("slow")
    assert [await client.receive() for _ in range(2)] == [b"slow", frame_with_id(8)[1:]]
    assert repeats.calls == 0
    assert await client.request(frame_with_id(9)) == b"\0\0\0\x09fine"


async def test_two_frames_of_the_same_total_size_are_not_a_repeated_request(harness: ServerHarness) -> None:
    client, _ = await connect_repeating(harness)
    # The two frames have the same total size as the repeated request.
    first, second = b"e" + FRAME[1:6], b"e" + bytes(len(FRAME) - 4 - 7)
    await client.send(first, second)
    assert [await client.receive() for _ in range(2)] == [first[1:], second[1:]]
    await client.send(frame_with_id(8), frame_with_id(9))
    assert [(await client.receive())[-4:] for _ in range(2)] == [b"beat"] * 2


async def test_partial_frame_goes_to_the_node(harness: ServerHarness) -> None:
    client, _ = await connect_repeating(harness)
    data = struct.pack(">i", len(FRAME)) + frame_with_id(8)
    before = harness.node.turns
    await client.send_raw(data[:9])
    await harness.node.until(lambda: harness.node.turns > before)
    await client.send_raw(data[9:])
    assert await client.receive() == frame_with_id(8)[1:]


async def test_slow_reader_receives_every_repeated_response(harness: ServerHarness) -> None:
    large = bytes(range(256)) * (64 << 10)
    client, repeats = await connect_repeating(harness, large)
    await client.send(frame_with_id(8))
    await harness.node.until(lambda: repeats.calls == 1)
    for number in (8, 9):
        assert await client.receive() == struct.pack(">i", number) + large
        await client.send(frame_with_id(number + 1))


async def test_repeated_request_does_not_overtake_unsent_responses(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = bytes(range(256)) * (64 << 10)
    # The connection must not be paused.
    monkeypatch.setattr(receiver_module, "MAX_UNSENT_BYTES", 2 * len(large))
    client, repeats = await connect_repeating(harness, large)
    await client.send(frame_with_id(8))
    await harness.node.until(lambda: repeats.calls == 1)
    await client.send(frame_with_id(9))
    await harness.node.until(lambda: len(harness.node.frames) == 2)
    assert await client.receive() == b"\0\0\0\x08" + large
    assert await client.receive() == frame_with_id(9)[1:]
