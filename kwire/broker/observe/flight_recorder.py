"""The flight recorder: writes the last requests of a node to a log directory when the node fails.

The ring file is a mapped file that contains the node's `RequestLog`. It survives a killed process, and the
next start then writes the requests to a log directory. The output is JSON lines: one line for the failure,
then one line per request, with pending requests last.

The node may fail because its process has no free file descriptor. So a failure imports no module, because an
import opens files, and the recorder holds a spare descriptor for its file.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kwire.broker.api.request.request_metrics import logged_request
from kwire.broker.observe.ring_file import PREFIX, RingFile, read_ring, remove_orphans, ring_path
from kwire.broker.observe.slow_requests import api_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kwire.broker.api.request.request_log import LoggedRequest
    from kwire.broker.observe.ports import RunningNode

SUFFIX: Final = ".jsonl"
UNFINISHED: Final = ".tmp"
KILLED: Final = "the process was killed, or the machine failed; written by the next start"
KEPT_FILES: Final = 5
"""The number of files that are kept per log directory. Older files are removed."""
MAX_PENDING: Final = 1_000


class FlightRecorder:
    """The flight recorder of one node."""

    def __init__(self, running: RunningNode) -> None:
        self._running = running
        self._ring: RingFile | None = None
        self._spare_fd = -1

    def begin(self) -> None:
        """Write the requests of a previous process that was killed, then create a new ring file.

        I/O errors are logged, not raised.
        """
        running = self._running
        with suppress(OSError):
            self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        remove_orphans()
        for directory in running.node.config.log_dirs:
            try:
                path = ring_path(directory)
                if os.path.lexists(path):
                    if not self._report_killed(path):
                        continue  # keep the ring file for a later start with enough disk space
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
                running.loop.logger("kwire.node").warning(
                    "Cannot create the flight recorder's ring file in %s: %s", directory, error
                )

    def _report_killed(self, path: str) -> bool:
        """Write the requests of a ring file. Return whether the ring file may be removed.

        Raises OSError if the ring file cannot be read.
        """
        try:
            requests = _in_order((time_ms, logged, None) for time_ms, logged in read_ring(path))
        except (ValueError, OverflowError):  # the file has timestamps that kwire does not write
            requests = []
        # Without any request, write no file: it would eventually displace a useful one.
        return not requests or self._write([*self._head(KILLED), *requests], logging.INFO) is not None

    def end(self) -> None:
        """Remove the ring file: its requests were written, or the node has stopped without a failure."""
        self._close_spare()
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.remove()

    def _close_spare(self) -> None:
        fd, self._spare_fd = self._spare_fd, -1
        if fd >= 0:
            os.close(fd)

    def write(self, reason: str, trace: str = "") -> str | None:
        """Write the last requests to a file in the first writable log directory.

        `reason` describes the failure of the node; `trace` is a stack trace. Return the path of the file, or
        None if it cannot be written. Never raises.
        """
        now_ms = self._running.clock.now_ms()
        self._close_spare()
        try:
            clock = self._running.server.request_metrics.clock()
            requests = _in_order(
                (now_ms + 1000 * (one.received_s - clock), one, 1000 * (clock - one.received_s))
                for one in self._remembered()
            )
            path = self._write([*self._head(reason, trace), *requests], logging.CRITICAL)
            if path is None:
                self._ring = None  # keeps the ring file, so that the next start writes its requests
            self.end()
        except Exception:
            self._running.loop.logger("kwire.node").exception("Cannot write the flight recorder's file")
            return None
        return path

    def _write(self, lines: list[dict[str, Any]], level: int) -> str | None:
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
                logger.warning(
                    "Cannot write the diagnostic file with the last requests to %s: %s", directory, error
                )
                with suppress(OSError):
                    os.remove(path + UNFINISHED)
                continue
            logger.log(level, "Wrote the last requests to %s", path)
            return path
        return None

    def _head(self, reason: str, trace: str = "") -> list[dict[str, Any]]:
        line = {"time": _time(self._running.clock.now_ms()), "node": self._running.loop.name, "end": reason}
        return [line | ({"trace": trace} if trace else {})]

    def _remembered(self) -> list[LoggedRequest]:
        """Return the pending requests that the request log no longer contains, then those in the log."""
        found = self._running.server.request_metrics.log.all()
        known = {(one.request_id, one.received_s) for one in found}
        return [one for one in self._pending() if (one.request_id, one.received_s) not in known] + found

    def _pending(self) -> Iterator[LoggedRequest]:
        """Yield up to `MAX_PENDING` pending requests, including the request whose handler is running."""
        left = MAX_PENDING
        for connection in self._running.server.connections.values():
            for context in list(connection.channel.slots)[:left]:
                left -= 1
                yield logged_request(
                    context.header, connection.channel, context.size_bytes, 0, context.received_s, None
                )


def _in_order(requests: Iterable[tuple[float, LoggedRequest, float | None]]) -> list[dict[str, Any]]:
    """Return the lines of the requests, with the pending requests last.

    Each element of `requests` has the wall-clock time in ms, the request, and the age of a pending request in
    ms, or None if the age is not known.
    """
    ordered = sorted(requests, key=lambda one: one[1].seconds is None)
    return [_line(time_ms, one, waits_ms=waits_ms) for time_ms, one, waits_ms in ordered]


def _line(time_ms: float, logged: LoggedRequest, *, waits_ms: float | None) -> dict[str, Any]:
    """Return the line of a request. `waits_ms` is the age of a pending request; None if it is not known."""
    line = {
        "time": _time(int(time_ms)),
        "request": logged.request_id,
        "api": api_name(logged.api_key),
        "version": logged.api_version,
        "client": logged.client_id,
        "peer": logged.peer_host,
        "bytes": logged.size_bytes,
    }
    if logged.seconds is not None:
        return line | {"response_bytes": logged.response_bytes, "ms": round(1000 * logged.seconds, 3)}
    waits = {} if waits_ms is None else {"ms": round(waits_ms, 3)}
    return line | waits | {"pending": True}


def _time(time_ms: int) -> str:
    seconds, ms = divmod(time_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03}Z"


def _remove_old(directory: str) -> None:
    names = sorted(name for name in os.listdir(directory) if name.startswith(PREFIX))
    for name in names[:-KEPT_FILES]:
        os.remove(os.path.join(directory, name))
