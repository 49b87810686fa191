"""Notifications to systemd for services of `Type=notify`: ready, watchdog, stopping. See sd_notify(3).

A notification is a datagram to a socket that the environment names, so no library is needed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

from kwire.broker.observe.ports import RunningNode

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"


class SystemdNotifier:
    """The sender of notifications to systemd. It does nothing if NOTIFY_SOCKET is not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` is the process environment, with NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._sock: socket.socket | None = None
        self.watchdog_seconds = 0.0
        """The watchdog timeout; 0 if the watchdog is off."""
        timeout_us = environ.get("WATCHDOG_USEC", "")
        if (
            address
            and timeout_us.isdigit()
            and environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        ):
            self.watchdog_seconds = int(timeout_us) / 1_000_000

    def __del__(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def notify(self, *states: str) -> None:
        """Send states to systemd. Never raises, because the service can run without notifications.

        The socket stays open, so that the watchdog is notified even without a free descriptor.
        """
        if not self._address:
            return
        try:
            if self._sock is None:
                self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sock.setblocking(False)
            self._sock.sendto("\n".join(states).encode(), self._address)
        except OSError:
            pass

    async def run_watchdog(self, running: RunningNode) -> None:
        """Notify the watchdog twice per timeout as long as the node's event loop runs.

        Without these notifications, systemd kills the process with SIGABRT and restarts it. Return at once if
        the watchdog is off.
        """
        if not self.watchdog_seconds:
            return
        # Imported here, because a node without a watchdog starts faster without trio.
        import trio

        from kwire.broker.observe.health import why_not_alive

        while True:
            if not await why_not_alive(running, self.watchdog_seconds / 2):
                self.notify(WATCHDOG)
            await trio.sleep(self.watchdog_seconds / 2)
