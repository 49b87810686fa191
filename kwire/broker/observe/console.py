"""The console of a broker: a separate process with web pages (`kwire.console`, docs/decisions/0022).

The first request for a console page starts the process. If the process has exited, the next request restarts
it. The broker passes HTTP connections to the process through a socket, without reading the request. The
process then responds directly. For its data it connects to the broker like any other Kafka client.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.observe.console_rate_limit import READER_ID
from kwire.broker.observe.ports import RunningNode
from kwire.broker.raft.endpoints import broker_endpoints
from kwire.broker.security.settings import Credentials, listener_security, peer_credentials
from kwire.host.loggers import NodeLogger
from kwire.host.platform.events import READABLE
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
        """Set what the console may do.

        The console connects to a listener without authentication if there is one, and may then change the
        cluster only if `may_write` is true. If all listeners require authentication, the console uses the
        broker's credentials, and may change the cluster only if `writes_as_broker` is true. With
        `only_local_names`, requests whose Host header is not a local name are rejected. With `is_https`, the
        connections that `hand_over` gets are the ends of TLS connections behind this process.
        """
        self._running = running
        self._may_write = may_write
        self._writes_as_broker = writes_as_broker
        self._only_local_names = only_local_names
        self._is_https = is_https
        self._process: subprocess.Popen[bytes] | None = None
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
        if self._process is not None:
            if self._process.poll() is None:
                return self._channel
            self._logger.warning(
                "The console process has exited with code %d, restarting it", self._process.returncode
            )
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
            servers, credentials = self._connection_settings()
            command += ["--bootstrap-server", servers]
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
            if not (self._may_write if credentials is None else self._writes_as_broker):
                command.append("--read-only")
            environment = dict(os.environ)
            # The console must import the same modules as this process, even if kwire is not installed.
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(SOURCE_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
            )
            with _pipe_with(json.dumps(credentials)) as fd:
                self._process = subprocess.Popen(
                    [*command, "--credentials-fd", str(fd)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=[theirs.fileno(), fd],
                )
        return ours

    @property
    def _logger(self) -> NodeLogger:
        return self._running.loop.logger("kwire.http")

    def _connection_settings(self) -> tuple[str, Credentials | None]:
        """Return the console's bootstrap servers, and the broker's credentials.

        If a listener has no authentication, the console uses that listener, and the credentials are None.
        """
        config, listeners = self._running.node.config, self._running.server.listeners
        listeners = [one for one in listeners if one.role is ListenerRole.BROKER] or listeners
        if open_ := [one for one in listeners if listener_security(config, one.name) is None]:
            return ",".join(one.address for one in open_), None
        ours = config.inter_broker_listener_name
        listener = next((one for one in listeners if one.name == ours), listeners[0])
        return listener.address, peer_credentials(config, listener.name)


@contextmanager
def _pipe_with(text: str) -> Iterator[int]:
    """Yield the read end of a pipe that contains `text`, for a child process.

    A pipe is used because other users can see the arguments of a process.
    """
    reader, writer = os.pipe()
    try:
        with open(writer, "w", encoding="utf-8") as file:
            file.write(text)  # it fits into the pipe's 64 KiB
        yield reader
    finally:
        os.close(reader)
