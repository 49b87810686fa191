"""The loop: timers, worker threads and scheduled calls."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import trio

from kwire.broker.net.loop import MAX_WORKERS, Loop
from kwire.host.clock import ManualClock, SystemClock
from kwire.host.host import Host
from kwire.host.periodic_checks import MAX_CHECKS_PER_ADVANCE

T = TypeVar("T")


def record_and_set(record: Callable[[T], None], value: T, event: trio.Event) -> None:
    """Record a value and set the event."""
    record(value)
    event.set()


@pytest.fixture(params=[False, True], ids=["with other tasks", "alone"])
async def loop(nursery: trio.Nursery, request: pytest.FixtureRequest) -> AsyncIterator[Loop]:
    loop = Loop(ManualClock(), alone=request.param)
    nursery.start_soon(loop.run)
    with trio.fail_after(20):
        yield loop
        loop.stop()
        while loop.running:
            await trio.lowlevel.checkpoint()
    loop.close()


async def test_loop_implements_the_host_protocol(loop: Loop) -> None:
    host: Host = loop
    assert host.now_ms() == loop.clock.now_ms()


async def test_timers_fire_in_order_when_the_clock_advances(loop: Loop) -> None:
    fired: list[str] = []
    third = trio.Event()
    loop.schedule(3_000, lambda: record_and_set(fired.append, "third", third))
    loop.schedule(1_000, lambda: fired.append("first"))
    loop.schedule(2_000, lambda: fired.append("cancelled")).cancel()
    loop.schedule(2_000, lambda: fired.append("second"))
    loop.clock.advance(2_999)
    turned = trio.Event()
    loop.call_soon(turned.set)
    await turned.wait()
    assert fired == ["first", "second"]
    loop.clock.advance(1)
    await third.wait()
    assert fired == ["first", "second", "third"]


async def test_system_clock_wakes_the_loop() -> None:
    loop = Loop(SystemClock())
    fired = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        started_ms = loop.clock.monotonic_ms()
        loop.schedule(5, fired.set)
        loop.schedule(60_000, lambda: None)
        with trio.fail_after(5):
            await fired.wait()
        assert loop.clock.monotonic_ms() - started_ms >= 5
        loop.stop()
    loop.close()


async def test_advance_of_a_running_clock_wakes_the_loop() -> None:
    clock = SystemClock()
    loop = Loop(clock)
    fired = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        loop.schedule(7 * 24 * 3600 * 1000, fired.set)
        before_ms = clock.now_ms()
        await trio.to_thread.run_sync(clock.advance, 7 * 24 * 3600 * 1000)
        with trio.fail_after(5):
            await fired.wait()
        assert clock.now_ms() - before_ms >= 7 * 24 * 3600 * 1000
        loop.stop()
    loop.close()


async def test_timer_may_schedule_and_cancel_others(loop: Loop) -> None:
    fired: list[str] = []
    done = trio.Event()
    victim = loop.schedule(10, lambda: fired.append("victim"))

    def first() -> None:
        victim.cancel()
        loop.schedule(0, lambda: record_and_set(fired.append, "nested", done))

    loop.schedule(5, first)
    loop.clock.advance(50)
    await done.wait()
    assert fired == ["nested"]


async def test_work_runs_in_a_thread_and_its_result_arrives_on_the_loop(loop: Loop) -> None:
    threads: list[int] = []
    results: list[object] = []
    done = trio.Event()

    def work() -> int:
        threads.append(threading.get_ident())
        return 42

    def deliver(result: int | BaseException) -> None:
        threads.append(threading.get_ident())
        results.append(result)
        done.set()

    loop.run_in_worker(work, deliver)
    assert loop.working
    await done.wait()
    assert results == [42]
    assert threads[0] != threads[1] == threading.get_ident()
    assert not loop.working


async def test_exception_in_a_worker_is_delivered_as_the_result(loop: Loop) -> None:
    results: list[object] = []
    done = trio.Event()
    loop.run_in_worker(lambda: 1 // 0, lambda result: record_and_set(results.append, result, done))
    await done.wait()
    assert isinstance(results[0], ZeroDivisionError)


async def test_number_of_worker_threads_is_limited(loop: Loop) -> None:
    gate = threading.Event()
    lock = threading.Lock()
    running = most = 0
    results: list[int | BaseException] = []
    done = trio.Event()

    def work() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(10)
        with lock:
            running -= 1
        return 1

    def deliver(result: int | BaseException) -> None:
        results.append(result)
        if len(results) == 50:
            done.set()

    for _ in range(50):
        loop.run_in_worker(work, deliver)
    gate.set()
    await done.wait()
    assert results == [1] * 50
    assert most <= MAX_WORKERS


async def test_exception_in_a_callback_is_logged_and_the_loop_continues(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    done = trio.Event()
    loop.call_soon(lambda: 1 // 0)  # type: ignore[arg-type]
    loop.schedule(1, lambda: [].pop())
    loop.schedule(2, done.set)
    loop.clock.advance(2)
    await done.wait()
    assert "ZeroDivisionError" in caplog.text
    assert "pop from empty list" in caplog.text


async def test_other_tasks_run_while_the_loop_is_busy(loop: Loop) -> None:
    """A callback that schedules itself does not starve signals and other tasks."""

    def again() -> None:
        if not stop:
            loop.call_soon(again)

    stop = False
    again()
    for _ in range(100):
        await trio.lowlevel.checkpoint()
    stop = True


def test_random_stream_for_secrets_is_reproducible_only_with_a_seed() -> None:
    seeded, other, unseeded = Loop(seed=7), Loop(seed=7), Loop()
    try:
        assert seeded.random("sasl").randbytes(18) == other.random("sasl").randbytes(18)
        assert isinstance(unseeded.random("sasl"), random.SystemRandom)
        assert not isinstance(unseeded.random("placement"), random.SystemRandom)
    finally:
        for loop in (seeded, other, unseeded):
            loop.close()


async def test_advance_by_a_week_limits_periodic_checks_and_fires_timers_on_time(loop: Loop) -> None:
    second_ms, day_ms = 1_000, 24 * 3600 * 1000
    began_ms = loop.monotonic_ms()
    checks: list[int] = []
    days: list[int] = []

    def check() -> None:
        checks.append(loop.monotonic_ms() - began_ms)
        loop.schedule_check(second_ms, check)

    def day() -> None:
        days.append(loop.monotonic_ms() - began_ms)
        loop.schedule(day_ms, day)

    loop.schedule_check(second_ms, check)
    loop.schedule(day_ms, day)
    advanced = trio.Event()
    loop.call_soon(lambda: loop.advance(7 * day_ms, advanced.set))
    await advanced.wait()
    assert days == [day_ms * nth for nth in range(1, 8)]
    assert checks[-1] == 7 * day_ms
    assert len(checks) <= MAX_CHECKS_PER_ADVANCE + 2
    again = trio.Event()
    loop.call_soon(lambda: loop.advance(2 * second_ms, again.set))
    await again.wait()
    assert checks[-2:] == [7 * day_ms + second_ms, 7 * day_ms + 2 * second_ms]


async def test_stop_advancing_restores_the_interval_of_periodic_checks(loop: Loop) -> None:
    began_ms = loop.monotonic_ms()
    checks: list[int] = []

    def check() -> None:
        checks.append(loop.monotonic_ms() - began_ms)
        loop.schedule_check(1_000, check)

    loop.schedule_check(1_000, check)
    advanced = trio.Event()
    loop.schedule(10**6, loop.stop_advancing)
    loop.call_soon(lambda: loop.advance(10**9, advanced.set))
    await advanced.wait()
    stopped_ms = loop.monotonic_ms() - began_ms
    assert stopped_ms < 10**9
    again = trio.Event()
    loop.call_soon(lambda: loop.advance(1_000, again.set))
    await again.wait()
    assert stopped_ms <= checks[-1] <= stopped_ms + 1_000
    assert len([at for at in checks if at >= stopped_ms]) in (1, 2)


async def test_advance_without_the_internode_clock_fires_other_timers(loop: Loop) -> None:
    day_ms = 24 * 3600 * 1000
    began_ms, between_ms = loop.monotonic_ms(), loop.internode_clock.monotonic_ms()
    events: list[str] = []
    loop.schedule(day_ms, lambda: events.append("a day"))
    loop.internode_clock.schedule(500, lambda: events.append("nobody answered"))
    advanced, off = trio.Event(), trio.Event()
    loop.call_soon(lambda: loop.advance(7 * day_ms, advanced.set, advance_internode_clock=False))
    loop.call_soon(
        lambda: loop.advance(7 * day_ms, off.set, advance_internode_clock=False)
    )  # after the first
    await advanced.wait()
    loop.call_soon(loop.stop_advancing)
    await off.wait()
    assert loop.monotonic_ms() - began_ms >= 7 * day_ms
    assert (loop.internode_clock.monotonic_ms(), events) == (between_ms, ["a day"])
    record_and_set = trio.Event()
    loop.call_soon(lambda: loop.advance(500, record_and_set.set))
    await record_and_set.wait()
    assert (loop.internode_clock.monotonic_ms(), events) == (between_ms + 500, ["a day", "nobody answered"])
