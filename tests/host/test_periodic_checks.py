"""Periodic checks during an advance of the clock."""

from __future__ import annotations

from kwire.host.clock import ManualClock, TimerQueue
from kwire.host.periodic_checks import MAX_CHECKS_PER_ADVANCE, PeriodicChecks

DAY_MS = 24 * 3600 * 1000


class CheckHarness:
    """A clock that advances from deadline to deadline, as the loop does."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = TimerQueue(self.clock.monotonic_ms)
        self.checks = PeriodicChecks(self.timers)
        self.began_ms = self.clock.monotonic_ms()
        self.check_times_ms: list[int] = []
        """The times of the checks, in milliseconds from the start."""

    def now_ms(self) -> int:
        return self.clock.monotonic_ms() - self.began_ms

    def check_every(self, interval_ms: int) -> None:
        def check() -> None:
            self.checks.add(interval_ms, check)
            self.check_times_ms.append(self.now_ms())

        self.checks.add(interval_ms, check)

    def run_due(self, end_ms: int) -> None:
        while (deadline_ms := self.timers.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.clock.advance(deadline_ms - self.clock.monotonic_ms())
            callback = self.timers.pop_due(deadline_ms)
            assert callback is not None
            callback()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def advance(self, delay_ms: int) -> None:
        end_ms = self.clock.monotonic_ms() + delay_ms
        self.checks.begin_advance(delay_ms)
        self.run_due(end_ms)
        while self.checks.end_advance():
            self.run_due(end_ms)


def test_short_advance_runs_every_check_on_time() -> None:
    time = CheckHarness()
    time.check_every(1_000)
    time.advance(10_500)
    assert time.check_times_ms == list(range(1_000, 11_000, 1_000))


def test_long_advance_limits_checks_and_runs_one_at_its_end() -> None:
    time = CheckHarness()
    time.check_every(1_000)
    time.advance(DAY_MS)
    assert time.check_times_ms[0] == 1_000, "the first check was scheduled before the advance"
    assert MAX_CHECKS_PER_ADVANCE - 1 <= len(time.check_times_ms) <= MAX_CHECKS_PER_ADVANCE + 2
    assert time.check_times_ms[-1] == DAY_MS
    before = len(time.check_times_ms)
    time.run_due(time.clock.monotonic_ms() + 3_000)
    assert time.check_times_ms[before:] == [DAY_MS + 1_000, DAY_MS + 2_000, DAY_MS + 3_000]


def test_check_not_due_by_the_end_keeps_its_interval() -> None:
    time = CheckHarness()
    interval_ms = DAY_MS // MAX_CHECKS_PER_ADVANCE - 1  # slightly too frequent
    time.check_every(interval_ms)
    time.advance(DAY_MS)
    last_check_ms = time.check_times_ms[-1]
    before = len(time.check_times_ms)
    assert DAY_MS - interval_ms < last_check_ms <= DAY_MS
    time.run_due(time.clock.monotonic_ms() + 2 * interval_ms)
    assert time.check_times_ms[before:] == [last_check_ms + interval_ms, last_check_ms + 2 * interval_ms]


def test_infrequent_check_keeps_its_interval() -> None:
    time = CheckHarness()
    time.check_every(DAY_MS // 10)
    time.advance(DAY_MS)
    assert time.check_times_ms == [DAY_MS // 10 * nth for nth in range(1, 11)]


def test_canceled_check_never_runs() -> None:
    time = CheckHarness()
    fired: list[str] = []
    time.checks.begin_advance(DAY_MS)
    while_moving = time.checks.add(1_000, lambda: fired.append("during the advance"))
    at_the_end = time.checks.add(1_000, lambda: fired.append("at the end"))
    time.checks.add(1_000, lambda: fired.append("kept"))
    while_moving.cancel()
    assert time.checks.end_advance()
    at_the_end.cancel()
    time.run_due(time.clock.monotonic_ms() + DAY_MS)
    assert fired == ["kept"]
    assert not time.checks.end_advance()
