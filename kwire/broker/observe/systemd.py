"""What systemd is told of a service of `Type=notify`: that it is ready, lives, and stops. sd_notify(3).

It is a datagram to a socket that the environment names, so no library is needed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

import trio

from kwire.broker.observe.health import why_not_alive
from kwire.broker.observe.ports import RunningNode

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"


class SystemdNotifier:
    """The way to systemd, where there is one; else nothing is told to nobody."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` is that of the process: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID."""
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_seconds = 0.0
        """Within this time systemd wants to hear that the service lives; 0 where it does not want to."""
        told = environ.get("WATCHDOG_USEC", "")
        if address and told.isdigit() and environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            self.watchdog_seconds = int(told) / 1_000_000

    def notify(self, *states: str) -> None:
        """Tell systemd. Never raises: a service that cannot be heard serves all the same."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(states).encode(), self._address)
        except OSError:
            pass

    async def run_watchdog(self, running: RunningNode) -> None:
        """Tell that the node lives as long as its loop turns, twice in the time that systemd gives it.

        Where it does not turn systemd ends the process with SIGABRT, and starts it again.
        """
        if not self.watchdog_seconds:
            return
        while True:
            if not await why_not_alive(running, self.watchdog_seconds / 2):
                self.notify(WATCHDOG)
            await trio.sleep(self.watchdog_seconds / 2)
