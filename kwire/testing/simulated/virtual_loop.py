"""An event loop of asyncio on virtual time, whose connections go through a simulated network.

A program that asks asyncio for its connections and its time runs on it as it is, be it a stock client or what
uses one: nothing real is ever waited for. Where the loop would sleep, the next event of the simulation
happens; what a thread would do is done at once, and told when it has slept enough. There are no servers, no
datagrams, no TLS and no processes.

It stands on `asyncio.BaseEventLoop`, whose one way to wait is the `select` of its selector.
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
from kwire.testing.simulated.transport import ConnectionObserver, Transport
from kwire.testing.simulated.violation import Violation

MAX_CLEANUP_MS: Final = 60_000
"""How much longer a program may take to come to its end once its time is over."""

BUSY_LOOP_TURNS: Final = 1_000
"""So many turns take a millisecond, where none of them takes any: a program may ask again and again."""


class ProgramKilled(Exception):
    """The program was killed, as was asked for."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set follows from its number, and not from where it is in memory."""

    def __init__(self, number: int, *arguments: Any, **named: Any) -> None:
        self._number = number
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """The same for a future."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(
        self,
        network: Network,
        program: str,
        rng: random.Random,
        new_conversation: Callable[[], ConnectionObserver],
        *,
        ends_ms: int,
        is_killed: bool,
    ) -> None:
        """`program` is what it is called on the network, `new_conversation` makes who overhears a connection.

        At `ends_ms`, of the network's clock, the program should have ended: TimeoutError; or it `is_killed`
        then: ProgramKilled, and from then on nothing of it reaches anybody.
        """
        super().__init__()
        self._network = network
        self._events = network.events
        self._program = program
        self._rng = rng
        self._new_observer = new_conversation
        self._ends_ms, self._is_killed = ends_ms, is_killed
        self._numbers = count()
        self._is_disconnected = False
        self._transports: dict[Transport, None] = {}
        self._selector = self
        self._slept_s: float | None = None
        """How long that has slept which a thread would do, while that is done."""
        self._turns = 0
        """How many there have been, one after the other, in which no time has passed."""
        self._violation: Violation | None = None
        """A promise to the program that was broken, as a callback has found."""
        self.set_task_factory(self._new_task)
        self.set_exception_handler(self._handle_exception)

    # --- what BaseEventLoop asks of its kind

    def time(self) -> float:
        return self._events.clock.monotonic_ms() / 1000

    def select(self, timeout_s: float | None) -> list[Any]:
        """Have the next event happen, at the latest after so long; of the program there is none to tell."""
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
        """Nobody sleeps who would have to be woken."""

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self._violation = error
        elif not self._is_disconnected:  # of what did not end as it was cancelled there is nothing to tell
            self.default_exception_handler(context)

    def close(self) -> None:
        self._close_transports()
        super().close()

    def _close_transports(self) -> None:
        """Hang up, and connect nobody any more."""
        self._is_disconnected = True
        for transport in list(self._transports):
            transport.hang_up()

    # --- what programs ask

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), loop=self)

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> _Task:
        return _Task(next(self._numbers), coroutine, loop=loop, **named)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        tell: Callable[[Any], None] = future.set_result
        self._slept_s = 0.0
        try:
            result = func(*arguments)
        except Exception as error:
            tell, result = future.set_exception, error
        slept_s, self._slept_s = self._slept_s, None

        def done() -> None:
            if not future.done():
                tell(result)

        self.call_later(slept_s, done)
        return future

    def sleep(self, delay_s: float) -> None:
        """What `time.sleep` does: the program stands still, but for what a thread of it would do."""
        if self._slept_s is not None:
            self._slept_s += delay_s
        else:
            self._events.advance(ceil(delay_s * 1000))

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """A name stands for itself."""
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
        """As asyncio's. ConnectionRefusedError; what is about sockets has no effect."""
        if ssl or sock is not None or host is None or port is None:
            raise NotImplementedError("a simulated network connects to a host and a port, without TLS")
        to = PeerAddress(host, int(port))
        if self._is_disconnected:
            raise ConnectionRefusedError(f"{to}: the program is over")
        conversation = self._new_observer()
        transport = Transport(
            self, self._network, to, self._program, self._rng, conversation, self._transports.pop
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
        raise NotImplementedError("a simulated network has the servers of its cluster, and no others")
