"""The loop: one epoll that one trio task, or one thread, waits on turn by turn.

Prior art and measurements. A trio task per connection costs 10 µs of CPU a request at best, 16 with trio's
streams, because every wait goes through the scheduler. Here all descriptors live in an epoll of our own,
whose descriptor is the only thing that trio waits for; whatever is ready is then served synchronously,
without a checkpoint between one connection and the next. That brings a request to under 7 µs, where a C
program needs 4.6. Trio keeps what it is good at: signals, start and stop, and other tasks beside the loop.

A turn is: ready descriptors; then due timers, results of worker threads, and `call_soon`; then the
`end_turn` hook, in which the server commits what was staged and sends. A descriptor's handler must do
bounded work, so that the end of the turn comes soon.

Going through the scheduler costs about 10 µs, and trio's own epoll is asked on the way. So where the loop
is `alone` in its thread, it waits after a turn that served something for more in its own epoll, for some
milliseconds, before it gives itself up to trio: a client that asks, waits and asks again costs 15 µs of CPU
a request instead of 24, and its answer comes that much sooner. A wait that may end before the kernel's next
tick (a millisecond, say) would have a timer programmed each time, which on a virtual machine costs another
6 µs. `TURNS_PER_CHECKPOINT` and `CHECKPOINT_SECONDS` bound how long other tasks (signals among them) wait
for that: some 40 ms at worst. Not where a client runs in the same trio, which could not send while the loop
waits.

An embedded broker has a thread to itself and nothing beside the loop: `run_here` waits in the epoll alone.

Timers are a heap beside one timerfd that is armed for the earliest deadline seen. Cancelling does not
disarm it, and neither does postponing: a wake-up too many now and then is cheaper than arming for every long
poll. Worker threads report through an eventfd in the same epoll.
"""

from __future__ import annotations

import math
import os
import random
import select
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from kwire.broker.net.loop_events import LoopEvent, Wait
from kwire.broker.net.timerfd import TimerFd
from kwire.broker.net.workers import Workers
from kwire.host.clock import Clock, QueuedTimer, SystemClock, TimerQueue
from kwire.host.host import NoPeers, Peers, Timer
from kwire.host.internode_clock import InternodeClock
from kwire.host.loggers import NodeLogger
from kwire.host.periodic_checks import PeriodicChecks
from kwire.host.random_streams import RandomStreams

T = TypeVar("T")

MAX_EVENTS = 512
"""Descriptors served in one turn; the others have their chance in the next."""
TURNS_PER_CHECKPOINT = 16
CHECKPOINT_SECONDS = 0.02
"""The turn that ends so long after the last checkpoint is followed by one, too."""
LINGER_SECONDS = 0.02
"""How long a loop alone in its thread waits for something to serve after it had something."""
STEPS_PER_TURN = 64
"""Deadlines that the clock is moved to, by `advance`, before descriptors have their turn."""
UNPREDICTABLE = frozenset({"salts", "sasl"})
"""Purposes for which what was drawn must not tell what will be: with no seed, the machine's own chance."""
MAX_WORKERS = 8


