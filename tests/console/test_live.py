"""Live tails: new messages, skipped messages and closed connections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.cli.shared.command_client import CommandClient
from kwire.console.live import Tail, partitions_of
from kwire.console.page import ConsoleSettings
from kwire.testing import Broker
from kwire.wire.batch import CorruptBatch
from tests.broker.observe.conftest import ObservedNode, serve_observed
from tests.console.conftest import ConsoleClient, run_console


class EventStream:
    """A server-sent event stream and its events."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self.head = b""

    async def begin(self, path: str) -> None:
        await self._stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while line := (await self._line()).strip():
            self.head += line + b"\n"

    async def next(self) -> dict[str, Any]:
        with trio.fail_after(30):
            while not (line := await self._line()).startswith(b"data: "):
                pass
        result: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return result

    async def _line(self) -> bytes:
        while b"\n" not in self._rest:
            part = await self._stream.receive_some()
            assert part, "the answer has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line


@asynccontextmanager
async def follow_topic(node: ObservedNode, path: str) -> AsyncIterator[EventStream]:
    """Follow a tail during the block."""
    sock = await trio.open_tcp_stream("127.0.0.1", node.http.base_url.port or 0)
    async with sock:
        stream = EventStream(sock)
        await stream.begin(path)
        yield stream


@pytest.fixture
def small_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.console.live.ROWS_AT_ONCE", 3)


async def test_tail_sends_new_messages_and_ends_with_the_connection() -> None:
    async with serve_observed({"num.partitions": "2"}, console=True) as node:
        producer = Producer({"bootstrap.servers": node.running.bootstrap})
        await trio.to_thread.run_sync(_send, producer, "orders", 0, ["before"])
        events = "/console/topics/orders/live/events"
        async with follow_topic(node, events) as stream:
            assert b"content-type: text/event-stream" in stream.head
            for text in ("first", "second <b>"):
                await trio.to_thread.run_sync(_send, producer, "orders", 1, [text])
                result = await stream.next()
                assert [(row["partition"], row["value"]["text"]) for row in result["rows"]] == [(1, text)]
        for _ in range(20):  # more than the limit; closed tails do not count
            head = b""
            with trio.fail_after(30):
                while b" 200" not in head:
                    async with follow_topic(node, events) as stream:
                        head = stream.head
                    await trio.sleep(0.1)


def _send(producer: Producer, topic: str, partition: int, texts: list[str]) -> None:
    for text in texts:
        producer.produce(topic, text, partition=partition)
    producer.flush(10)


async def test_number_of_tails_is_limited() -> None:
    async with serve_observed(console=True) as node, trio.open_nursery() as nursery:
        producer = Producer({"bootstrap.servers": node.running.bootstrap})
        await trio.to_thread.run_sync(_send, producer, "orders", 0, ["x"])
        events = "/console/topics/orders/live/events?partition=0"
        follows: list[bool] = []

        async def follow() -> None:
            async with follow_topic(node, events) as stream:
                follows.append(b" 200" in stream.head)
                await trio.sleep_forever()

        for _ in range(8):
            nursery.start_soon(follow)
        with trio.fail_after(30):
            while len(follows) < 8:
                await trio.sleep(0.01)
        assert all(follows)
        assert "close one of them" in await node.text(events, 503)
        assert "orders" in await node.text(
            "/console/topics/orders/live"
        )  # other pages have their own threads
        nursery.cancel_scope.cancel()


async def test_invalid_tail_is_an_error(console: ConsoleClient, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("followed", 1, 1)])["followed"].result(10)
    assert "Live tails need JavaScript" in await console.page("/topics/followed/live")
    assert "there is no topic 'none'" in await console.page("/topics/none/live/events", 404)
    assert "partition is 'x'" in await console.page("/topics/followed/live/events?partition=x", 400)
    assert "only partition 0" in await console.page("/topics/followed/live/events?partition=5", 404)
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    response = await console.http.get("/console/topics/followed/live/events", headers=headers)
    assert response.status_code == 403


@pytest.mark.usefixtures("small_tails")
def test_tail_skips_and_counts_messages_over_the_limit(
    broker: Broker, admin: AdminClient, producer: Producer
) -> None:
    admin.create_topics([NewTopic("flood", 1, 1)])["flood"].result(10)
    cluster = CommandClient(ClientSettings(servers_of(broker.bootstrap_servers)))
    tail = Tail(cluster, partitions_of(cluster, "flood", None))
    _send(producer, "flood", 0, [str(number) for number in range(10)])
    result = tail.next()
    assert ([row["offset"] for row in result["rows"]], result["skipped"]) == ([0, 1, 2], 7)
    assert tail.next() == {"rows": [], "skipped": 0}
    _send(producer, "flood", 0, ["next"])
    assert [row["offset"] for row in tail.next()["rows"]] == [10]
    tail.close()


def test_oversized_compressed_batch_is_not_followed(broker: Broker, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("large", 1, 1)])["large"].result(10)
    cluster = CommandClient(ClientSettings(servers_of(broker.bootstrap_servers)))
    tail = Tail(cluster, partitions_of(cluster, "large", None))
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "compression.type": "zstd",
            "message.max.bytes": 40_000_000,
        }
    )
    producer.produce("large", bytes(15 << 20))
    producer.flush(10)
    [row] = tail.next()["rows"]
    assert row["value"]["size"] == 15 << 20
    producer.produce("large", bytes(17 << 20))
    producer.flush(10)
    with pytest.raises(CorruptBatch, match=f"more than {16 << 20} bytes"):
        tail.next()
    tail.close()


async def test_tail_without_a_broker_is_an_error() -> None:
    async with run_console(ConsoleSettings("127.0.0.1:1", -1, (), may_write=False)) as console:
        for path in ("/topics/orders/live", "/topics/orders/live/events"):
            assert "no broker is reachable" in await console.page(path, 502)
