"""Live tails: new messages of a topic as server-sent events.

A tail is for people. If more messages arrive than a person can read, the tail skips and counts some of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

import trio
from starlette.types import Receive, Scope, Send

from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.output import format_time
from kwire.client.consumer import Consumer
from kwire.client.offsets import find_offsets
from kwire.console.client_pool import MAX_AGE_SECONDS
from kwire.console.display import DisplayedBytes, display_bytes
from kwire.console.fetching import MAX_BATCH_BYTES, MAX_HEADERS, fetch
from kwire.console.page import Page, PageRequest, PageResult, describe_error
from kwire.wire.messages.list_offsets import LATEST
from kwire.wire.primitives import TopicPartition

MAX_TAILS: Final = 8
MAX_PARTITIONS: Final = 100
ROWS_AT_ONCE: Final = 20
"""Messages per event; at most four events are sent per second."""
MIN_INTERVAL_SECONDS: Final = 0.25
KEEPALIVE_SECONDS: Final = 10.0
"""Time without messages after which a comment is sent, to detect closed connections."""
MAX_SECONDS: Final = 3600.0
"""Maximum duration of a response; browsers then reconnect."""
RETRY_MS: Final = 3000


def live_page(request: PageRequest) -> PageResult:
    """Return the page of a live tail. A script in the page requests the events."""
    partition = request.number("partition")
    partitions = partitions_of(request.cluster, request.topic, partition)
    if request.settings.access is not None:
        require_read(request.cluster, partitions)
    return Page("live.html", {"topic": request.topic, "partition": partition, "partitions": len(partitions)})


def partitions_of(cluster: CommandClient, topic: str, partition: int | None) -> list[TopicPartition]:
    """Return the given partition, or the first MAX_PARTITIONS partitions of a topic.

    Raises CommandError for an unknown topic, UnknownPartition, or ApiError for a partition without a leader.
    """
    if partition is not None:
        cluster.leader(topic, partition)
        return [(topic, partition)]
    partitions = sorted(one.partition_index for one in cluster.topics([topic])[0].partitions)
    return [(topic, index) for index in partitions[:MAX_PARTITIONS]]


def require_read(cluster: CommandClient, partitions: list[TopicPartition]) -> None:
    """Raise ApiError unless the user may read the topic. Browsers repeat the request of a tail that fails."""
    for one in partitions[:1]:
        fetch(cluster, *one, find_offsets(cluster, {one: LATEST})[one])


class Tail:
    """A consumer at the end of some partitions. Its methods block, and `close` also closes `cluster`."""

    def __init__(
        self,
        cluster: CommandClient,
        partitions: list[TopicPartition],
        *,
        renews_login: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start at the end offsets. With `renews_login`, the client logs in again every minute.

        So the tail of a deleted user ends. `now` returns the time in seconds. Raises ApiError, Disconnected.
        """
        self._cluster = cluster
        self._renews_login = renews_login
        self._now = now
        self._logged_in_at = now()
        self._reader = Consumer(
            cluster,
            find_offsets(cluster, dict.fromkeys(partitions, LATEST)),
            committed=False,
            max_batch_bytes=MAX_BATCH_BYTES,
            max_headers=MAX_HEADERS,
        )

    def next(self) -> dict[str, Any]:
        """Return up to ROWS_AT_ONCE new messages, and the number of messages skipped after them.

        Raises ApiError, Disconnected or CorruptBatch.
        """
        if self._renews_login and self._now() - self._logged_in_at >= MAX_AGE_SECONDS:
            self._cluster.close()  # the next request opens a connection
            self._logged_in_at = self._now()
        rows: list[dict[str, Any]] = []
        for (_, index), record in self._reader.poll():
            rows.append(
                {
                    "partition": index,
                    "offset": record.offset,
                    "time": format_time(record.timestamp) or "none",
                    "key": _as_dict(display_bytes(record.key)),
                    "value": _as_dict(display_bytes(record.value)),
                }
            )
            if len(rows) == ROWS_AT_ONCE:
                return {"rows": rows, "skipped": self._skip()}
        return {"rows": rows, "skipped": 0}

    def _skip(self) -> int:
        """Seek to the end offsets and return the number of skipped messages."""
        before = self._reader.positions
        ends = find_offsets(self._cluster, dict.fromkeys(before, LATEST))
        skipped = sum(max(0, ends[one] - at) for one, at in before.items())
        before.update({one: max(at, ends[one]) for one, at in before.items()})
        return skipped

    def close(self) -> None:
        self._cluster.close()


class Events:
    """A streaming ASGI response with the events of a tail.

    When the response ends, it closes the tail and calls `on_end`.
    """

    def __init__(self, tail: Tail, on_end: Callable[[], None], limiter: trio.CapacityLimiter) -> None:
        self._tail = tail
        self._on_end = on_end
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            with trio.move_on_after(MAX_SECONDS):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._follow, send, nursery.cancel_scope)
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    nursery.cancel_scope.cancel()
        finally:
            self._tail.close()
            self._on_end()

    async def _follow(self, send: Send, scope: trio.CancelScope) -> None:
        await self._send(send, f"retry: {RETRY_MS}\n\n")
        last_sent = trio.current_time()
        while True:
            try:
                found = await trio.to_thread.run_sync(self._tail.next, limiter=self._limiter)
            except Exception as error:  # the browser will reconnect
                await self._send(
                    send, f"event: broken\ndata: {json.dumps(describe_error(error)[1][:300])}\n\n"
                )
                scope.cancel()
                return
            now = trio.current_time()
            if found["rows"]:
                last_sent = now
                await self._send(send, f"data: {json.dumps(found)}\n\n")
                await trio.sleep(MIN_INTERVAL_SECONDS)
            elif now - last_sent > KEEPALIVE_SECONDS:
                last_sent = now
                await self._send(send, ": nothing new\n\n")

    async def _send(self, send: Send, text: str) -> None:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


def _as_dict(found: DisplayedBytes) -> dict[str, Any]:
    return {"text": found.text, "kind": found.kind, "size": found.size_bytes, "truncated": found.is_truncated}