class Loop:
    """A `broker.host.Host` on real time, and the epoll that everything of the shell hangs on."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        name: str = "",
        seed: int | None = None,
        max_workers: int = MAX_WORKERS,
        alone: bool = False,
    ) -> None:
        """`name` is what the node is called in the log."""
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.name = name
        self._streams = RandomStreams(seed if seed is not None else int.from_bytes(os.urandom(16)))
        self._secrets = random.SystemRandom() if seed is None else None
        self.now_ms = self.clock.now_ms
        self.monotonic_ms = self.clock.monotonic_ms
        self._logger = self.logger("kwire.net")
        self.peers: Peers = NoPeers(self.call_soon)
        """The other nodes: nobody, until the shell has made connections to them possible."""
        self.end_turn: Callable[[], bool] = _nothing_left
        """Called at the end of each turn; True asks for another turn at once."""
        self.turn_ms = 0
        """The time between nodes (`Host.internode_clock`) at the start of this turn."""
        self.turn_began = perf_counter()
        """When this turn began to work, in seconds of real time that mean nothing by themselves."""
        self.alone = alone
        """Whether no other task of this trio run needs to be served promptly."""
        self.served = 0
        """How many descriptors the last turn served."""
        self.running = False
        self._epoll = select.epoll(256)
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers = TimerQueue(self.clock.monotonic_ms)
        self._checks = PeriodicChecks(self._timers)
        self.internode_clock = InternodeClock(self._timers, self._scheduled)
        self._timer_fd = TimerFd()
        self._armed_ms: int | None = None
        self._timers_due = False
        self._advancing = self._advance_stopped = False
        self._next_advances: deque[Callable[[], None]] = deque()
        self._soon: deque[Callable[[], None]] = deque()
        self.in_turn = False
        self._stopping = False
        self._more = False
        self._workers = Workers(max_workers, self._work_finished)
        self._when_idle: list[Callable[[], None]] = []
        """What is to be called once no work is under way."""
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wake_fd, select.EPOLLIN, self._woken)
        self.watch(self._timer_fd.fd, select.EPOLLIN, self._timer_expired)
        self.clock.on_jump = self._clock_jumped

    # --- descriptors

    def watch(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call `handler` with the ready mask whenever one of `mask` is so (level-triggered)."""
        self._epoll.register(fd, mask)
        self._handlers[fd] = handler

    def rewatch(self, fd: int, mask: int) -> None:
        """Change what a watched descriptor is watched for."""
        self._epoll.modify(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor. To be called before it is closed."""
        del self._handlers[fd]
        self._epoll.unregister(fd)

    # --- Host (now_ms and monotonic_ms are the clock's)

    def random(self, purpose: str) -> random.Random:
        if self._secrets is not None and purpose in UNPREDICTABLE:
            return self._secrets
        return self._streams.stream(purpose)

    def logger(self, name: str) -> NodeLogger:
        return NodeLogger(name, self.name)

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer:
        timer = self._timers.add(delay_ms, callback)
        self._scheduled()
        return timer

    def schedule_check(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        look = self._checks.add(delay_ms, callback)
        self._scheduled()
        return look

    def _scheduled(self) -> None:
        if not self.in_turn:
            self.wake()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)
        if not self.in_turn:
            self.wake()

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        """`call_soon` for other threads."""
        self._soon.append(callback)
        self.wake()

    def run_in_worker(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._workers.run(work, done)

    @property
    def working(self) -> bool:
        """Whether worker threads are under way, or results of theirs wait for the loop."""
        return self._workers.in_progress > 0

    def workers_done(self) -> LoopEvent:
        """When nothing is under way in threads, and every result was delivered."""
        done = LoopEvent()

        def look() -> None:
            if self.working:
                self._when_idle.append(look)
            else:
                done.set()

        look()
        return done

    def _work_finished(self, done: Callable[[Any], None], result: Any) -> None:
        self.call_from_thread(lambda: self._worker_done(done, result))

    def _worker_done(self, done: Callable[[Any], None], result: Any) -> None:
        self._workers.in_progress -= 1
        try:
            done(result)
        finally:
            if not self.working:
                self._soon.extend(self._when_idle)
                self._when_idle.clear()

    # --- the turn

    async def run(self) -> None:
        """Turn until `stop`, as a task of trio."""
        import trio  # which takes longer than the rest of an embedded broker, and it does without

        assert not self.running
        self.running = True
        epoll_fd = self._epoll.fileno()
        turns = 0
        linger = 0.0
        checked = perf_counter()
        try:
            while not self._stopping:
                if self.turn(linger):
                    linger = 0.0
                elif self.served and self.alone:
                    linger = LINGER_SECONDS
                else:
                    turns = 0
                    linger = 0.0
                    await trio.lowlevel.wait_readable(epoll_fd)
                    checked = perf_counter()
                    continue
                turns += 1
                if turns >= TURNS_PER_CHECKPOINT or self.turn_began - checked >= CHECKPOINT_SECONDS:
                    turns = 0
                    await trio.lowlevel.checkpoint()
                    checked = self.turn_began
        finally:
            self.running = False

    def run_until(self, waits: Iterable[Wait]) -> None:
        """Turn in this thread, which does nothing else, until `waits` are over or `stop`.

        As long as one of `waits` is not over, the next one is not asked for.
        """
        assert not self.running
        self.running = True
        try:
            for wait in waits:
                end = perf_counter() + wait.seconds
                rest = 0.0  # there may be something to do already
                while not (self._stopping or any(moment.is_set for moment in wait.events)):
                    if self.turn(rest):
                        rest = 0.0
                        continue
                    rest = end - perf_counter()
                    if rest <= 0:
                        break
                    if rest == math.inf:
                        rest = -1  # epoll's word for it
        finally:
            self.running = False

    def stop(self) -> None:
        """End `run` after this turn."""
        self._stopping = True
        self.wake()

    def turn(self, wait_seconds: float = 0.0) -> bool:
        """Wait so long, or for good where it is negative, and serve what is ready.

        True when there is more to do already, and the next turn must not wait.
        """
        self.in_turn = True
        events = self._epoll.poll(wait_seconds, MAX_EVENTS)
        self.served = len(events)
        self.turn_ms = self.internode_clock.monotonic_ms()
        self.turn_began = perf_counter()
        handlers = self._handlers
        for fd, mask in events:
            handler = handlers.get(fd)
            if handler is None:
                continue  # closed earlier in this turn
            try:
                handler(mask)
            except Exception:
                self._logger.exception("the handler of descriptor %d failed", fd)
        if self._timers_due:
            self._timers_due = False
            self._run_due_timers()
        soon = self._soon
        for _ in range(len(soon)):
            self._call(soon.popleft())
        self._more = self._end_of_turn()
        self._arm_timer()
        self.in_turn = False
        return self._more or len(soon) > 0 or self._timers_due

    def _end_of_turn(self) -> bool:
        try:
            return self.end_turn()
        except Exception:
            self._logger.exception("the end of a turn failed")
            return False

    def _run_due_timers(self) -> None:
        now_ms = self.clock.monotonic_ms()
        while (callback := self._timers.pop_due(now_ms)) is not None:
            self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            self._logger.exception("a call of the loop failed")

    def _arm_timer(self) -> None:
        deadline_ms = self._timers.wakeup_ms()
        if deadline_ms is not None and (self._armed_ms is None or deadline_ms < self._armed_ms):
            self._armed_ms = deadline_ms
            self._timer_fd.arm(deadline_ms - self.clock.monotonic_ms())

    def _timer_expired(self, mask: int) -> None:
        self._timer_fd.consume()
        self._armed_ms = None
        self._timers_due = True

    def advance(self, delay_ms: int, done: Callable[[], None], *, internode_clock: bool = True) -> None:
        """Move the clock to each deadline within `delay_ms` in turn, and to the end; then call `done`.

        All that becomes due runs before the clock moves on, with all that follows from it and work in
        threads. Periodic checks are rarer meanwhile, and run once more at the end. Without `internode_clock`,
        that clock (`Host.internode_clock`) is paused meanwhile. To be called in the loop's thread. It begins
        when the previous advance is done, or canceled by `stop_advancing`.
        """
        if self._advancing:
            self._next_advances.append(partial(self.advance, delay_ms, done, internode_clock=internode_clock))
            return
        self._advancing, self._advance_stopped = True, False
        clock = self.clock
        end_ms = clock.monotonic_ms() + delay_ms
        self._checks.begin_advance(delay_ms)
        if not internode_clock:
            self.internode_clock.pause(delay_ms)
        on_jump, clock.on_jump = clock.on_jump, None  # the loop knows, and looks by itself

        def look(*, is_quiet: bool = False) -> None:
            if self._advance_stopped:
                finish()
            elif self.working:
                self._when_idle.append(look)
            elif self._more or self._soon:
                self._soon.append(look)
            elif not is_quiet:
                self._soon.append(quiet)  # what this turn has done may have its end do more
            else:
                step()

        quiet = partial(look, is_quiet=True)

        def step() -> None:
            for _ in range(STEPS_PER_TURN):
                now_ms = clock.monotonic_ms()
                deadline_ms = self._timers.next_deadline_ms()
                if deadline_ms is None or deadline_ms > end_ms:
                    clock.advance(max(0, end_ms - now_ms))
                    if self._checks.end_advance():
                        continue
                    finish()
                    return
                clock.advance(max(0, deadline_ms - now_ms))
                self._run_due_timers()
                if self._end_of_turn() or self._soon or self.working or self._advance_stopped:
                    break
            self._soon.append(quiet)

        def finish() -> None:
            self._checks.end_advance()
            if not internode_clock:
                self.internode_clock.resume(max(0, end_ms - clock.monotonic_ms()))
            clock.on_jump = on_jump
            self._advancing = False
            self._recheck_timers()
            done()
            if self._next_advances:
                self._soon.append(self._next_advances.popleft())

        self.call_soon(look)

    def stop_advancing(self) -> None:
        """Move the clock no further than it is."""
        self._advance_stopped = True

    def _clock_jumped(self) -> None:
        """Time was moved, perhaps from another thread: what is due and what is armed both change."""
        self.call_from_thread(self._recheck_timers)

    def _recheck_timers(self) -> None:
        self._armed_ms = None
        self._timers_due = True

    def wake(self) -> None:
        """Make the loop turn, from any thread."""
        os.eventfd_write(self._wake_fd, 1)

    def _woken(self, mask: int) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Give the descriptors back. Not to be used again."""
        self.clock.on_jump = None
        self._workers.close()
        self._epoll.close()
        self._timer_fd.close()
        os.close(self._wake_fd)


def _nothing_left() -> bool:
    return False
