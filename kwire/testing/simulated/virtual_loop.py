"""An asyncio event loop on virtual time, with connections through a simulated network.

Programs that use asyncio for time and connections run on it unchanged. No real time passes: instead of
sleeping, the loop advances the simulation to its next event. Functions for threads (`run_in_executor`) run at
once in the loop's thread, and their results arrive after the time that they have slept. Servers, datagrams,
TLS and subprocesses are not supported.

The class is based on `asyncio.BaseEventLoop`, which waits only in the `select` of its selector.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from itertools import count
from math import ceil
from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.network import Network
from kwire.testing.simulated.client_guard import ClientGuard
from kwire.testing.simulated.transport import ConnectionObserver, Transport
from kwire.testing.simulated.violation import Violation

MAX_CLEANUP_MS: Final = 60_000
"""The longest time that a program may clean up after its time is over."""

BUSY_LOOP_TURNS: Final = 1_000
"""After this many turns without a pause, 1 ms passes, since the program may be polling."""


class ProgramKilled(Exception):
    """The program was killed on request."""


class _Task(asyncio.Task[Any]):
    """A task with a reproducible hash, so that the order of tasks in a set is reproducible."""

    def __init__(self, number: int, *arguments: Any, **named: Any) -> None:
        self._number = number
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """A future with a reproducible hash."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop for one program."""

    def __init__(
        self,
        network: Network,
        program: str,
        rng: random.Random,
        new_observer: Callable[[], ConnectionObserver],
        guard: ClientGuard,
        *,
        ends_ms: int,
        is_killed: bool,
    ) -> None:
        """Create a loop. `program` is the program's name in the network.

        `new_observer` returns the observer of a new connection. `guard` refuses unsupported clients.

        At `ends_ms` on the network's clock, the loop raises TimeoutError. If `is_killed` is set, the loop
        raises ProgramKilled instead and closes all connections, so that the program has no more effect.
        """
        super().__init__()
        self._network = network
        self._events = network.events
        self._program = program
        self._rng = rng
        self._new_observer = new_observer
        self._guard = guard
        self._ends_ms, self._is_killed = ends_ms, is_killed
        self._numbers = count()
        self._is_disconnected = False
        self._transports: dict[Transport, None] = {}
        self._selector = self
        self._slept_s: float | None = None
        """The time that the current function of `run_in_executor` has slept, or None."""
        self._turns = 0
        """The number of turns since time last passed."""
        self._violation: Violation | None = None
        """A violation that a callback has raised."""
        self.is_virtual = True
        """Makes `kwire.testing.event_loop` permit blocking calls."""
        self.set_task_factory(self._new_task)
        self.set_exception_handler(self._handle_exception)

    # --- the interface for BaseEventLoop

    def time(self) -> float:
        """Return the monotonic clock in seconds."""
        return self._events.clock.monotonic_ms() / 1000

    def select(self, timeout_s: float | None) -> list[Any]:
        """Advance the simulation to its next event, by at most `timeout_s`. Returns no I/O events."""
        self._guard.raise_recorded()
        broken, self._violation = self._violation, None
        if broken is not None:
            raise broken
        events = self._events
        events.run_pending()
        now_ms = events.clock.monotonic_ms()
        self._turns = self._turns + 1 if timeout_s == 0 else 0
        if self._turns == BUSY_LOOP_TURNS:
            self._turns, timeout_s = 0, 0.001
        if now_ms >= self._ends_ms:
            self._ends_ms = now_ms + MAX_CLEANUP_MS
            if self._is_killed:
                self._close_transports()
                raise ProgramKilled
            raise TimeoutError("the program has not ended in time")
        if timeout_s != 0:
            due_ms = events.timers.next_deadline_ms()
            wait_ms = (
                self._ends_ms - now_ms if timeout_s is None else max(1, ceil(round(timeout_s * 1000, 3)))
            )
            if due_ms is not None:
                wait_ms = min(wait_ms, due_ms - now_ms)
            events.advance(max(0, wait_ms))
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps, so nothing has to wake it."""

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self._violation = error
        elif not self._is_disconnected:  # tasks may fail during the cleanup of a killed program
            self.default_exception_handler(context)

    def close(self) -> None:
        """Close all connections and the loop."""
        self._close_transports()
        super().close()

    def _close_transports(self) -> None:
        """Close all connections, and refuse new ones."""
        self._is_disconnected = True
        for transport in list(self._transports):
            transport.hang_up()

    # --- the interface for programs

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future with a reproducible hash."""
        return _Future(next(self._numbers), loop=self)

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> _Task:
        return _Task(next(self._numbers), coroutine, loop=loop, **named)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Run a function at once. The result arrives after the time that the function has slept."""
        future = self.create_future()
        complete: Callable[[Any], None] = future.set_result
        self._slept_s = 0.0
        try:
            result = func(*arguments)
        except Exception as error:
            complete, result = future.set_exception, error
        slept_s, self._slept_s = self._slept_s, None

        def done() -> None:
            if not future.done():
                complete(result)

        self.call_later(slept_s, done)
        return future

    def sleep(self, delay_s: float) -> None:
        """Replace `time.sleep`: advance the simulation. In `run_in_executor`, only count the time."""
        self._guard.raise_recorded()
        if self._slept_s is not None:
            self._slept_s += delay_s
        else:
            self._events.advance(ceil(delay_s * 1000))

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """Resolve a name to itself."""
        name = host.decode() if isinstance(host, bytes) else host
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (name, int(port)))]

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        **of_sockets: Any,
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """Connect through the network. Socket options have no effect.

        Raises ConnectionRefusedError if nothing listens there or the program was killed, and
        ConnectionResetError if the connection breaks, and UnsupportedClient for an old version of aiokafka.
        """
        self._guard.check_protocol(protocol_factory)
        if ssl or sock is not None or host is None or port is None:
            raise NotImplementedError("a simulated network needs a host and a port, and has no TLS")
        to = PeerAddress(host, int(port))
        if self._is_disconnected:
            raise ConnectionRefusedError(f"{to}: the program has ended")
        observer = self._new_observer()
        transport = Transport(
            self, self._network, to, self._program, self._rng, observer, self._transports.pop
        )
        self._transports[transport] = None
        try:
            await transport.ready
        except BaseException:
            transport.hang_up()
            self._transports.pop(transport, None)
            raise
        protocol = protocol_factory()
        transport.start(protocol)
        return transport, protocol

    async def create_server(self, *arguments: Any, **named: Any) -> Any:
        """Raise NotImplementedError, since programs cannot be servers in a simulation."""
        raise NotImplementedError("a simulated network has no servers except the brokers")
