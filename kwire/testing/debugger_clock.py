"""The clock of an embedded broker. It stands still while a debugger has stopped the test.

Otherwise, group sessions and transactions would expire while a developer looks at variables, because the
program under test does not run in this time.

There are two kinds of stops. If pdb stops the test, pytest reports the beginning and the end, and kwire calls
`pause` and `resume`. If a signal or another debugger stops all threads of the process, a wait of the event
loop takes much longer than its timer. `StoppedTime` then sets the clock back.

After a stop, the clock continues from the time at which it stopped, so it stays behind the clock of the
machine. Brokers reject records with timestamps that are more than an hour ahead
(`message.timestamp.after.max.ms`), so the sum of all stops is limited.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.host.system_time import libc_time_ns, monotonic_ns

if TYPE_CHECKING:
    from kwire.broker.net.loop import Loop
    from kwire.host.platform.events import Poller

MAX_PAUSE_MS: Final = 30 * 60 * 1000
"""The largest sum of all stops. When it is reached, the clock runs even while it is paused."""
MIN_STOP_MS: Final = 1000
"""If a wait of the event loop takes this much too long, or more, the process was stopped meanwhile."""


class _State(NamedTuple):
    offset_ms: int
    """The time by which `advance` and earlier stops have moved the clock."""
    paused_at_ms: int | None
    """The monotonic time of the machine at which the current pause began, or None."""
    pause_left_ms: int


class DebuggerClock:
    """The machine's clock, plus the time by which `advance` has moved it, minus the time of all stops."""

    def __init__(
        self, time_ns: Callable[[], int] = libc_time_ns, monotonic_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        """`time_ns` and `monotonic_ns` are the clocks of the machine."""
        self._time_ns, self._monotonic_ns = time_ns, monotonic_ns
        self._state = _State(0, None, MAX_PAUSE_MS)  # never changed in place, because all threads read it
        self._changing = Lock()
        self.on_jump: Callable[[], None] | None = None

    def now_ms(self) -> int:
        """Return the wall time in ms since 1970."""
        state = self._state
        return self._time_ns() // 1_000_000 + state.offset_ms - self._paused_ms(state)

    def monotonic_ms(self) -> int:
        """Return ms since a fixed moment."""
        state = self._state
        return self.machine_ms() + state.offset_ms - self._paused_ms(state)

    def advance(self, delay_ms: int) -> None:
        """Move the clock forward, even during a pause."""
        assert delay_ms >= 0
        with self._changing:
            self._state = self._state._replace(offset_ms=self._state.offset_ms + delay_ms)
        if self.on_jump is not None:
            self.on_jump()

    def pause(self) -> None:
        """Stop the clock until `resume`. Does nothing if it is paused already."""
        with self._changing:
            if self._state.paused_at_ms is None:
                self._state = self._state._replace(paused_at_ms=self.machine_ms())

    def resume(self) -> None:
        """Continue the clock where it stands. Does nothing if it is not paused."""
        with self._changing:
            state = self._state
            paused_ms = self._paused_ms(state)
            self._state = _State(state.offset_ms - paused_ms, None, state.pause_left_ms - paused_ms)

    def skip(self, delay_ms: int) -> None:
        """Set the clock back after the process was stopped for this time."""
        with self._changing:
            state = self._state
            skipped_ms = min(delay_ms, state.pause_left_ms)
            self._state = state._replace(
                offset_ms=state.offset_ms - skipped_ms, pause_left_ms=state.pause_left_ms - skipped_ms
            )

    def machine_ms(self) -> int:
        """Return the monotonic time of the machine in ms."""
        return self._monotonic_ns() // 1_000_000

    def _paused_ms(self, state: _State) -> int:
        """Return the duration of the current pause, or 0."""
        if state.paused_at_ms is None:
            return 0
        return min(self.machine_ms() - state.paused_at_ms, state.pause_left_ms)


class StoppedTime:
    """A poller of an event loop that sets the clock back after the process was stopped."""

    def __init__(self, poller: Poller, loop: Loop, clock: DebuggerClock) -> None:
        self._poll, self._loop, self._clock = poller.poll, loop, clock
        self.register, self.modify, self.unregister = poller.register, poller.modify, poller.unregister
        self.fileno, self.close = poller.fileno, poller.close

    def poll(self, timeout: float, maxevents: int, /) -> list[tuple[int, int]]:
        """Wait for events, but at most until the timer of the loop expires."""
        armed_ms = self._loop.armed_ms
        if not timeout or armed_ms is None:
            return self._poll(timeout, maxevents)
        clock = self._clock
        longest_ms = max(0, armed_ms - clock.monotonic_ms())
        began_ms = clock.machine_ms()
        events = self._poll(timeout, maxevents)
        stopped_ms = clock.machine_ms() - began_ms - longest_ms
        if stopped_ms >= MIN_STOP_MS:
            clock.skip(stopped_ms)
        return events
