"""A live tail: the messages of a topic as they come, as server-sent events.

It is for looking: where more comes than a person can read, what is in between is left out, and said so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import trio
from starlette.types import Receive, Scope, Send

from kwire.cli.shared.cluster import Cluster
from kwire.cli.shared.output import time_text
from kwire.client.offsets import find_offsets
from kwire.client.reading import Reader
from kwire.console.asked import Page, PageAnswer, PageRequest, refusal
from kwire.console.reading import MAX_BATCH_BYTES, MAX_HEADERS
from kwire.console.shown import Shown, shown
from kwire.wire.messages.list_offsets import LATEST
from kwire.wire.primitives import TopicPartition

MAX_TAILS: Final = 8
MAX_PARTITIONS: Final = 100
ROWS_AT_ONCE: Final = 20
"""What a tail shows of what it has read at once; four times a second at most."""
REST_SECONDS: Final = 0.25
QUIET_SECONDS: Final = 10.0
"""After which something is sent all the same, so that an end that has gone is found."""
LONGEST_SECONDS: Final = 3600.0
"""A browser asks again after that."""
RETRY_MS: Final = 3000


def live_page(asked: PageRequest) -> PageAnswer:
    """The page, which has a script ask for the events."""
    partition = asked.number("partition")
    partitions = partitions_of(asked.cluster, asked.topic, partition)
    return Page("live.html", {"topic": asked.topic, "partition": partition, "partitions": len(partitions)})


def partitions_of(cluster: Cluster, topic: str, partition: int | None) -> list[TopicPartition]:
    """What is followed: one partition, or the first of them. Failure, NoPartition."""
    if partition is not None:
        cluster.leader(topic, partition)
        return [(topic, partition)]
    there = sorted(one.partition_index for one in cluster.topics([topic])[0].partitions)
    return [(topic, index) for index in there[:MAX_PARTITIONS]]


class Tail:
    """A place at the end of some partitions. Its methods block."""

    def __init__(self, cluster: Cluster, partitions: list[TopicPartition]) -> None:
        """Begin where they end. ApiError, Lost."""
        self._cluster = cluster
        self._reader = Reader(
            cluster,
            find_offsets(cluster, dict.fromkeys(partitions, LATEST)),
            committed=False,
            max_batch_bytes=MAX_BATCH_BYTES,
            max_headers=MAX_HEADERS,
        )

    def next(self) -> dict[str, Any]:
        """What has come since, and how many were left out. ApiError, Lost, CorruptBatch."""
        rows: list[dict[str, Any]] = []
        for (_, index), record in self._reader.read():
            rows.append(
                {
                    "partition": index,
                    "offset": record.offset,
                    "time": time_text(record.timestamp) or "none",
                    "key": _told(shown(record.key)),
                    "value": _told(shown(record.value)),
                }
            )
            if len(rows) == ROWS_AT_ONCE:
                return {"rows": rows, "skipped": self._skip()}
        return {"rows": rows, "skipped": 0}

    def _skip(self) -> int:
        """Go to the ends again."""
        before = self._reader.positions
        ends = find_offsets(self._cluster, dict.fromkeys(before, LATEST))
        skipped = sum(max(0, ends[one] - at) for one, at in before.items())
        before.update({one: max(at, ends[one]) for one, at in before.items()})
        return skipped

    def close(self) -> None:
        self._cluster.close()


class Events:
    """What a tail has, as an answer that goes on until whoever asked has gone."""

    def __init__(self, tail: Tail, when_done: Callable[[], None], limiter: trio.CapacityLimiter) -> None:
        self._tail = tail
        self._when_done = when_done
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            with trio.move_on_after(LONGEST_SECONDS):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._follow, send, nursery.cancel_scope)
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    nursery.cancel_scope.cancel()
        finally:
            self._tail.close()
            self._when_done()

    async def _follow(self, send: Send, scope: trio.CancelScope) -> None:
        await self._send(send, f"retry: {RETRY_MS}\n\n")
        told = trio.current_time()
        while True:
            try:
                found = await trio.to_thread.run_sync(self._tail.next, limiter=self._limiter)
            except Exception as error:  # whatever it is, a browser asks again for what comes then
                await self._send(send, f"event: broken\ndata: {json.dumps(refusal(error)[1][:300])}\n\n")
                scope.cancel()
                return
            now = trio.current_time()
            if found["rows"]:
                told = now
                await self._send(send, f"data: {json.dumps(found)}\n\n")
                await trio.sleep(REST_SECONDS)
            elif now - told > QUIET_SECONDS:
                told = now
                await self._send(send, ": nothing new\n\n")

    async def _send(self, send: Send, text: str) -> None:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


def _told(found: Shown) -> dict[str, Any]:
    return {"text": found.text, "kind": found.kind, "size": found.size_bytes, "cut": found.is_cut}
