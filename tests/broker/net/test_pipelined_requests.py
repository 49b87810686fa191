"""Pipelined requests of one connection to a real node over a real socket; the clock stands still.

`tests/broker/api/dispatch/test_dispatcher.py` tests which of them wait.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import trio

from kwire.broker.config import load
from kwire.broker.net.running_node import RunningNode
from kwire.broker.net.serve import serve
from kwire.host.clock import ManualClock
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import batches
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.list_groups import ListGroupsRequest
from kwire.wire.messages.list_offsets import (
    LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from tests.broker.api.groups.client import DELAY_MS, join_request
from tests.broker.api.records.slow_segment import SlowSegment, move_first_segment
from tests.broker.net.conftest import Client
from tests.node_harness import FETCH_VERSION, PRODUCE_VERSION, produce_request

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "log.dirs": "/data",
    "log.index.size.max.bytes": "65536",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": str(DELAY_MS),
}
LONG_MS = 600_000
NOW_MS = 1_700_000_000_000

Request = tuple[int, Any]
"""Version and request."""

CREATE: Request = (
    7,
    CreateTopicsRequest(
        topics=[CreatableTopic(name="a", num_partitions=1, replication_factor=1)], timeout_ms=1_000
    ),
)
FIND: Request = 3, FindCoordinatorRequest(key="g", key_type=0)
JOIN: Request = 3, join_request()
GROUPS: Request = 4, ListGroupsRequest()
PRODUCE: Request = PRODUCE_VERSION, produce_request("a")
POLL: Request = (
    FETCH_VERSION,
    FetchRequest(
        max_wait_ms=LONG_MS,
        min_bytes=1,
        topics=[FetchTopic(topic="a", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])],
    ),
)
LARGE_POLL: Request = (
    FETCH_VERSION,
    FetchRequest(
        max_wait_ms=LONG_MS,
        min_bytes=1,
        topics=[
            FetchTopic(
                topic="a", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)] * 5_000
            )
        ],
    ),
)
"""A poll that the broker reads in many turns of its event loop."""
LATEST_OFFSET: Request = (
    5,
    ListOffsetsRequest(
        replica_id=-1,  # a consumer
        topics=[
            ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)])
        ],
    ),
)


class PipeliningClient:
    """A client that sends several requests at once."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._client.stream)

    async def send(self, *requests: Request) -> None:
        frames = [
            encode_request(request, version, at, "me") for at, (version, request) in enumerate(requests)
        ]
        await self._client.send_raw(b"".join(frames))

    async def send_invalid(self) -> None:
        """Send a request of an API that does not exist."""
        await self._client.send(bytes.fromhex("7fff 0000 00000000 ffff"))

    async def is_closed(self) -> bool:
        return await self._client.is_closed()

    async def receive(self, *requests: Request) -> list[Any]:
        """Return the responses to these requests."""
        answers = []
        for version, request in requests:
            of_response = API_VERSIONS[request.API_KEY].response_class
            answers.append(decode_response(of_response, version, await self._client.receive())[1])
        return answers

    async def request(self, *requests: Request) -> list[Any]:
        await self.send(*requests)
        return await self.receive(*requests)


async def connect(broker: RunningNode) -> PipeliningClient:
    return PipeliningClient(Client(await trio.open_tcp_stream("127.0.0.1", broker.server.listeners[0].port)))


@asynccontextmanager
async def start_broker_and_connect(
    clock: ManualClock | None = None,
) -> AsyncIterator[tuple[PipeliningClient, PipeliningClient]]:
    """Connect twice to a broker with the topic `a` and the coordinator of the group `g`."""
    config = load(None, {}, SETTINGS)
    with trio.fail_after(20):
        async with (
            serve(config, clock=clock or ManualClock(), disk=MemoryDisk()) as broker,
            aclosing(await connect(broker)) as client,
            aclosing(await connect(broker)) as other,
        ):
            await client.request(CREATE)
            while (await client.request(FIND))[0].error_code:
                pass
            yield client, other


