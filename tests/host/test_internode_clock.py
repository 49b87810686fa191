"""The clock between nodes, which can pause while another clock advances."""

from __future__ import annotations

import pytest

from kwire.host.clock import ManualClock, TimerQueue
from kwire.host.internode_clock import InternodeClock

WEEK_MS = 7 * 24 * 3600 * 1000


class ClockHarness:
    """A clock with timers, and the fired callbacks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = TimerQueue(self.clock.monotonic_ms)
        self.scheduled = 0
        self.internode = InternodeClock(self.timers, self._scheduled)
        self.began_ms = self.internode.monotonic_ms()
        self.fired: list[str] = []

    def _scheduled(self) -> None:
        self.scheduled += 1

    @property
    def passed_ms(self) -> int:
        return self.internode.monotonic_ms() - self.began_ms

    def advance(self, delay_ms: int) -> None:
        self.clock.advance(delay_ms)
        while (callback := self.timers.pop_due(self.clock.monotonic_ms())) is not None:
            callback()


def test_internode_clock_follows_the_clock_and_schedules_a_wakeup() -> None:
    time = ClockHarness()
    time.internode.schedule(100, lambda: time.fired.append("due"))
    assert time.scheduled == 1
    time.advance(99)
    assert (time.passed_ms, time.fired) == (99, [])
    time.advance(1)
    assert (time.passed_ms, time.fired) == (100, ["due"])


def test_paused_clock_stands_still_for_a_week() -> None:
    time = ClockHarness()
    time.timers.add(WEEK_MS, lambda: time.fired.append("a week"))
    time.internode.schedule(100, lambda: time.fired.append("before"))
    postponed = time.internode.schedule(10, lambda: time.fired.append("postponed"))
    time.advance(5)
    assert postponed.postpone(300)
    time.internode.pause(WEEK_MS)
    time.advance(WEEK_MS // 2)
    time.internode.schedule(100, lambda: time.fired.append("meanwhile"))
    again = time.internode.schedule(10, lambda: time.fired.append("postponed meanwhile"))
    assert again.postpone(400)
    assert (time.passed_ms, time.fired) == (5, [])
    time.advance(WEEK_MS // 2)
    time.internode.resume(0)
    assert (time.passed_ms, time.fired) == (5, ["a week"])
    for passed_ms, fired in (
        (95, "before"),
        (5, "meanwhile"),
        (200, "postponed"),
        (100, "postponed meanwhile"),
    ):
        time.advance(passed_ms - 1)
        count = len(time.fired)
        time.advance(1)
        assert time.fired[count:] == [fired]
    assert time.passed_ms == 405


@pytest.mark.parametrize("advanced_ms", [0, 1, WEEK_MS // 3, WEEK_MS - 1])
def test_canceled_advance_does_not_move_the_internode_clock(advanced_ms: int) -> None:
    time = ClockHarness()
    time.advance(50)
    time.internode.schedule(100, lambda: time.fired.append("due"))
    time.internode.pause(WEEK_MS)
    time.advance(advanced_ms)
    time.internode.resume(WEEK_MS - advanced_ms)
    assert time.passed_ms == 50
    time.advance(99)
    assert (time.passed_ms, time.fired) == (149, [])
    time.advance(1)
    assert time.fired == ["due"]


def test_timer_canceled_during_a_pause_does_not_fire() -> None:
    time = ClockHarness()
    timer = time.internode.schedule(100, lambda: time.fired.append("due"))
    time.internode.pause(WEEK_MS)
    timer.cancel()
    time.advance(WEEK_MS)
    time.internode.resume(0)
    time.advance(100)
    assert time.fired == []
