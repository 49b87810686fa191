"""Requests of one connection, sent in one piece over a real socket to a real node, whose clock stands still.

`tests/broker/api/dispatch/test_dispatcher.py` tests which of them wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import trio

from kwire.broker.config import load
from kwire.broker.net.running_node import RunningNode
from kwire.broker.net.serve import serve
from kwire.host.clock import ManualClock
from kwire.testing.disk import MemoryDisk
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

Request = tuple[int, Any]
"""With its version first."""

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
LATEST_OFFSET: Request = (
    5,
    ListOffsetsRequest(
        replica_id=-1,  # a client's, which is told how far the log is written
        topics=[
            ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)])
        ],
    ),
)


class Asking:
    """A client that sends several requests at once."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._client.stream)

    async def send(self, *requests: Request) -> None:
        frames = [encode_request(asked, version, at, "me") for at, (version, asked) in enumerate(requests)]
        await self._client.send_raw(b"".join(frames))

    async def receive(self, *requests: Request) -> list[Any]:
        """The answers to these."""
        answers = []
        for version, asked in requests:
            of_response = API_VERSIONS[asked.API_KEY].response_class
            answers.append(decode_response(of_response, version, await self._client.receive())[1])
        return answers

    async def ask(self, *requests: Request) -> list[Any]:
        await self.send(*requests)
        return await self.receive(*requests)


async def connect(broker: RunningNode) -> Asking:
    return Asking(Client(await trio.open_tcp_stream("127.0.0.1", broker.server.listeners[0].port)))


@asynccontextmanager
async def connected(clock: ManualClock | None = None) -> AsyncIterator[tuple[Asking, Asking]]:
    """Two connections to a broker that has the topic `a`, and coordinates the group `g`."""
    config = load(None, {}, SETTINGS)
    with trio.fail_after(20):
        async with (
            serve(config, clock=clock or ManualClock(), disk=MemoryDisk()) as broker,
            aclosing(await connect(broker)) as client,
            aclosing(await connect(broker)) as other,
        ):
            await client.ask(CREATE)
            while (await client.ask(FIND))[0].error_code:
                pass
            yield client, other


def states(answer: Any) -> list[tuple[str, str]]:
    return [(group.group_id, group.group_state) for group in answer.groups]


def offset(answer: Any) -> int:
    found: int = answer.topics[0].partitions[0].offset
    return found


def appended(answer: Any) -> int:
    found: int = answer.responses[0].partition_responses[0].base_offset
    return found


async def test_what_is_sent_behind_a_join_is_done_when_the_group_has_joined() -> None:
    """The client finds the group's generation made; until then, others do not see what it has sent behind."""
    clock = ManualClock()
    behind = GROUPS, PRODUCE, LATEST_OFFSET
    async with connected(clock) as (client, other):
        await client.send(JOIN, *behind)
        while not states((await other.ask(GROUPS))[0]):
            pass
        groups, latest = await other.ask(GROUPS, LATEST_OFFSET)
        assert (states(groups), offset(latest)) == ([("g", "PreparingRebalance")], 0)
        clock.advance(DELAY_MS)
        joined, groups, produced, latest = await client.receive(JOIN, *behind)
        assert joined.generation_id == 1
        assert states(groups) == [("g", "CompletingRebalance")]
        assert (appended(produced), offset(latest)) == (0, 1)


async def test_what_is_sent_behind_produce_finds_its_records() -> None:
    """The end of the log is told behind the records that were sent before, and before those sent after."""
    requests = PRODUCE, PRODUCE, LATEST_OFFSET, PRODUCE, LATEST_OFFSET
    async with connected() as (client, _):
        for done in (0, 3):
            first, second, latest, third, last = await client.ask(*requests)
            assert [appended(first), appended(second), offset(latest)] == [done, done + 1, done + 2]
            assert [appended(third), offset(last)] == [done + 2, done + 3]


async def test_what_is_sent_behind_a_long_poll_ends_it() -> None:
    """No time passes here: the fetch is answered without records, and is not waited for."""
    async with connected() as (client, _):
        for behind in (LATEST_OFFSET, PRODUCE):
            poll, _ = await client.ask(POLL, behind)
            (fetched,) = poll.responses[0].partitions
            assert (fetched.error_code, len(fetched.records or b"")) == (0, 0)
