"""One direction of a simulated connection, with its delays, cuts and breaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from kwire.testing.virtual_host import EventQueue

MAX_IN_TRANSIT = 10_000
"""The maximum number of frames that can be in flight in one direction of a connection."""


class Links(Protocol):
    """The part of a network that a direction uses."""

    events: EventQueue

    def delay_ms(self) -> int:
        """Return the time for which the next frame is in flight."""

    def break_at_ms(self, delay_ms: int) -> int | None:
        """Return after how many ms the connection breaks; None if it does not break."""

    def is_cut(self, one: str, other: str) -> bool:
        """Return whether the link from one machine to the other is cut."""

    def surviving_count(self, most: int) -> int:
        """Return how many frames in flight still arrive after a break."""


class Direction:
    """One direction of a connection, which delivers frames in order."""

    __slots__ = (
        "_break_off",
        "_due",
        "_in_transit",
        "_is_stalled",
        "_last_ms",
        "_network",
        "_receiver",
        "_sender",
    )

    def __init__(self, break_off: Callable[[], None], network: Links, sender: str, receiver: str) -> None:
        self._break_off = break_off
        self._network = network
        self._sender = sender
        self._receiver = receiver
        self._in_transit: deque[Callable[[], None]] = deque()
        self._due = 0  # how many frames have been in flight long enough
        self._last_ms = 0  # when the last frame is due
        self._is_stalled = False

    @property
    def is_blocked(self) -> bool:
        """Whether a cut or a stall holds back frames that are due."""
        return self._due > 0

    def send(self, arrive: Callable[[], None]) -> None:
        """Send a frame. `arrive` is called when the frame is delivered."""
        assert len(self._in_transit) < MAX_IN_TRANSIT, f"too many frames in flight to {self._receiver}"
        network = self._network
        timers = network.events.timers
        now_ms = timers.monotonic_ms()
        delay_ms = network.delay_ms()
        self._last_ms = max(self._last_ms, now_ms + delay_ms)
        self._in_transit.append(arrive)
        timers.add(self._last_ms - now_ms, self._arrive)
        break_ms = network.break_at_ms(delay_ms)
        if break_ms is not None:
            timers.add(break_ms, self._break_off)

    def _arrive(self) -> None:
        self._due += 1
        self.deliver_due()

    def deliver_due(self) -> None:
        """Deliver all frames that are due, unless the link is cut or this direction is stalled."""
        while self._due and not self._is_stalled and not self._network.is_cut(self._sender, self._receiver):
            self._due -= 1
            self._in_transit.popleft()()

    def stall(self) -> None:
        """Stop deliveries on this connection until `resume`. Other connections are not affected."""
        self._is_stalled = True

    def resume(self) -> None:
        """Continue deliveries."""
        self._is_stalled = False
        self.deliver_due()

    def drop_some(self) -> None:
        """Drop a random number of the last frames in flight, after the connection broke."""
        kept = self._network.surviving_count(len(self._in_transit))
        self._in_transit = deque(
            arrive if number < kept else do_nothing for number, arrive in enumerate(self._in_transit)
        )


def do_nothing() -> None:
    """Do nothing when a frame arrives, because it was dropped or nothing waits for it."""
