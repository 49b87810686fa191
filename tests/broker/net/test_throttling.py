"""A quota that always throttles: responses have the throttle time, and the connection is muted. KIP-219."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from kwire.broker.api.request.client_quotas import ClientQuotas, CountedRequest
from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.gate import Gate
from kwire.broker.api.request.repeated_request import RepeatedRequest
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS
from kwire.broker.config import load
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.net.running_node import RunningNode
from kwire.broker.net.serve import run_waits, serve
from kwire.host.clock import ManualClock
from kwire.host.loggers import NodeLogger
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.produce import ProduceRequest
from kwire.wire.registry import API_VERSIONS, RequestHeader, decode_response
from kwire.wire.schema import Message
from tests.broker.net.conftest import HEADER
from tests.broker.net.test_pipelined_requests import CREATE, LATEST_OFFSET, PRODUCE, SETTINGS, connect, offset
from tests.node_harness import produce_request

if TYPE_CHECKING:
    from tests.broker.net.conftest import ServerHarness

THROTTLE_MS = 1_000
METADATA = 12, MetadataRequest(topics=[])


class AlwaysThrottles(ClientQuotas):
    """Throttles each request, except for those that the test exempts."""

    is_enforced = True

    def __init__(self) -> None:
        self.seen: list[tuple[int, Message | None]] = []
        self.is_exempt = False

    def throttle_time_ms(self, context: CountedRequest, response: Message | None) -> int:
        self.seen.append((context.header.api_key, response))
        return 0 if self.is_exempt else THROTTLE_MS


# --- responses


def complete(api_key: int, version: int, how: str) -> tuple[Any, list[int]]:
    """Complete a request with its default response, and return the response and the throttle times."""
    throttled: list[int] = []
    channel = Channel(
        1,
        peer_host="127.0.0.1",
        listener="PLAINTEXT",
        on_ready=lambda channel: None,
        on_throttled=throttled.append,
        logger=NodeLogger("test", "test"),
    )
    channel.quotas = AlwaysThrottles()
    context = channel.open_slot(RequestHeader(api_key, version, 7, None), 0)
    response_class = API_VERSIONS[api_key].response_class
    if how == "complete":
        context.complete(response_class())
    elif how == "complete_in_slices":
        assert list(context.complete_in_slices(response_class()))
    else:
        context.request = request = API_VERSIONS[api_key].request_class()
        if isinstance(request, ProduceRequest):
            request.acks = -1
        context.refuse(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    frame = memoryview(b"".join(bytes(piece) for piece in channel.take_ready()))  # type: ignore[arg-type]
    return decode_response(response_class, version, frame[4:])[1], throttled


@pytest.mark.parametrize("how", ["complete", "complete_in_slices", "refuse"])
def test_each_response_has_the_throttle_time(how: str) -> None:
    without_field = set()
    for api_key, api in SUPPORTED_APIS.items():
        for version in api.accepted_versions:
            response, throttled = complete(api_key, version, how)
            assert throttled == [THROTTLE_MS]
            fields = {one.name: one for one in type(response).resolved_fields or ()}
            declared = fields.get("throttle_time_ms")
            if declared is None:
                without_field.add(ApiKey(api_key).name)
            else:
                expected = THROTTLE_MS if version in declared.versions else 0
                assert response.throttle_time_ms == expected, (ApiKey(api_key), version)
    assert without_field == {
        "SASL_HANDSHAKE",
        "SASL_AUTHENTICATE",
        "WRITE_TXN_MARKERS",
        "VOTE",
        "BEGIN_QUORUM_EPOCH",
        "END_QUORUM_EPOCH",
        "DESCRIBE_QUORUM",
        "ENVELOPE",
    }


def test_throttle_time_of_the_controller_stays_if_it_is_longer() -> None:
    response_class: Any = API_VERSIONS[ApiKey.CREATE_TOPICS].response_class
    channel = Channel(
        1, peer_host="", listener="", on_ready=lambda channel: None, logger=NodeLogger("test", "test")
    )
    channel.quotas = AlwaysThrottles()
    response = response_class(throttle_time_ms=2 * THROTTLE_MS)
    channel.open_slot(RequestHeader(ApiKey.CREATE_TOPICS, 5, 7, None), 0).complete(response)
    assert response.throttle_time_ms == 2 * THROTTLE_MS


# --- connections


def throttle(harness: ServerHarness) -> AlwaysThrottles:
    """Throttle all connections that are opened later."""
    quotas = AlwaysThrottles()
    harness.node.on_opened = lambda channel: setattr(channel, "quotas", quotas)
    return quotas


@pytest.mark.parametrize("first", [b"e1", b"n"], ids=["complete_encoded", "complete_without_reply"])
async def test_response_is_sent_then_the_connection_is_muted(harness: ServerHarness, first: bytes) -> None:
    throttle(harness)
    client = await harness.connect()
    await client.send(first, b"e2", b"e3")
    if first == b"e1":
        assert await client.receive() == b"1"
    other = await harness.connect()
    assert await other.request(b"eother") == b"other"
    await harness.node.until(lambda: any(c.is_paused for c in harness.server.connections.values()))
    for number in (2, 3):
        harness.clock.advance(THROTTLE_MS - 1)
        turns = harness.node.turns
        harness.loop.wake()
        await harness.node.until(lambda turns=turns: harness.node.turns > turns + 1)  # type: ignore[misc]
        assert b"e%d" % number not in harness.node.frames
        harness.clock.advance(1)
        assert await client.receive() == b"%d" % number


async def test_received_later_means_handled_later(harness: ServerHarness) -> None:
    """Bytes that arrive on a muted connection stay in the socket."""
    throttle(harness)
    client = await harness.connect()
    assert await client.request(b"e1") == b"1"
    await client.send(b"e2")
    (connection,) = harness.server.connections.values()
    assert connection.is_paused
    harness.clock.advance(THROTTLE_MS)
    assert await client.receive() == b"2"


async def test_longer_throttle_time_counts(harness: ServerHarness) -> None:
    """A delayed request that completes on a muted connection extends the mute."""
    quotas = throttle(harness)
    quotas.is_exempt = True
    client = await harness.connect()
    await client.send(b"pslow", b"pquick")
    await harness.node.until(lambda: len(harness.node.delayed) == 2)
    quotas.is_exempt = False
    harness.node.complete("slow")
    harness.loop.wake()
    assert await client.receive() == b"slow"
    harness.clock.advance(THROTTLE_MS // 2)
    harness.node.complete("quick")
    harness.loop.wake()
    assert await client.receive() == b"quick"
    quotas.is_exempt = True
    await client.send(b"elater")
    harness.clock.advance(THROTTLE_MS // 2)
    turns = harness.node.turns
    harness.loop.wake()
    await harness.node.until(lambda: harness.node.turns > turns + 1)
    assert b"elater" not in harness.node.frames
    harness.clock.advance(THROTTLE_MS // 2)
    assert await client.receive() == b"later"


async def test_reset_closes_a_muted_connection(harness: ServerHarness) -> None:
    throttle(harness)
    client = await harness.connect()
    assert await client.request(b"e1") == b"1"
    await client.send(b"e2")
    await trio.aclose_forcefully(client.stream)
    harness.clock.advance(THROTTLE_MS)
    await harness.node.until(lambda: len(harness.node.frames) == 2 or bool(harness.node.closed))
    harness.clock.advance(THROTTLE_MS)  # on macOS, a muted connection notices the reset only now
    await harness.node.until(lambda: bool(harness.node.closed))
    harness.clock.advance(THROTTLE_MS)  # nothing happens to the closed connection
    other = await harness.connect()
    assert await other.request(b"eother") == b"other"


async def test_stop_does_not_wait_for_muted_connections(harness: ServerHarness) -> None:
    throttle(harness)
    client = await harness.connect()
    await client.send(b"e1", b"e2", b"e3")
    assert await client.receive() == b"1"
    await run_waits(harness.server.drain())
    assert [await client.receive(), await client.receive()] == [b"2", b"3"]
    assert await client.is_closed()


async def test_repeated_request_is_throttled_too(harness: ServerHarness) -> None:
    quotas = throttle(harness)
    client = await harness.connect()
    frame = b"e\0\0\1" + b"\0\0\0\7" + b"heartbeat"
    assert await client.request(frame) == frame[1:]
    channel = harness.node.channels[-1]
    reply = b"\0\0\0\10" + bytes(8)
    channel.repeated_request = RepeatedRequest(HEADER, frame, reply, lambda: True, Gate(MetadataImage))
    harness.clock.advance(THROTTLE_MS)
    assert await client.request(frame) == frame[1:]
    assert len(quotas.seen) == 2


# --- a real broker


@asynccontextmanager
async def throttling_broker(home: Path) -> AsyncIterator[tuple[RunningNode, ManualClock, AlwaysThrottles]]:
    clock, quotas = ManualClock(), AlwaysThrottles()
    with trio.fail_after(20):
        async with serve(load(None, {}, {**SETTINGS, "log.dirs": str(home)}), clock=clock) as broker:
            client = await connect(broker)
            await client.request(CREATE)
            await client.aclose()
            broker.node.client_quotas = quotas  # type: ignore[assignment]
            yield broker, clock, quotas


async def test_requests_of_a_throttled_client(tmp_path: Path) -> None:
    async with throttling_broker(tmp_path) as (broker, clock, quotas):
        client = await connect(broker)
        for request in (METADATA, PRODUCE, LATEST_OFFSET):
            await client.send(request, METADATA)
            (answer,) = await client.receive(request)
            assert answer.throttle_time_ms == THROTTLE_MS
            count = len(quotas.seen)
            clock.advance(THROTTLE_MS - 1)
            other = await connect(broker)
            await other.request(METADATA)
            await other.aclose()
            assert len(quotas.seen) == count + 1
            clock.advance(1)
            (answer,) = await client.receive(METADATA)
            assert answer.throttle_time_ms == THROTTLE_MS
            clock.advance(THROTTLE_MS)
        await client.aclose()


async def test_produce_without_response_mutes_the_connection(tmp_path: Path) -> None:
    async with throttling_broker(tmp_path) as (broker, clock, quotas):
        client = await connect(broker)
        await client.send((9, produce_request("a", acks=0)), LATEST_OFFSET)
        while not quotas.seen:
            await trio.sleep(0.001)
        assert quotas.seen == [(ApiKey.PRODUCE, None)]
        clock.advance(THROTTLE_MS - 1)
        other = await connect(broker)
        assert offset((await other.request(LATEST_OFFSET))[0]) == 1
        assert len(quotas.seen) == 2
        clock.advance(1)
        assert offset((await client.receive(LATEST_OFFSET))[0]) == 1
        await client.aclose()
        await other.aclose()


def fetch(max_wait_ms: int) -> tuple[int, FetchRequest]:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="a", partitions=[partition])]
    return 12, FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)


async def test_fetch_behind_a_throttled_fetch_starts_after_the_throttle_time(tmp_path: Path) -> None:
    async with throttling_broker(tmp_path) as (broker, clock, quotas):
        client = await connect(broker)
        first, second = fetch(5_000), fetch(5_000)
        await client.send(first, second)
        other = await connect(broker)
        while not any(one.fetches.queued for one in channels(broker)):
            await trio.sleep(0.001)
        await other.request(PRODUCE)
        (answer,) = await client.receive(first)
        assert answer.throttle_time_ms == THROTTLE_MS
        count = len(quotas.seen)
        clock.advance(THROTTLE_MS - 1)
        third = await connect(broker)
        await third.request(METADATA)
        assert len(quotas.seen) == count + 1
        clock.advance(1)
        (answer,) = await client.receive(second)
        assert answer.throttle_time_ms == THROTTLE_MS
        for one in (client, other, third):
            await one.aclose()


async def test_stop_completes_a_fetch_behind_a_throttled_fetch(tmp_path: Path) -> None:
    async with throttling_broker(tmp_path) as (broker, _, quotas):
        client = await connect(broker)
        requests = [fetch(5_000)] * 3
        await client.send(*requests)
        other = await connect(broker)
        while not any(one.fetches.queued for one in channels(broker)):
            await trio.sleep(0.001)
        await other.request(PRODUCE)
        await client.receive(requests[0])
        count = len(quotas.seen)
        await other.aclose()
    assert len(quotas.seen) == count + 2
    await client.aclose()


def channels(broker: RunningNode) -> list[Channel]:
    return [connection.channel for connection in broker.server.connections.values()]
