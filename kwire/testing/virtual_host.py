"""Hosts on virtual time: nothing happens unless a test makes it happen.

host = VirtualHost(seed=1)
host.schedule(3_000, lambda: print("due"))
host.advance(2_999)   # nothing
host.advance(1)       # due

Several hosts may share one `EventQueue`: one clock, and one order in which things happen to all of them.

Work for threads is done at once, unless races are looked for: a test holds it back (`hold_work`), and runs
each work and delivers its result when it likes; or a seed decides when that happens (`work_delays`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from kwire.host.clock import ManualClock, TimerQueue
from kwire.host.host import NoPeers, Peers, TimerClock
from kwire.host.loggers import NodeLogger
from kwire.host.random_streams import RandomStreams
from kwire.testing.disk import ProcessDied

T = TypeVar("T")

MAX_WORK_MS = 50


class EventQueue:
    """What is to happen, in its order: calls that wait for no time, and those that do."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.clock = ManualClock(now_ms)
        self.timers = TimerQueue(self.clock.monotonic_ms)
        self.soon: deque[Callable[[], None]] = deque()

    def run_pending(self) -> None:
        """Make the calls that wait for no time, and what those ask for."""
        while self.soon:
            self.soon.popleft()()

    def advance(self, delay_ms: int) -> None:
        """Let `delay_ms` pass: each call that becomes due is made at its own moment, in order."""
        self.run_pending()
        clock, timers = self.clock, self.timers
        target_ms = clock.monotonic_ms() + delay_ms
        while (deadline_ms := timers.next_deadline_ms()) is not None and deadline_ms <= target_ms:
            clock.advance(max(0, deadline_ms - clock.monotonic_ms()))
            callback = timers.pop_due(deadline_ms)
            assert callback is not None
            callback()
            self.run_pending()
        clock.advance(target_ms - clock.monotonic_ms())


