"""Clients of one cluster for calls of several threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from kwire.host.system_os import os

if TYPE_CHECKING:
    from kwire.testing.blocking_client import BlockingClient

T = TypeVar("T")

MAX_IDLE: Final = 4
"""The maximum number of idle clients, which keep their connections open."""


class ClientPool:
    """Clients, each of which is used by one thread at a time."""

    def __init__(self, create: Callable[[], BlockingClient]) -> None:
        """Create an empty pool, which calls `create` when no client is idle."""
        self._create = create
        self._lock = Lock()
        self._idle: list[BlockingClient] = []
        self._owner = 0
        """The process that opened the connections of the idle clients."""
        self._generation = 0

    def call(self, operation: Callable[[BlockingClient], T]) -> T:
        """Call `operation` with a client that no other thread uses."""
        __tracebackhide__ = True
        if self._owner != os.getpid():
            # After a fork, parent and child share the sockets, and their responses would mix.
            self.close()
        with self._lock:
            client, generation = self._idle.pop() if self._idle else None, self._generation
        if client is None:
            client = self._create()
        try:
            return operation(client)
        finally:
            with self._lock:
                keeps = generation == self._generation and len(self._idle) < MAX_IDLE
                if keeps:
                    self._idle.append(client)
            if not keeps:
                client.close()

    def close(self) -> None:
        """Close the connections of idle clients now, and those of other clients after their calls."""
        with self._lock:
            idle, self._idle, self._owner = self._idle, [], os.getpid()
            self._generation += 1
        for client in idle:
            client.close()
