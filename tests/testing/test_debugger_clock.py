"""The clock of an embedded broker while a debugger has stopped the test."""

from __future__ import annotations

from typing import cast

from kwire.broker.net.loop import Loop
from kwire.host.platform.events import Poller
from kwire.testing.debugger_clock import MAX_PAUSE_MS, DebuggerClock, StoppedTime


class Machine:
    """The clocks of a machine, in ms."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self.clock = DebuggerClock(lambda: self.ms * 1_000_000, lambda: self.ms * 1_000_000)

    def times(self) -> tuple[int, int]:
        return self.clock.now_ms() - 1_000_000, self.clock.monotonic_ms() - 1_000_000


class WaitingPoller:
    """A poller whose waits take a given time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.wait_ms = 0
        self.register = self.modify = self.unregister = self.fileno = self.close = None

    def poll(self, timeout: float, maxevents: int, /) -> list[tuple[int, int]]:
        self._machine.ms += self.wait_ms
        return [(1, maxevents)]


class ArmedLoop:
    """A loop with an armed timer."""

    armed_ms: int | None = None


def test_pause_stops_both_clocks_until_resume() -> None:
    machine = Machine()
    machine.clock.pause()
    machine.ms += 60_000
    machine.clock.pause()
    assert machine.times() == (0, 0)
    machine.clock.resume()
    machine.ms += 5
    machine.clock.resume()
    assert machine.times() == (5, 5)


def test_advance_moves_a_paused_clock() -> None:
    machine = Machine()
    machine.clock.pause()
    machine.ms += 60_000
    machine.clock.advance(10)
    assert machine.times() == (10, 10)
    machine.clock.resume()
    assert machine.times() == (10, 10)


def test_sum_of_pauses_is_limited() -> None:
    machine = Machine()
    for _ in range(2):
        machine.clock.pause()
        machine.ms += MAX_PAUSE_MS
        machine.clock.resume()
    assert machine.times() == (MAX_PAUSE_MS, MAX_PAUSE_MS)
    machine.clock.skip(1000)
    assert machine.times() == (MAX_PAUSE_MS, MAX_PAUSE_MS)


def test_stop_of_the_process_does_not_move_the_clock_beyond_the_armed_timer() -> None:
    machine = Machine()
    poller, loop = WaitingPoller(machine), ArmedLoop()
    stopped_time = StoppedTime(cast(Poller, poller), cast(Loop, loop), machine.clock)
    loop.armed_ms = machine.clock.monotonic_ms() + 300
    poller.wait_ms = 60_000
    assert stopped_time.poll(-1, 7) == [(1, 7)]
    assert machine.times() == (300, 300)


def test_late_timer_is_no_stop_of_the_process() -> None:
    machine = Machine()
    poller, loop = WaitingPoller(machine), ArmedLoop()
    stopped_time = StoppedTime(cast(Poller, poller), cast(Loop, loop), machine.clock)
    poller.wait_ms = 60_000
    stopped_time.poll(-1, 7)  # no timer is armed, so the wait may be long
    loop.armed_ms = machine.clock.monotonic_ms() - 5_000  # the loop was busy, or hang() has suspended it
    poller.wait_ms = 999
    stopped_time.poll(-1, 7)
    poller.wait_ms = 5_000
    stopped_time.poll(0, 7)
    assert machine.times() == (65_999, 65_999)
