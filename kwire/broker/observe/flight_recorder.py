"""The flight recorder: what a node was asked last, written where its data is when it comes to a bad end.

The requests are remembered anyway (`request_log`), in a file that is mapped, for who starts
after a process that was killed. What is written has JSON lines, one for the end and one for each request,
those that were under way last: `jq` reads it, and so do people. What is imported here is imported when there
is something to write.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kwire.broker.api.request.request_metrics import logged_request
from kwire.broker.observe.ring_file import PREFIX, RingFile, read_ring, remove_orphans, ring_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kwire.broker.api.request.request_log import LoggedRequest
    from kwire.broker.observe.ports import RunningNode

SUFFIX: Final = ".jsonl"
UNFINISHED: Final = ".tmp"
KILLED: Final = "killed, or without its machine: this was found when it started again"
KEPT_FILES: Final = 5
"""Older ones are removed."""
MAX_UNDER_WAY: Final = 1_000


class FlightRecorder:
    """Writes down what one node was asked last."""

    def __init__(self, running: RunningNode) -> None:
        self._running = running
        self._ring: RingFile | None = None

    def begin(self) -> None:
        """Tell of the process before, if it was killed; from now on keep a ring. Never raises."""
        running = self._running
        remove_orphans()
        for directory in running.node.config.log_dirs:
            try:
                path = ring_path(directory)
                if os.path.lexists(path):
                    if not self._report_killed(path):
                        continue  # until a start that has room for it
                    os.remove(path)
                if self._ring is None:
                    request_metrics = running.server.request_metrics
                    self._ring = RingFile(
                        path,
                        request_metrics.log,
                        now_ms=running.clock.now_ms(),
                        clock=request_metrics.clock(),
                        directory=directory,
                    )
            except OSError as error:
                running.loop.logger("kwire.node").warning("no ring of requests is kept: %s", error)

    def _report_killed(self, path: str) -> bool:
        """Whether what is in this ring is written, if anything is. OSError."""
        try:
            requests = _in_order((time_ms, logged, None) for time_ms, logged in read_ring(path))
        except (ValueError, OverflowError):  # no kwire has written such times
            requests = []
        # An empty file would push out, in the end, one that tells something.
        return not requests or self._write([*self._head(KILLED), *requests], logging.INFO) is not None

    def end(self) -> None:
        """There is nothing to tell, or it is told."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.remove()

    def write(self, reason: str, trace: str = "") -> str | None:
        """Write a file into the first log directory that takes it. Its path, or None. Never raises."""
        now_ms = self._running.clock.now_ms()
        try:
            clock = self._running.server.request_metrics.clock()
            requests = _in_order(
                (now_ms + 1000 * (one.received_s - clock), one, 1000 * (clock - one.received_s))
                for one in self._remembered()
            )
            path = self._write([*self._head(reason, trace), *requests], logging.CRITICAL)
            if path is None:
                self._ring = None  # whoever starts next finds it
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
            path = os.path.join(directory, name)
            try:
                with open(path + UNFINISHED, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(path + UNFINISHED, path)
                _remove_old(directory)
            except OSError as error:
                logger.warning("what was asked last cannot be written: %s", error)
                with suppress(OSError):
                    os.remove(path + UNFINISHED)
                continue
            logger.log(level, "what was asked last is in %s", path)
            return path
        return None

    def _head(self, reason: str, trace: str = "") -> list[dict[str, Any]]:
        told = {"time": _time(self._running.clock.now_ms()), "node": self._running.loop.name, "end": reason}
        return [told | ({"trace": trace} if trace else {})]

    def _remembered(self) -> list[LoggedRequest]:
        """The last ones, and those that have waited for longer than a thousand others took."""
        found = self._running.server.request_metrics.log.all()
        known = {(one.request_id, one.received_s) for one in found}
        return [one for one in self._under_way() if (one.request_id, one.received_s) not in known] + found

    def _under_way(self) -> Iterator[LoggedRequest]:
        """Those that had no answer yet; the one that was being handled, if any, is among them."""
        left = MAX_UNDER_WAY
        for connection in self._running.server.connections.values():
            for context in list(connection.channel.slots)[:left]:
                left -= 1
                yield logged_request(
                    context.header, connection.channel, context.size_bytes, 0, context.received_s, None
                )


def _in_order(requests: Iterable[tuple[float, LoggedRequest, float | None]]) -> list[dict[str, Any]]:
    """A line each, see `_line`: those without an answer last."""
    told = sorted(requests, key=lambda one: one[1].seconds is None)
    return [_line(time_ms, one, waits_ms=waits_ms) for time_ms, one, waits_ms in told]


def _line(time_ms: float, logged: LoggedRequest, *, waits_ms: float | None) -> dict[str, Any]:
    """A line of a request. `waits_ms`: how long it has waited, where it has no answer and that is known."""
    from kwire.broker.observe.slow_requests import api_name

    told = {
        "time": _time(int(time_ms)),
        "request": logged.request_id,
        "api": api_name(logged.api_key),
        "version": logged.api_version,
        "client": logged.client_id,
        "peer": logged.peer_host,
        "bytes": logged.size_bytes,
    }
    if logged.seconds is not None:
        return told | {"reply_bytes": logged.reply_bytes, "ms": round(1000 * logged.seconds, 3)}
    waits = {} if waits_ms is None else {"ms": round(waits_ms, 3)}
    return told | waits | {"under_way": True}


def _time(time_ms: int) -> str:
    from datetime import UTC, datetime

    told = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


def _remove_old(directory: str) -> None:
    names = sorted(name for name in os.listdir(directory) if name.startswith(PREFIX))
    for name in names[:-KEPT_FILES]:
        os.remove(os.path.join(directory, name))
