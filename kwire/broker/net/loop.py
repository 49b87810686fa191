"""The event loop of a node: it waits on one poller and handles the ready events in turns.

The poller is an epoll on Linux and a kqueue on macOS (`kwire.host.platform.events`).

A turn handles ready file descriptors, then due timers, results of worker threads and `call_soon` callbacks.
It ends with the `end_turn` hook, in which the server writes staged appends and sends responses. The handler
of a descriptor must do bounded work, so that every turn ends soon.

Why not a trio task per connection? A trio task costs at least 10 µs of CPU per request, or 16 µs with trio's
streams, because every wait goes through trio's scheduler. Here the loop has a poller of its own for all
descriptors, and handles ready connections one after another without a checkpoint. This takes less than 7 µs
per request; a C program takes 4.6 µs.

A node without an HTTP port and without a watchdog runs the loop alone in a thread with `run_until`, without
trio. Otherwise the loop is a trio task (`run`) beside other tasks, and trio waits for the descriptor of the
poller. A pass through trio's scheduler costs about 10 µs. If the loop is `alone`, it does not return to trio
at once after a turn that handled something: it first waits some milliseconds in its own poller. A client that
waits for each response before it sends the next request then costs 15 µs of CPU per request instead of 24 µs,
and gets its response that much sooner. The wait must not be very short: a timeout before the next tick
of the kernel makes the kernel program a timer, which costs 6 µs on a virtual machine. `TURNS_PER_CHECKPOINT`
and `CHECKPOINT_SECONDS` bound the delay for other tasks, such as signal handlers, to about 40 ms. If a client
runs in the same trio run, the loop must not be `alone`: the client could not send while the loop waits.

Timers are in a heap. The poller's timer is armed for the earliest deadline. Canceling or postponing a timer
does not change the poller's timer, because an unnecessary wake-up costs less than arming it for every long
poll. Worker threads report their results through a wake-up descriptor in the same poller.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random, SystemRandom
from typing import Any, TypeVar

from kwire.broker.net.loop_events import LoopEvent, Wait
from kwire.broker.net.workers import Workers, run_all
from kwire.broker.storage.disk import SHORTAGE_RETRY_MS
from kwire.host.clock import Clock, QueuedTimer, SystemClock, TimerQueue
from kwire.host.host import InternodeTime, NoPeers, Peers, Timer
from kwire.host.internode_clock import InternodeClock
from kwire.host.loggers import NodeLogger
from kwire.host.periodic_checks import PeriodicChecks
from kwire.host.platform.events import (
    READABLE,
    Poller,
    new_poller,
    open_wakeup,
    read_wakeup,
    write_wakeup,
)
from kwire.host.random_streams import RandomStreams
from kwire.host.system_os import os
from kwire.host.system_time import perf_counter

T = TypeVar("T")

MAX_EVENTS = 512
"""The largest number of descriptors that one turn handles. The next turn handles the others."""
TURNS_PER_CHECKPOINT = 16
CHECKPOINT_SECONDS = 0.02
"""The time after a trio checkpoint after which the loop executes the next checkpoint."""
IDLE_WINDOW_SECONDS = 30.0
LINGER_SECONDS = 0.02
"""The time that a loop that is `alone` waits in its own poller after a turn that handled something."""
HANDSHAKES_PER_TURN = 4
"""The limit for the steps of handshakes in one turn. A step of a TLS handshake takes up to a millisecond."""
STEPS_PER_TURN = 64
"""The number of deadlines that `advance` moves through before the loop handles descriptors again."""
UNPREDICTABLE = frozenset({"salts", "sasl"})
"""Purposes whose random numbers must be unpredictable. Without a seed, the system generates them."""
MAX_WORKERS = 8


class Loop:
    """The real-time `Host` of a node, with one poller for all its I/O."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        name: str = "",
        seed: int | None = None,
        max_workers: int = MAX_WORKERS,
        alone: bool = False,
    ) -> None:
        """`name` is the name of the node in log lines. With a `seed`, all random numbers are reproducible."""
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.name = name
        self._streams = RandomStreams(seed if seed is not None else int.from_bytes(os.urandom(16)))
        self._secrets = SystemRandom() if seed is None else None
        self.now_ms = self.clock.now_ms
        self.monotonic_ms = self.clock.monotonic_ms
        self._logger = self.logger("kwire.net")
        self.peers: Peers = NoPeers(self.call_soon)
        """The other nodes. There are none until `PeerLinks` replaces this."""
        self.end_turn: Callable[[], bool] = _nothing_left
        """The hook at the end of each turn. It returns True if the next turn must not wait."""
        self.turn_ms = InternodeTime(0)
        """The time of `internode_clock` in ms at the start of this turn."""
        self.turn_began = perf_counter()
        """The value of `perf_counter` (seconds) at the start of this turn."""
        self.idle_seconds = 0.0
        """The time that this loop has waited for descriptors since it was created, in seconds."""
        self._idle_samples = deque([(perf_counter(), 0.0)], maxlen=2)
        """Earlier values of `idle_seconds` with their times, at least `IDLE_WINDOW_SECONDS` apart."""
        self.alone = alone
        """Whether the loop may delay the other tasks of its trio run by up to about 40 ms."""
        self.give_back_descriptors: Callable[[], bool] = _nothing_left
        """The function that closes cached files for a new socket, and returns whether any was closed."""
        self.relieve_workers: Callable[[], object] = _nothing_left
        """The function that frees a descriptor for a worker that waits for one."""
        self.on_exception: Callable[[str, BaseException], None] | None = None
        """The hook for exceptions that the node logs as errors, with the message."""
        self.served = 0
        """The number of descriptors that the last turn handled."""
        self.running = False
        self._poller, self._timer = new_poller()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers = TimerQueue(self.clock.monotonic_ms)
        self._checks = PeriodicChecks(self._timers)
        self.internode_clock = InternodeClock(self._timers, self._scheduled)
        self._armed_ms: int | None = None
        self._timers_due = False
        self._advancing = self._advance_stopped = False
        self._next_advances: deque[Callable[[], None]] = deque()
        self._soon: deque[Callable[[], object]] = deque()
        self.in_turn = False
        self._stopping = False
        self._more = False
        self._workers = Workers(max_workers, self._work_finished, retry=self.retry_soon)
        self._handshakes = 0, 0.0
        """The steps of handshakes in a turn, and the start of this turn."""
        self._when_idle: list[Callable[[], None]] = []
        """Callbacks to call once no work is in progress in worker threads."""
        self._woken_fd, self._wake_fd = open_wakeup()
        self.watch(self._woken_fd, READABLE, self._woken)
        self._handlers[self._timer.fd] = self._timer_expired
        self.clock.on_jump = self._clock_jumped

    @property
    def armed_ms(self) -> int | None:
        """The time of `clock` in ms at which the poller's timer expires, or None."""
        return self._armed_ms

    def wrap_poller(self, wrap: Callable[[Poller], Poller]) -> None:
        """Wait with `wrap(poller)` from now on. Tests can measure the waits with it."""
        self._poller = wrap(self._poller)

    # --- descriptors

    def watch(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call `handler` with the ready events whenever an event of `mask` is ready (level-triggered)."""
        self._poller.register(fd, mask)
        self._handlers[fd] = handler

    def rewatch(self, fd: int, mask: int, handler: Callable[[int], None] | None = None) -> None:
        """Change the event mask of a watched descriptor, and its handler if there is a new one."""
        self._poller.modify(fd, mask)
        if handler is not None:
            self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor. Call this before closing it."""
        del self._handlers[fd]
        self._poller.unregister(fd)

    def may_handshake(self) -> bool:
        """Count a step of a handshake. Return False if this turn has no more time for steps."""
        steps, turn = self._handshakes
        if turn != self.turn_began:
            steps = 0
        self._handshakes = steps + 1, self.turn_began
        return steps < HANDSHAKES_PER_TURN

    # --- Host (the clock implements now_ms and monotonic_ms)

    def random(self, purpose: str) -> Random:
        if self._secrets is not None and purpose in UNPREDICTABLE:
            return self._secrets
        return self._streams.stream(purpose)

    def logger(self, name: str) -> NodeLogger:
        return NodeLogger(name, self.name, self._report_exception)

    def _report_exception(self, message: str, error: BaseException) -> None:
        if self.on_exception is not None:
            self.on_exception(message, error)

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer:
        timer = self._timers.add(delay_ms, callback)
        self._scheduled()
        return timer

    def schedule_check(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        timer = self._checks.add(delay_ms, callback)
        self._scheduled()
        return timer

    def _scheduled(self) -> None:
        if not self.in_turn:
            self.wake()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)
        if not self.in_turn:
            self.wake()

    def call_from_thread(self, callback: Callable[[], object]) -> None:
        """Schedule a callback for the loop's thread. Unlike `call_soon`, any thread may call this."""
        self._soon.append(callback)
        self.wake()

    def start_worker(self) -> None:
        """Start the first worker thread. Raises ResourceShortage if the system permits none."""
        self._workers.start_first_thread()

    def run_in_worker(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._workers.run(work, done)

    def run_all_in_workers(self, works: Iterable[Callable[[], None]]) -> None:
        run_all(works, MAX_WORKERS, self.relieve_workers)

    def retry_soon(self, start: Callable[[], None]) -> None:
        """Call `start` after a short delay, because the process was short of memory or threads."""
        self.internode_clock.schedule(SHORTAGE_RETRY_MS, start)

    @property
    def working(self) -> bool:
        """Whether worker threads are busy, or have results that the loop has not delivered yet."""
        return self._workers.in_progress > 0

    def workers_done(self) -> LoopEvent:
        """Return an event that is set once worker threads are idle and all their results are delivered."""
        done = LoopEvent()

        def check() -> None:
            if self.working:
                self._when_idle.append(check)
            else:
                done.set()

        check()
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

    def idle_ratio(self) -> float:
        """Return the share of the last 30 to 60 s (if queried often) in which this loop was idle, 0 to 1."""
        now = perf_counter()
        if now - self._idle_samples[-1][0] >= IDLE_WINDOW_SECONDS:
            self._idle_samples.append((now, self.idle_seconds))
        since, idle_before = self._idle_samples[0]
        return min(1.0, (self.idle_seconds - idle_before) / max(now - since, 1e-9))

    # --- turns

    async def run(self) -> None:
        """Run turns until `stop`, as a trio task."""
        import trio  # imported here because an embedded broker starts in half the time without trio

        assert not self.running
        self.running = True
        poller_fd = self._poller.fileno()
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
                    began = perf_counter()
                    await trio.lowlevel.wait_readable(poller_fd)
                    checked = perf_counter()
                    self.idle_seconds += checked - began
                    continue
                turns += 1
                if turns >= TURNS_PER_CHECKPOINT or self.turn_began - checked >= CHECKPOINT_SECONDS:
                    turns = 0
                    await trio.lowlevel.checkpoint()
                    checked = self.turn_began
        finally:
            self.running = False

    def run_until(self, waits: Iterable[Wait]) -> None:
        """Run turns in this thread until all `waits` are over, or until `stop` is called.

        `waits` is advanced to its next item only after the current wait is over.
        """
        assert not self.running
        self.running = True
        try:
            for wait in waits:
                end = perf_counter() + wait.seconds
                rest = 0.0  # the first turn must not wait: something may be ready already
                while not (self._stopping or any(event.is_set for event in wait.events)):
                    if self.turn(rest):
                        rest = 0.0
                        continue
                    rest = end - perf_counter()
                    if rest <= 0:
                        break
                    if rest == math.inf:
                        rest = -1  # for the poller, -1 means no timeout
        finally:
            self.running = False

    def stop(self) -> None:
        """End `run` or `run_until` after this turn."""
        self._stopping = True
        self.wake()

    def turn(self, wait_seconds: float = 0.0) -> bool:
        """Wait up to `wait_seconds` (negative: without limit) for descriptors, and run one turn.

        Return True if the next turn must not wait.
        """
        self.in_turn = True
        waits_since = perf_counter() if wait_seconds else None
        events = self._poller.poll(wait_seconds, MAX_EVENTS)
        self.served = len(events)
        self.turn_ms = self.internode_clock.monotonic_ms()
        self.turn_began = perf_counter()
        if waits_since is not None:
            self.idle_seconds += self.turn_began - waits_since
        handlers = self._handlers
        for fd, mask in events:
            handler = handlers.get(fd)
            if handler is None:
                continue  # an earlier handler of this turn has closed the descriptor
            try:
                handler(mask)
            except Exception:
                self._logger.exception(
                    "The handler of file descriptor %d failed; the event loop continues", fd
                )
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
            self._logger.exception(
                "Cannot write appended records or send responses; the event loop continues"
            )
            return False

    def _run_due_timers(self) -> None:
        now_ms = self.clock.monotonic_ms()
        while (callback := self._timers.pop_due(now_ms)) is not None:
            self._call(callback)

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            self._logger.exception(
                "A call of %r in the event loop failed; the event loop continues", callback
            )

    def _arm_timer(self) -> None:
        deadline_ms = self._timers.wakeup_ms()
        if deadline_ms is not None and (self._armed_ms is None or deadline_ms < self._armed_ms):
            self._armed_ms = deadline_ms
            self._timer.arm(deadline_ms - self.clock.monotonic_ms())

    def _timer_expired(self, mask: int) -> None:
        self._timer.consume()
        self._armed_ms = None
        self._timers_due = True

    def advance(
        self, delay_ms: int, done: Callable[[], None], *, advance_internode_clock: bool = True
    ) -> None:
        """Move the clock forward by `delay_ms`, from deadline to deadline, then call `done`.

        The clock moves to the next deadline only after all due callbacks have run, and after all work that
        they started, also in threads, is complete. Periodic checks run less often during the advance, and
        once more at its end. With `advance_internode_clock=False`, the internode clock
        (`Host.internode_clock`) is paused. An advance begins after earlier advances have ended. Call this in
        the loop's thread.
        """
        if self._advancing:
            self._next_advances.append(
                partial(self.advance, delay_ms, done, advance_internode_clock=advance_internode_clock)
            )
            return
        self._advancing, self._advance_stopped = True, False
        clock = self.clock
        end_ms = clock.monotonic_ms() + delay_ms
        self._checks.begin_advance(delay_ms)
        if not advance_internode_clock:
            self.internode_clock.pause(delay_ms)
        on_jump, clock.on_jump = clock.on_jump, None  # this function handles its own jumps of the clock

        def check(*, is_quiet: bool = False) -> None:
            if self._advance_stopped:
                finish()
            elif self.working:
                self._when_idle.append(check)
            elif self._more or self._soon:
                self._soon.append(check)
            elif not is_quiet:
                self._soon.append(check_again)  # the end of this turn may schedule more work
            else:
                step()

        check_again = partial(check, is_quiet=True)

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
            self._soon.append(check_again)

        def finish() -> None:
            self._checks.end_advance()
            if not advance_internode_clock:
                self.internode_clock.resume(max(0, end_ms - clock.monotonic_ms()))
            clock.on_jump = on_jump
            self._advancing = False
            self._recheck_timers()
            done()
            if self._next_advances:
                self._soon.append(self._next_advances.popleft())

        self.call_soon(check)

    def stop_advancing(self) -> None:
        """End the advance in progress early, and call its `done`. The clock is not set back."""
        self._advance_stopped = True

    def _clock_jumped(self) -> None:
        """Check all timers again after the clock was moved. Any thread may call this."""
        self.call_from_thread(self._recheck_timers)

    def _recheck_timers(self) -> None:
        self._armed_ms = None
        self._timers_due = True

    def wake(self) -> None:
        """Make the loop run a turn. Any thread may call this."""
        fd = self._wake_fd
        if fd >= 0:  # a worker that hung may outlive the loop
            write_wakeup(fd, 1)

    def _woken(self, mask: int) -> None:
        read_wakeup(self._woken_fd)

    def close(self) -> None:
        """End the worker threads and close the loop's descriptors. The loop cannot be used afterwards."""
        self.clock.on_jump = None
        self._workers.close()
        self._poller.close()
        self._timer.close()
        fds = {self._woken_fd, self._wake_fd}
        self._wake_fd = -1
        for fd in fds:
            os.close(fd)


def _nothing_left() -> bool:
    return False
