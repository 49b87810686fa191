"""The way to the console, a process beside the broker (`kwire.console`, docs/decisions/0022).

The first request starts it, and one that has ended is started by the next. Connections are handed over to
it with nothing of them read, by a socket that has no name. So it answers whoever asked by itself, and is to
the broker's loop what a client is.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
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

CONSOLE: Final = "/console/"
SOURCE_ROOT: Final = Path(__file__).resolve().parents[3]
NOT_SERVING_YET: Final = "the broker does not serve yet: ask again in a moment"
OVERLOADED: Final = "the console has too much to do: ask again later"
CONSOLE_FAILED: Final = "the console has ended as it was started: the broker's output may say why"
START_SECONDS: Final = 3.0
"""One that has ended sooner is not started again until then."""


class ConsoleProcess:
    """The console of a node, which answers connections that are handed over to it."""

    def __init__(
        self,
        running: RunningNode,
        *,
        may_write: bool,
        writes_as_broker: bool = False,
        only_local_names: bool = True,
    ) -> None:
        """`may_write`: it changes things as anybody may; `writes_as_broker`: as the broker itself, too.

        With `only_local_names` requests to another name than a local one are refused.
        """
        self._running = running
        self._may_write = may_write
        self._writes_as_broker = writes_as_broker
        self._only_local_names = only_local_names
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._started_s = -math.inf

    def hand_over(self, fd: int) -> str:
        """Hand a connection over, of which the caller closes its descriptor; or say why that cannot be."""
        if not self._running.bootstrap:
            return NOT_SERVING_YET
        for _ in range(2):  # it may have ended since
            try:
                channel = self._ensure_started()
                if channel is None:
                    break
                socket.send_fds(channel, [b"."], [fd])
                return ""
            except BlockingIOError:  # nobody takes the ones before
                return OVERLOADED
            except OSError as error:
                self._logger.warning("the console takes no connection: %s", error)
                self.close()
        return CONSOLE_FAILED

    def close(self) -> None:
        """End the process; it holds nothing that would be lost."""
        process, self._process = self._process, None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if process is not None:
            process.kill()
            process.wait()

    def _ensure_started(self) -> socket.socket | None:
        """The way to a process, which is started where there is none, but not again at once. OSError."""
        if self._process is not None:
            if self._process.poll() is None:
                return self._channel
            self._logger.warning("the console has ended (%d)", self._process.returncode)
        self.close()
        if trio.current_time() - self._started_s < START_SECONDS:
            return None
        self._started_s = trio.current_time()
        config = self._running.node.config
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            self._channel = ours
            command = [sys.executable, "-P", "-m", "kwire.console", "--fd", str(theirs.fileno())]
            servers, credentials = self._connection_settings()
            command += ["--bootstrap-server", servers]
            command += ["--client-id", READER_ID]
            command += ["--node-id", str(config.node_id)]
            for directory in config.log_dirs:
                command += ["--log-dir", directory]
            for endpoint in broker_endpoints(config):
                command += ["--host", endpoint.host]
            if self._only_local_names:
                command.append("--only-local-names")
            if not (self._may_write if credentials is None else self._writes_as_broker):
                command.append("--read-only")
            environment = dict(os.environ)
            # The console finds the same modules as this process, installed or not.
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
        """Where the console asks, and as whom: nobody where a listener takes everyone, else the broker."""
        config, listeners = self._running.node.config, self._running.server.listeners
        listeners = [one for one in listeners if one.role is ListenerRole.BROKER] or listeners
        if open_ := [one for one in listeners if listener_security(config, one.name) is None]:
            return ",".join(one.address for one in open_), None
        ours = config.inter_broker_listener_name
        listener = next((one for one in listeners if one.name == ours), listeners[0])
        return listener.address, peer_credentials(config, listener.name)


@contextmanager
def _pipe_with(text: str) -> Iterator[int]:
    """A descriptor that gives the text to a child; arguments and the environment are seen by others."""
    reader, writer = os.pipe()
    try:
        with open(writer, "w", encoding="utf-8") as file:
            file.write(text)  # it fits: a pipe has 64 KiB
        yield reader
    finally:
        os.close(reader)
