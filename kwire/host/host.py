"""The interface between a node and its process: time, random numbers, timers, worker threads, other nodes.

All code outside of `broker/net` and `broker/storage/disk.py` is synchronous, and uses a `Host` for everything
that waits or that is not deterministic. `broker.net.loop` implements it on the event loop of a real process.
`kwire.testing.virtual_host` implements it on virtual time, so a test waits a week in a millisecond and
gives the same result every time.

All callbacks run on the event loop, one at a time, and never inside the call that registered them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from kwire.host.loggers import NodeLogger
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message

T = TypeVar("T")


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing if the call was made already."""

    def postpone(self, delay_ms: int) -> bool:
        """Reschedule the call to `delay_ms` from now, and return whether that was possible.

        The effect is that of canceling and scheduling again, at a much lower cost. Returns False, and changes
        nothing, if the call was made or canceled, or if the new time would be earlier.
        """


class TimerClock(Protocol):
    """A monotonic clock, and timers on it."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since a fixed moment, for durations. The value never decreases."""

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, after `delay_ms` of this clock. Changes of the wall clock have no effect."""


if TYPE_CHECKING:

    class InternodeTime:
        """A time on the internode clock in milliseconds: an int at runtime, but not for mypy.

        So mypy rejects a time of the host's monotonic clock, which advances while a test pauses this one.
        """

        def __init__(self, ms: int) -> None: ...
        def __int__(self) -> int: ...
        def __add__(self, delay_ms: int) -> InternodeTime: ...
        def __sub__(self, other: InternodeTime) -> int: ...
        def __lt__(self, other: InternodeTime) -> bool: ...
        def __le__(self, other: InternodeTime) -> bool: ...
        def __gt__(self, other: InternodeTime) -> bool: ...
        def __ge__(self, other: InternodeTime) -> bool: ...

else:
    InternodeTime = int


class InternodeTimerClock(Protocol):
    """The clock for timeouts between nodes, and timers on it."""

    def monotonic_ms(self) -> InternodeTime:
        """Return milliseconds since a fixed moment, for durations. The value never decreases."""

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, after `delay_ms` of this clock."""


class Host(TimerClock, Protocol):
    """The process and machine of a node."""

    def random(self, purpose: str) -> random.Random:
        """Return the random number generator for a purpose. Simulations seed each generator independently."""

    def logger(self, name: str) -> NodeLogger:
        """Return this node's logger with the given name, such as `kwire.node`."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970, for timestamps in records and files."""

    @property
    def internode_clock(self) -> InternodeTimerClock:
        """The clock for timeouts between nodes, such as sessions and long polls of followers.

        Tests pause it while they advance the time of all nodes at once.
        """

    def schedule_check(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Schedule a periodic check, whose callback schedules the next run.

        Unlike `schedule`, the check may run later than scheduled while a test advances the clock.
        """

    def run_in_worker(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` in a thread, then call `done` with its result or with the exception that it raised.

        This is for work that waits for the disk. Computation in Python would block the loop through the GIL.
        """

    def run_all_in_workers(self, works: Iterable[Callable[[], None]]) -> None:
        """Run all functions in several threads, and block the event loop until all have ended.

        Only for a node that is stopping. The functions must not raise exceptions. The next function is taken
        from `works`, in this thread, when a thread is free.
        """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in this or the next turn of the event loop, after the current callback."""

    @property
    def peers(self) -> Peers:
        """The connections to the other nodes of the cluster."""


class PeerAddress(NamedTuple):
    """The address of a node's listener for other nodes."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PeerUnreachable(Exception):
    """Another node could not be reached, or did not respond in time. The node may have processed the request.

    The exception's text is the reason.
    """


class PeerTooOld(PeerUnreachable):
    """The other node supports no version of the API that can express this request."""


OnResponse = Callable[[Message | PeerUnreachable], None]


class Peers(Protocol):
    """Connections to the other nodes of a cluster."""

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: InternodeTime,
        on_response: OnResponse,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        """Send a request, and call `on_response` once: with the response, or by `deadline_ms` with an error.

        Each purpose ("metadata", "fetch-0") has its own connection to each address. Requests of one purpose
        are served in order, and never wait for requests of another purpose. `deadline_ms` is a time of
        `Host.internode_clock`. The request's version is the highest that both nodes support, at most
        `max_version`.

        `to_controller` means that the address is a controller listener, not the inter-broker listener, which
        may use another security protocol. All requests of one purpose must pass the same value.
        """

    def end_backoff(self, to: PeerAddress) -> None:
        """Connect again soon if connections to this node back off, because the node has started to respond.

        This has no effect on other connections, and does not shorten the first backoff after a failure.
        """

    def api_versions(self, peer: PeerAddress) -> Mapping[int, tuple[int, int]]:
        """Return the API version ranges of a node by API key, from its last ApiVersions response.

        The mapping is empty if no open connection to the node has received an ApiVersions response.
        """


class NoPeers:
    """`Peers` for a node without a network: every request fails."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._call_soon = call_soon

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: InternodeTime,
        on_response: OnResponse,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        self._call_soon(lambda: on_response(PeerUnreachable(f"{to}: there is no network")))

    def end_backoff(self, to: PeerAddress) -> None:
        pass

    def api_versions(self, peer: PeerAddress) -> Mapping[int, tuple[int, int]]:
        return {}