class WorkerTask:
    """WorkerTask for a thread, and what becomes of it."""

    def __init__(self, host: VirtualHost, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._host = host
        self._work = work
        self._done = done
        self._results: list[Any] = []

    def run(self) -> None:
        """Do it, once, unless its process has died; its result is not known on the loop yet.

        A process that is paused does it when it goes on.
        """
        if not self._results and not self._host.is_dead and not self._host.is_paused:
            try:
                self._results.append(self._work())
            except ProcessDied:
                self._host.handle_death()
            except Exception as error:
                self._results.append(error)

    def deliver(self) -> None:
        """Have the loop told of the result by the next `run_pending` or `advance`."""
        self.run()
        self._host.call_soon(self._call_done)

    def _call_done(self) -> None:
        self.run()
        self._done(self._results[0])


class HostTimer:
    """A call that a host is to make later. While its process is paused it can be due and not made yet."""

    __slots__ = ("_callback", "_host", "_queued")

    def __init__(self, host: VirtualHost, delay_ms: int, callback: Callable[[], None]) -> None:
        self._host = host
        self._callback: Callable[[], None] | None = callback
        self._queued = host.events.timers.add(host.simulation_ms(delay_ms), self._on_due)

    def cancel(self) -> None:
        self._callback = None
        self._queued.cancel()

    def postpone(self, delay_ms: int) -> bool:
        if self._callback is None:
            return False
        if self._queued.callback is None:
            # It was due while the process was paused, which has only now come to it.
            self._queued = self._host.events.timers.add(self._host.simulation_ms(delay_ms), self._on_due)
            return True
        return self._queued.postpone(self._host.simulation_ms(delay_ms))

    def _on_due(self) -> None:
        self._host.call(self._call)

    def _call(self) -> None:
        if self._queued.callback is None:
            callback, self._callback = self._callback, None
            if callback is not None:
                callback()


class VirtualHost:
    """A `kwire.host.Host` whose clock a test moves.

    `end_turn`, where set (usually to a node's `end_turn`), is called after each callback that the host makes,
    as the shell does after each turn of its loop.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        now_ms: int = 1_700_000_000_000,
        name: str = "",
        events: EventQueue | None = None,
        work_delays: random.Random | None = None,
        speed_percent: int = 100,
        skew_ms: int = 0,
    ) -> None:
        """`name` is what the node is called in the log; `now_ms` counts where there are no `events` yet.

        Its clocks go with `speed_percent` of the speed of others.
        """
        self.name = name
        self.events = events if events is not None else EventQueue(now_ms)
        self.clock = self.events.clock
        self.skew_ms = skew_ms
        """How far its clock on the wall is before those of others; may be changed at any time."""
        self._speed_percent = speed_percent
        self._started_ms = self.clock.monotonic_ms()
        self.end_turn: Callable[[], None] | None = None
        self.held_work: list[WorkerTask] | None = None
        """The work that is held back, oldest first; None while none is."""
        self.is_dead = False
        """Whether the process is gone: nothing of it happens any more."""
        self.on_death: Callable[[], None] | None = None
        """Called when the process died in a disk operation. While unset, `ProcessDied` is raised."""
        self._held_calls: list[Callable[[], None]] | None = None
        self.peers: Peers = NoPeers(self.call_soon)
        """The other nodes: nobody, unless the host stands in a network."""
        self._work_delays = work_delays
        self.max_work_ms = MAX_WORK_MS
        """How long work takes at most where a seed decides."""
        self._streams = RandomStreams(seed)

    def random(self, purpose: str) -> random.Random:
        return self._streams.stream(purpose)

    def logger(self, name: str) -> NodeLogger:
        return NodeLogger(name, self.name)

    def now_ms(self) -> int:
        return self.clock.now_ms() + self.skew_ms + self._clock_gain_ms()

    def monotonic_ms(self) -> int:
        return self.clock.monotonic_ms() + self._clock_gain_ms()

    def _clock_gain_ms(self) -> int:
        """How far its clocks have run ahead of others by now."""
        if self._speed_percent == 100:
            return 0
        return (self.clock.monotonic_ms() - self._started_ms) * (self._speed_percent - 100) // 100

    def simulation_ms(self, delay_ms: int) -> int:
        """How long others wait while its own clock says this much: not less."""
        return delay_ms if self._speed_percent == 100 else -(-delay_ms * 100 // self._speed_percent)

    @property
    def internode_clock(self) -> TimerClock:
        return self  # nobody makes simulated nodes older than what they have lived through

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> HostTimer:
        return HostTimer(self, delay_ms, callback)

    def schedule_check(self, delay_ms: int, callback: Callable[[], None]) -> HostTimer:
        return self.schedule(delay_ms, callback)

    def run_in_worker(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Do `work` now, or as the test or the seed decides; see the module."""
        task = WorkerTask(self, work, done)
        if self.held_work is not None:
            self.held_work.append(task)
        elif self._work_delays is None:
            task.deliver()
        else:
            rng, timers = self._work_delays, self.events.timers
            begins_ms = rng.randrange(self.max_work_ms)
            timers.add(begins_ms, task.run)
            timers.add(begins_ms + rng.randrange(self.max_work_ms), task.deliver)

    def hold_work(self) -> list[WorkerTask]:
        """From now on work waits in this list for the test to run and deliver it."""
        self.held_work = []
        return self.held_work

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.events.soon.append(lambda: self.call(callback))

    def die(self) -> None:
        """The process is gone, with all that it had still to do."""
        self.is_dead = True
        self._held_calls = None

    @property
    def is_paused(self) -> bool:
        """Whether nothing of the process happens for now."""
        return self._held_calls is not None

    def pause(self) -> None:
        """Stop the process where it is (SIGSTOP): what is to happen waits until it is resumed."""
        if not self.is_paused and not self.is_dead:
            self._held_calls = []

    def resume(self) -> None:
        """Go on (SIGCONT): everything that became due meanwhile happens now, in its order."""
        held, self._held_calls = self._held_calls or [], None
        for callback in held:
            self.call_soon(callback)

    @property
    def timers(self) -> int:
        """How many calls are scheduled and not cancelled."""
        return len(self.events.timers)

    def run_pending(self) -> None:
        """Make the calls that wait for no time: worker results and `call_soon`, and what those ask for."""
        self.events.run_pending()

    def advance(self, delay_ms: int) -> None:
        """Let `delay_ms` pass: each call that becomes due is made at its own moment, in order."""
        self.events.advance(delay_ms)

    def call(self, callback: Callable[[], None]) -> None:
        """Have the process make a call now; once it goes on, where it is paused; never, where it is dead."""
        if self.is_dead:
            return
        if self._held_calls is not None:
            self._held_calls.append(callback)
            return
        try:
            callback()
            if self.end_turn is not None:
                self.end_turn()
        except ProcessDied:
            self.handle_death()

    def handle_death(self) -> None:
        """The process has died in what is being handled."""
        if self.on_death is None:
            raise ProcessDied
        self.on_death()
