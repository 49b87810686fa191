"""The console of a broker: a separate process with web pages (`kwire.console`, docs/decisions/0022).

The first request for a console page starts the process. If the process has exited, the next request restarts
it. The broker passes HTTP connections to the process through a socket, without reading the request. The
process then responds directly. For its data it connects to the broker like any other Kafka client.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from kwire.broker.observe.console_access import ConsoleConnection, console_connection
from kwire.broker.observe.console_rate_limit import READER_ID
from kwire.broker.observe.ports import RunningNode
from kwire.broker.raft.endpoints import broker_endpoints
from kwire.host.loggers import NodeLogger
from kwire.host.platform.events import READABLE
from kwire.host.platform.files import anonymous_file
from kwire.host.platform.sockets import LOSES_DESCRIPTORS

CONSOLE: Final = "/console/"
SOURCE_ROOT: Final = Path(__file__).resolve().parents[3]
NOT_SERVING_YET: Final = "the broker is still starting: try again in a moment"
OVERLOADED: Final = "the console is overloaded: try again later"
CONSOLE_FAILED: Final = "the console failed to start: the broker's output may have the reason"
START_SECONDS: Final = 3.0
"""The shortest time between two starts of the console process."""
MAX_RECEIPTS: Final = 4096


class ConsoleProcess:
    """The console process of a node."""

    def __init__(
        self,
        running: RunningNode,
        *,
        may_write: bool,
        writes_as_broker: bool = False,
        only_local_names: bool = True,
        is_https: bool = False,
    ) -> None:
        """Set what the console may do. With an authorizer, ACLs decide instead.

        If the console's listener requires no authentication, the console may change the cluster only if
        `may_write` is true. Otherwise the console uses the broker's credentials or certificate, and may
        change the cluster only if `writes_as_broker` is true. With `only_local_names`, requests whose Host
        header is not a local name are rejected. With `is_https`, the connections that `hand_over` gets are
        the ends of TLS connections behind this process.
        """
        self._running = running
        self._may_write = may_write
        self._writes_as_broker = writes_as_broker
        self._only_local_names = only_local_names
        self._is_https = is_https
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: ConsoleConnection | None = None
        """The connection settings of the process."""
        self._channel: socket.socket | None = None
        self._in_transit: deque[int] = deque()
        """Duplicates of descriptors that the process has not received yet, if the system may lose them."""
        self._is_watching = False
        self._started_s = -math.inf

    def hand_over(self, fd: int) -> str:
        """Pass the connection with descriptor `fd` to the console. Return "", or an error for the client.

        The caller closes `fd`.
        """
        if not self._running.bootstrap:
            return NOT_SERVING_YET
        for _ in range(2):  # a second attempt restarts a process that has exited in the meantime
            try:
                channel = self._ensure_started()
                if channel is None:
                    break
                self._send(channel, fd)
                return ""
            except BlockingIOError:  # the console has not accepted the connections before this one
                return OVERLOADED
            except OSError as error:
                self._logger.warning(
                    "Cannot pass a connection to the console process, restarting it: %s", error
                )
                self.close()
        return CONSOLE_FAILED

    def close(self) -> None:
        """Kill the console process. This loses nothing, because the process has no state."""
        process, self._process = self._process, None
        if self._channel is not None:
            self._stop_watching()
            self._channel.close()
            self._channel = None
        if process is not None:
            process.kill()
            process.wait()

    def _send(self, channel: socket.socket, fd: int) -> None:
        """Send a descriptor to the process. Raises OSError."""
        duplicate = os.dup(fd) if LOSES_DESCRIPTORS else -1
        try:
            socket.send_fds(channel, [b"."], [fd])
        except OSError:
            if duplicate >= 0:
                os.close(duplicate)
            raise
        if duplicate >= 0:
            self._in_transit.append(duplicate)

    def _received(self, mask: int) -> None:
        """Close the descriptors that the process has received: it returns a byte for each."""
        assert self._channel is not None
        try:
            count = len(self._channel.recv(MAX_RECEIPTS))
        except BlockingIOError:
            return
        except OSError:
            count = 0
        for _ in range(count):
            os.close(self._in_transit.popleft())
        if not count:
            self._stop_watching()

    def _stop_watching(self) -> None:
        """Stop waiting for receipts, because the process has ended or is being stopped."""
        if self._is_watching and self._channel is not None:
            self._is_watching = False
            self._running.loop.unwatch(self._channel.fileno())
        while self._in_transit:
            os.close(self._in_transit.popleft())

    def _ensure_started(self) -> socket.socket | None:
        """Return the socket to the process, and start the process if it does not run.

        Return None if the process does not run and was started less than `START_SECONDS` ago. Raises OSError
        if the start fails.
        """
        connection = console_connection(self._running, only_local=self._only_local_names)
        if self._process is not None:
            if self._process.poll() is not None:
                self._logger.warning(
                    "The console process has exited with code %d, restarting it", self._process.returncode
                )
            elif connection == self._connection:
                return self._channel
            else:
                self._logger.info("Restarting the console process: the listener that it uses has changed")
                self._started_s = -math.inf
        self.close()
        if trio.current_time() - self._started_s < START_SECONDS:
            return None
        self._started_s = trio.current_time()
        config = self._running.node.config
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            ours.setblocking(False)
            self._channel = ours
            if LOSES_DESCRIPTORS:
                self._running.loop.watch(ours.fileno(), READABLE, self._received)
                self._is_watching = True
            command = [sys.executable, "-P", "-m", "kwire.console", "--fd", str(theirs.fileno())]
            command += ["--bootstrap-server", connection.servers]
            command += ["--client-id", READER_ID]
            command += ["--node-id", str(config.node_id)]
            for directory in config.log_dirs:
                command += ["--log-dir", directory]
            for endpoint in broker_endpoints(config):
                command += ["--host", endpoint.host]
            if self._is_https:
                command.append("--https")
            if self._only_local_names:
                command.append("--only-local-names")
            may_write = self._may_write if connection.is_open else self._writes_as_broker
            if connection.access is None and not may_write:
                command.append("--read-only")
            environment = dict(os.environ)
            # The console must import the same modules as this process, even if kwire is not installed.
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(SOURCE_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
            )
            with _anonymous_file_with(connection.secrets()) as fd:
                self._connection = connection
                self._process = subprocess.Popen(
                    [*command, "--security-fd", str(fd)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=[theirs.fileno(), fd],
                )
        return ours

    @property
    def _logger(self) -> NodeLogger:
        return self._running.loop.logger("kwire.http")


@contextmanager
def _anonymous_file_with(text: str) -> Iterator[int]:
    """Yield the descriptor of a file that contains `text`, for a child process.

    Other users can see the arguments of a process. A pipe may be too small for certificates.
    """
    descriptor = anonymous_file("kwire console", tempfile.mkdtemp)
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