def states(answer: Any) -> list[tuple[str, str]]:
    return [(group.group_id, group.group_state) for group in answer.groups]


def offset(answer: Any) -> int:
    found: int = answer.topics[0].partitions[0].offset
    return found


def base_offset(answer: Any) -> int:
    found: int = answer.responses[0].partition_responses[0].base_offset
    return found


async def test_requests_after_join_group_wait_for_the_join() -> None:
    """The client sees the new generation; others see no pipelined request before the join completes."""
    clock = ManualClock()
    pipelined = GROUPS, PRODUCE, LATEST_OFFSET
    async with start_broker_and_connect(clock) as (client, other):
        await client.send(JOIN, *pipelined)
        while not states((await other.request(GROUPS))[0]):
            pass
        groups, latest = await other.request(GROUPS, LATEST_OFFSET)
        assert (states(groups), offset(latest)) == ([("g", "PreparingRebalance")], 0)
        clock.advance(DELAY_MS)
        joined, groups, produced, latest = await client.receive(JOIN, *pipelined)
        assert joined.generation_id == 1
        assert states(groups) == [("g", "CompletingRebalance")]
        assert (base_offset(produced), offset(latest)) == (0, 1)


async def test_list_offsets_after_produce_sees_its_records() -> None:
    """The log end offset includes the records sent before the request, and none sent after it."""
    requests = PRODUCE, PRODUCE, LATEST_OFFSET, PRODUCE, LATEST_OFFSET
    async with start_broker_and_connect() as (client, _):
        for done in (0, 3):
            first, second, latest, third, last = await client.request(*requests)
            assert [base_offset(first), base_offset(second), offset(latest)] == [done, done + 1, done + 2]
            assert [base_offset(third), offset(last)] == [done + 2, done + 3]


async def test_request_after_delayed_fetches_completes_them() -> None:
    """The clock does not advance: the delayed fetches complete at once, without records."""
    async with start_broker_and_connect() as (client, _):
        for before, pipelined in (
            ([POLL], LATEST_OFFSET),
            ([POLL, POLL], LATEST_OFFSET),
            ([LARGE_POLL], LATEST_OFFSET),
            ([LARGE_POLL, POLL, LARGE_POLL], LATEST_OFFSET),
            ([POLL, POLL], PRODUCE),
        ):
            *polls, _ = await client.request(*before, pipelined)
            for poll in polls:
                (fetched,) = poll.responses[0].partitions
                assert (fetched.error_code, len(fetched.records or b"")) == (0, 0)


async def test_invalid_request_behind_delayed_fetches_completes_them() -> None:
    """The clock does not advance: the connection closes as soon as the client has the responses."""
    async with start_broker_and_connect() as (client, _):
        await client.send(POLL, POLL)
        await client.send_invalid()
        assert len(await client.receive(POLL, POLL)) == 2
        assert await client.is_closed()


async def test_the_loop_serves_others_while_a_worker_reads_a_remote_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other client is served before the read ends; later requests of the connection wait for it."""
    was_served = threading.Event()
    monkeypatch.setattr(SlowSegment, "wait", lambda segment: was_served.wait(10))
    with trio.fail_after(20):
        async with (
            serve(load(None, {}, SETTINGS), clock=ManualClock(), disk=MemoryDisk()) as broker,
            aclosing(await connect(broker)) as client,
            aclosing(await connect(broker)) as other,
        ):
            await client.request(CREATE, PRODUCE, PRODUCE)
            log = broker.node.log_manager.get("a", 0)
            assert log is not None
            move_first_segment(log, NOW_MS)
            await client.send(POLL, PRODUCE, LATEST_OFFSET)
            assert offset((await other.request(LATEST_OFFSET))[0]) == 2
            was_served.set()
            poll, produced, latest = await client.receive(POLL, PRODUCE, LATEST_OFFSET)
            records = poll.responses[0].partitions[0].records
            assert [header.base_offset for _, header in batches(bytes(records))] == [0, 1]
            assert (base_offset(produced), offset(latest)) == (2, 3)
