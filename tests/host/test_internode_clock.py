"""The time between nodes, while a clock is moved of which nothing passes between them."""

from __future__ import annotations

import pytest

from kwire.host.clock import ManualClock, TimerQueue
from kwire.host.internode_clock import InternodeClock

WEEK_MS = 7 * 24 * 3600 * 1000


class Time:
    """A clock, what waits for it, and what has happened by when."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = TimerQueue(self.clock.monotonic_ms)
        self.scheduled = 0
        self.internode = InternodeClock(self.timers, self._scheduled)
        self.began_ms = self.internode.monotonic_ms()
        self.seen: list[str] = []

    def _scheduled(self) -> None:
        self.scheduled += 1

    @property
    def passed_ms(self) -> int:
        return self.internode.monotonic_ms() - self.began_ms

    def advance(self, delay_ms: int) -> None:
        self.clock.advance(delay_ms)
        while (callback := self.timers.pop_due(self.clock.monotonic_ms())) is not None:
            callback()


def test_it_goes_as_the_clock_does_and_wakes_who_has_to_look_at_it() -> None:
    time = Time()
    time.internode.schedule(100, lambda: time.seen.append("due"))
    assert time.scheduled == 1
    time.advance(99)
    assert (time.passed_ms, time.seen) == (99, [])
    time.advance(1)
    assert (time.passed_ms, time.seen) == (100, ["due"])


def test_nothing_of_a_week_passes_where_it_stands() -> None:
    time = Time()
    time.timers.add(WEEK_MS, lambda: time.seen.append("a week"))
    time.internode.schedule(100, lambda: time.seen.append("before"))
    postponed = time.internode.schedule(10, lambda: time.seen.append("postponed"))
    time.advance(5)
    assert postponed.postpone(300)
    time.internode.pause(WEEK_MS)
    time.advance(WEEK_MS // 2)
    time.internode.schedule(100, lambda: time.seen.append("meanwhile"))
    again = time.internode.schedule(10, lambda: time.seen.append("postponed meanwhile"))
    assert again.postpone(400)
    assert (time.passed_ms, time.seen) == (5, [])
    time.advance(WEEK_MS // 2)
    time.internode.resume(0)
    assert (time.passed_ms, time.seen) == (5, ["a week"])
    for passed_ms, seen in (
        (95, "before"),
        (5, "meanwhile"),
        (200, "postponed"),
        (100, "postponed meanwhile"),
    ):
        time.advance(passed_ms - 1)
        count = len(time.seen)
        time.advance(1)
        assert time.seen[count:] == [seen]
    assert time.passed_ms == 405


@pytest.mark.parametrize("moved_ms", [0, 1, WEEK_MS // 3, WEEK_MS - 1])
def test_a_move_that_is_called_off_takes_nothing_from_it(moved_ms: int) -> None:
    time = Time()
    time.advance(50)
    time.internode.schedule(100, lambda: time.seen.append("due"))
    time.internode.pause(WEEK_MS)
    time.advance(moved_ms)
    time.internode.resume(WEEK_MS - moved_ms)
    assert time.passed_ms == 50
    time.advance(99)
    assert (time.passed_ms, time.seen) == (149, [])
    time.advance(1)
    assert time.seen == ["due"]


def test_who_is_called_off_does_not_come() -> None:
    time = Time()
    timer = time.internode.schedule(100, lambda: time.seen.append("due"))
    time.internode.pause(WEEK_MS)
    timer.cancel()
    time.advance(WEEK_MS)
    time.internode.resume(0)
    time.advance(100)
    assert time.seen == []
