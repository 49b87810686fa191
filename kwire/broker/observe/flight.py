"""The flight recorder: what a node was asked last, written where its data is when it comes to a bad end.

The requests are remembered anyway (`broker.api.answered`); a ring in a file has them, too, for who starts
after a process that was killed. What is written has JSON lines, one for the end and one for each request,
those that were under way last: `jq` reads it, and so do people. What is imported here is imported when there
is something to write.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from kwire.broker.observe.ring import PREFIX, Noted, Ring, forget_orphans, read_ring, ring_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kwire.broker.net.serve import RunningNode

SUFFIX: Final = ".jsonl"
KILLED: Final = "killed, or without its machine: this was found when it started again"
KEPT_FILES: Final = 5
"""Older ones are removed."""
MAX_UNDER_WAY: Final = 1_000


class FlightRecorder:
    """Writes down what one node was asked last."""

    def __init__(self, running: RunningNode) -> None:
        self._running = running
        self._ring: Ring | None = None

    def begin(self) -> None:
        """Tell of the process before, if it was killed; from now on keep a ring. Never raises."""
        running = self._running
        forget_orphans()
        for directory in running.node.config.log_dirs:
            try:
                path = ring_of(directory)
                if os.path.lexists(path):
                    self._write([*self._head(KILLED), *map(_told_of, read_ring(path))], logging.INFO)
                    os.remove(path)
                if self._ring is None:
                    answered = running.server.answered
                    self._ring = Ring(
                        path, now_ms=running.clock.now_ms(), clock=answered.clock(), directory=directory
                    )
                    answered.take_up, answered.keep = self._ring.take_up, self._ring.note
            except OSError as error:
                running.loop.logger("kwire.node").warning("no ring of requests is kept: %s", error)

    def end(self) -> None:
        """There is nothing to tell, or it is told."""
        ring, self._ring = self._ring, None
        if ring is not None:
            answered = self._running.server.answered
            answered.take_up = answered.keep = None
            ring.remove()

    def write(self, reason: str, trace: str = "") -> str | None:
        """Write a file into the first log directory that takes it. Its path, or None. Never raises."""
        now_ms = self._running.clock.now_ms()
        try:
            lines = [*self._head(reason, trace), *self._answered(now_ms), *self._under_way(now_ms)]
            path = self._write(lines, logging.CRITICAL)
            self.end()
        except Exception:
            self._running.loop.logger("kwire.node").exception("what was asked last cannot be told")
            return None
        return path

    def _write(self, lines: list[dict[str, Any]], level: int) -> str | None:
        import json

        running = self._running
        logger = running.loop.logger("kwire.node")
        lines[0]["requests"] = len(lines) - 1
        text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
        now_ms = running.clock.now_ms()
        name = f"{PREFIX}{_time(now_ms).replace(':', '')}{SUFFIX}"
        for directory in running.node.config.log_dirs:
            try:
                path = os.path.join(directory, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                _remove_old(directory)
            except OSError as error:
                logger.warning("what was asked last cannot be written: %s", error)
                continue
            logger.log(level, "what was asked last is in %s", path)
            return path
        return None

    def _head(self, reason: str, trace: str = "") -> list[dict[str, Any]]:
        told = {"time": _time(self._running.clock.now_ms()), "node": self._running.loop.name, "end": reason}
        return [told | ({"trace": trace} if trace else {})]

    def _answered(self, now_ms: int) -> Iterator[dict[str, Any]]:
        answered = self._running.server.answered
        for one in answered.last_answers():
            told = self._told(one.header, one.peer_host, one.request_id, one.began, now_ms)
            told |= {"bytes": one.size_bytes, "reply_bytes": one.reply_bytes, "ms": _ms(one.seconds)}
            yield told

    def _under_way(self, now_ms: int) -> Iterator[dict[str, Any]]:
        """Those that had no answer yet; the one that was being handled, if any, is among them."""
        left = MAX_UNDER_WAY
        clock = self._running.server.answered.clock
        for connection in self._running.server.connections.values():
            for context in list(connection.channel.slots)[:left]:
                left -= 1
                told = self._told(
                    context.header, context.peer_host, context.request_id, context.began, now_ms
                )
                waits_ms = _ms(clock() - context.began)
                yield told | {"bytes": context.size_bytes, "ms": waits_ms, "under_way": True}

    def _told(
        self, header: Any, peer_host: str, request_id: str, began: float, now_ms: int
    ) -> dict[str, Any]:
        from kwire.broker.observe.slow import api_name

        ago_ms = 1000 * (self._running.server.answered.clock() - began)
        return {
            "time": _time(int(now_ms - ago_ms)),
            "request": request_id,
            "api": api_name(header.api_key),
            "version": header.api_version,
            "client": header.client_id,
            "peer": peer_host,
        }


def _told_of(noted: Noted) -> dict[str, Any]:
    """As `FlightRecorder` tells of what it remembers itself."""
    from kwire.broker.observe.slow import api_name

    told = {
        "time": _time(int(noted.time_ms)),
        "request": f"{noted.connection}-{noted.correlation_id}",
        "api": api_name(noted.api_key),
        "version": noted.api_version,
        "client": noted.client_id,
        "peer": noted.peer_host,
        "bytes": noted.size_bytes,
    }
    if noted.seconds is None:
        return told | {"under_way": True}
    return told | {"reply_bytes": noted.reply_bytes, "ms": _ms(noted.seconds)}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _time(time_ms: int) -> str:
    from datetime import UTC, datetime

    told = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


def _remove_old(directory: str) -> None:
    names = sorted(name for name in os.listdir(directory) if name.startswith(PREFIX))
    for name in names[:-KEPT_FILES]:
        os.remove(os.path.join(directory, name))
