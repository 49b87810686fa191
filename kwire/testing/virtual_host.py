"""A host on virtual time: nothing happens unless a test advances the clock.

    host = VirtualHost(seed=1)
    host.schedule(3_000, lambda: print("due"))
    host.advance(2_999)   # prints nothing
    host.advance(1)       # prints "due"

Several hosts can share one `EventQueue`. They then have one clock and one order of events.

Worker tasks run at once by default. To find races, a test can hold them back (`hold_work`), and then run each
task and deliver its result at any time. A test can also draw random delays (`work_delays`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from kwire.host.clock import ManualClock, TimerQueue
from kwire.host.host import InternodeTimerClock, NoPeers, Peers
from kwire.host.loggers import NodeLogger
from kwire.host.random_streams import RandomStreams
from kwire.testing.disk import ProcessDied

T = TypeVar("T")

MAX_WORK_MS = 50


class EventQueue:
    """A queue of pending events: calls that are due now, in order, and timers."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.clock = ManualClock(now_ms)
        self.timers = TimerQueue(self.clock.monotonic_ms)
        self.soon: deque[Callable[[], None]] = deque()

    def run_pending(self) -> None:
        """Make all calls that are due now, including calls that these calls add."""
        while self.soon:
            self.soon.popleft()()

    def advance(self, delay_ms: int) -> None:
        """Advance the clock by `delay_ms`, and make each call when it is due, in order."""
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
    """A task for a worker thread, with the callback for its result."""

    def __init__(self, host: VirtualHost, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._host = host
        self._work = work
        self._done = done
        self._results: list[Any] = []

    def run(self) -> None:
        """Run the task unless it has run already. Its result is not delivered yet.

        Does nothing while the process is paused, or after it has died.
        """
        if not self._results and not self._host.is_dead and not self._host.is_paused:
            try:
                self._results.append(self._work())
            except ProcessDied:
                self._host.handle_death()
            except Exception as error:
                self._results.append(error)

    def deliver(self) -> None:
        """Run the task if it has not run, and call back at the next `run_pending` or `advance`."""
        self.run()
        self._host.call_soon(self._call_done)

    def _call_done(self) -> None:
        self.run()
        self._done(self._results[0])


class HostTimer:
    """A scheduled call. A call that becomes due while its process is paused is made after `resume`."""

    __slots__ = ("_callback", "_host", "_queued")

    def __init__(self, host: VirtualHost, delay_ms: int, callback: Callable[[], None]) -> None:
        self._host = host
        self._callback: Callable[[], None] | None = callback
        self._queued = host.events.timers.add(host.simulation_ms(delay_ms), self._on_due)

    def cancel(self) -> None:
        """Cancel the call."""
        self._callback = None
        self._queued.cancel()

    def postpone(self, delay_ms: int) -> bool:
        """Reschedule the call, and return whether it was still pending."""
        if self._callback is None:
            return False
        if self._queued.callback is None:
            # The timer was due while the process was paused, and its call is still pending.
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
    """A `kwire.host.Host` whose clock a test advances.

    If `end_turn` is set, usually to a node's `end_turn`, it is called after each callback, as the event loop
    does after each turn.
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
        """Create a host. `name` is the node's name in the log.

        `now_ms` is the time at the start if there are no shared `events`. `work_delays` draws the delays of
        worker tasks. `speed_percent` is the speed of the host's clocks, `skew_ms` the lead of its wall clock.
        """
        self.name = name
        self.events = events if events is not None else EventQueue(now_ms)
        self.clock = self.events.clock
        self.skew_ms = skew_ms
        """The lead of the wall clock over the shared clock, in ms. Can be changed at any time."""
        self._speed_percent = speed_percent
        self._started_ms = self.clock.monotonic_ms()
        self.end_turn: Callable[[], None] | None = None
        self.held_work: list[WorkerTask] | None = None
        """The tasks that a test holds back, oldest first, or None."""
        self.is_dead = False
        """Whether the process has died. The callbacks of a dead process do not run."""
        self.on_death: Callable[[], None] | None = None
        """Called when the process dies in a disk operation. If it is None, `ProcessDied` is raised."""
        self._held_calls: list[Callable[[], None]] | None = None
        self.peers: Peers = NoPeers(self.call_soon)
        """The links to other nodes. Without a network, all requests fail."""
        self._work_delays = work_delays
        self.max_work_ms = MAX_WORK_MS
        """The longest delay of a task if `work_delays` is set."""
        self._streams = RandomStreams(seed)

    def random(self, purpose: str) -> random.Random:
        """Return the random stream for a purpose."""
        return self._streams.stream(purpose)

    def logger(self, name: str) -> NodeLogger:
        """Return a logger that names the node."""
        return NodeLogger(name, self.name)

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970."""
        return self.clock.now_ms() + self.skew_ms + self._clock_gain_ms()

    def monotonic_ms(self) -> int:
        """Return the monotonic clock in ms."""
        return self.clock.monotonic_ms() + self._clock_gain_ms()

    def _clock_gain_ms(self) -> int:
        """Return how far the clocks have run ahead of the shared clock, in ms."""
        if self._speed_percent == 100:
            return 0
        return (self.clock.monotonic_ms() - self._started_ms) * (self._speed_percent - 100) // 100

    def simulation_ms(self, delay_ms: int) -> int:
        """Return the delay on the shared clock during which this host's clock advances by `delay_ms`."""
        return delay_ms if self._speed_percent == 100 else -(-delay_ms * 100 // self._speed_percent)

    @property
    def internode_clock(self) -> InternodeTimerClock:
        """The clock for timeouts between nodes, which is the host's own."""
        return cast(
            InternodeTimerClock, self
        )  # the embedded broker has two clocks, since a test can advance it without its peers

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> HostTimer:
        """Call `callback` after `delay_ms` of this host's clock."""
        return HostTimer(self, delay_ms, callback)

    def schedule_check(self, delay_ms: int, callback: Callable[[], None]) -> HostTimer:
        """Schedule a periodic check, like any other call."""
        return self.schedule(delay_ms, callback)

    def run_in_worker(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` at once, after a delay, or when a test decides. Call `done` with the result or error."""
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

    def run_all_in_workers(self, works: Iterable[Callable[[], None]]) -> None:
        """Run all functions at once, one after the other."""
        for work in works:
            work()

    def hold_work(self) -> list[WorkerTask]:
        """Hold back all later tasks, and return the list that collects the tasks."""
        self.held_work = []
        return self.held_work

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the next `run_pending` or `advance`."""
        self.events.soon.append(lambda: self.call(callback))

    def die(self) -> None:
        """Kill the process, with all its pending calls."""
        self.is_dead = True
        self._held_calls = None

    @property
    def is_paused(self) -> bool:
        """Whether `pause` has paused the process."""
        return self._held_calls is not None

    def pause(self) -> None:
        """Pause the process, as SIGSTOP does. Its calls are made after `resume`."""
        if not self.is_paused and not self.is_dead:
            self._held_calls = []

    def resume(self) -> None:
        """Continue the process, as SIGCONT does, and make the calls that became due meanwhile."""
        held, self._held_calls = self._held_calls or [], None
        for callback in held:
            self.call_soon(callback)

    @property
    def timers(self) -> int:
        """The number of pending timers on the shared clock."""
        return len(self.events.timers)

    def run_pending(self) -> None:
        """Make all calls that are due now, including calls that these calls add."""
        self.events.run_pending()

    def advance(self, delay_ms: int) -> None:
        """Advance the shared clock by `delay_ms`, and make each call when it is due, in order."""
        self.events.advance(delay_ms)

    def call(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the process: now, or after `resume`, or never if the process is dead."""
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
        """Call `on_death` after the process died in a disk operation, or raise ProcessDied if it is None."""
        if self.on_death is None:
            raise ProcessDied
        self.on_death()
