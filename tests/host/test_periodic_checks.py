"""What is looked at again and again, while time is moved."""

from __future__ import annotations

from kwire.host.clock import ManualClock, TimerQueue
from kwire.host.periodic_checks import MAX_CHECKS_PER_ADVANCE, PeriodicChecks

DAY_MS = 24 * 3600 * 1000


class Time:
    """A clock that is moved from deadline to deadline, as the loop does it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = TimerQueue(self.clock.monotonic_ms)
        self.checks = PeriodicChecks(self.timers)
        self.began_ms = self.clock.monotonic_ms()
        self.seen: list[int] = []
        """When it was looked, in milliseconds from the beginning."""

    def now_ms(self) -> int:
        return self.clock.monotonic_ms() - self.began_ms

    def look_every(self, interval_ms: int) -> None:
        def look() -> None:
            self.checks.add(interval_ms, look)
            self.seen.append(self.now_ms())

        self.checks.add(interval_ms, look)

    def run_due(self, end_ms: int) -> None:
        while (deadline_ms := self.timers.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.clock.advance(deadline_ms - self.clock.monotonic_ms())
            callback = self.timers.pop_due(deadline_ms)
            assert callback is not None
            callback()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def move(self, delay_ms: int) -> None:
        end_ms = self.clock.monotonic_ms() + delay_ms
        self.checks.begin_advance(delay_ms)
        self.run_due(end_ms)
        while self.checks.end_advance():
            self.run_due(end_ms)


def test_a_short_move_has_every_look_in_its_time() -> None:
    time = Time()
    time.look_every(1_000)
    time.move(10_500)
    assert time.seen == list(range(1_000, 11_000, 1_000))


def test_a_day_has_no_more_looks_than_there_are_in_a_move_and_the_last_is_at_its_end() -> None:
    time = Time()
    time.look_every(1_000)
    time.move(DAY_MS)
    assert time.seen[0] == 1_000, "the first was asked for before time was moved"
    assert MAX_CHECKS_PER_ADVANCE - 1 <= len(time.seen) <= MAX_CHECKS_PER_ADVANCE + 2
    assert time.seen[-1] == DAY_MS
    before = len(time.seen)
    time.run_due(time.clock.monotonic_ms() + 3_000)
    assert time.seen[before:] == [DAY_MS + 1_000, DAY_MS + 2_000, DAY_MS + 3_000]


def test_what_is_not_due_by_the_end_comes_when_it_was_to_come() -> None:
    time = Time()
    interval_ms = DAY_MS // MAX_CHECKS_PER_ADVANCE - 1  # just too often
    time.look_every(interval_ms)
    time.move(DAY_MS)
    looked_ms = time.seen[-1]
    before = len(time.seen)
    assert DAY_MS - interval_ms < looked_ms <= DAY_MS
    time.run_due(time.clock.monotonic_ms() + 2 * interval_ms)
    assert time.seen[before:] == [looked_ms + interval_ms, looked_ms + 2 * interval_ms]


def test_a_look_that_is_rare_anyhow_is_as_rare() -> None:
    time = Time()
    time.look_every(DAY_MS // 10)
    time.move(DAY_MS)
    assert time.seen == [DAY_MS // 10 * nth for nth in range(1, 11)]


def test_one_that_is_called_off_never_comes_whenever_that_is() -> None:
    time = Time()
    looked: list[str] = []
    time.checks.begin_advance(DAY_MS)
    while_moving = time.checks.add(1_000, lambda: looked.append("while moving"))
    at_the_end = time.checks.add(1_000, lambda: looked.append("at the end"))
    time.checks.add(1_000, lambda: looked.append("kept"))
    while_moving.cancel()
    assert time.checks.end_advance()
    at_the_end.cancel()
    time.run_due(time.clock.monotonic_ms() + DAY_MS)
    assert looked == ["kept"]
    assert not time.checks.end_advance()
