"""Time, threads and calls on the loop."""

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


def both(note: Callable[[T], None], value: T, event: trio.Event) -> None:
    """Note a value, and tell who waits for it."""
    note(value)
    event.set()


@pytest.fixture(params=[False, True], ids=["among others", "alone"])
async def loop(nursery: trio.Nursery, request: pytest.FixtureRequest) -> AsyncIterator[Loop]:
    loop = Loop(ManualClock(), alone=request.param)
    nursery.start_soon(loop.run)
    with trio.fail_after(20):
        yield loop
        loop.stop()
        while loop.running:
            await trio.lowlevel.checkpoint()
    loop.close()


async def test_it_is_a_host(loop: Loop) -> None:
    host: Host = loop
    assert host.now_ms() == loop.clock.now_ms()


async def test_timers_fire_in_order_when_the_clock_gets_there(loop: Loop) -> None:
    fired: list[str] = []
    third = trio.Event()
    loop.schedule(3_000, lambda: both(fired.append, "third", third))
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


async def test_real_time_wakes_the_loop() -> None:
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


async def test_a_running_clock_can_be_told_to_jump() -> None:
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


async def test_a_timer_may_schedule_and_cancel_others(loop: Loop) -> None:
    fired: list[str] = []
    done = trio.Event()
    victim = loop.schedule(10, lambda: fired.append("victim"))

    def first() -> None:
        victim.cancel()
        loop.schedule(0, lambda: both(fired.append, "nested", done))

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


async def test_an_exception_of_the_work_is_its_result(loop: Loop) -> None:
    results: list[object] = []
    done = trio.Event()
    loop.run_in_worker(lambda: 1 // 0, lambda result: both(results.append, result, done))
    await done.wait()
    assert isinstance(results[0], ZeroDivisionError)


async def test_threads_are_bounded_and_nothing_is_lost(loop: Loop) -> None:
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


async def test_a_failing_call_is_logged_and_the_loop_lives_on(
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


async def test_other_tasks_run_while_the_loop_is_always_busy(loop: Loop) -> None:
    """What calls itself again and again does not starve signals and other tasks."""

    def again() -> None:
        if not stop:
            loop.call_soon(again)

    stop = False
    again()
    for _ in range(100):
        await trio.lowlevel.checkpoint()
    stop = True


def test_what_has_to_be_secret_is_repeated_with_a_seed_alone() -> None:
    seeded, other, unseeded = Loop(seed=7), Loop(seed=7), Loop()
    try:
        assert seeded.random("sasl").randbytes(18) == other.random("sasl").randbytes(18)
        assert isinstance(unseeded.random("sasl"), random.SystemRandom)
        assert not isinstance(unseeded.random("placement"), random.SystemRandom)
    finally:
        for loop in (seeded, other, unseeded):
            loop.close()


async def test_a_week_is_moved_with_few_looks_and_everything_else_in_its_time(loop: Loop) -> None:
    second_ms, day_ms = 1_000, 24 * 3600 * 1000
    began_ms = loop.monotonic_ms()
    looks: list[int] = []
    days: list[int] = []

    def look() -> None:
        looks.append(loop.monotonic_ms() - began_ms)
        loop.schedule_check(second_ms, look)

    def day() -> None:
        days.append(loop.monotonic_ms() - began_ms)
        loop.schedule(day_ms, day)

    loop.schedule_check(second_ms, look)
    loop.schedule(day_ms, day)
    moved = trio.Event()
    loop.call_soon(lambda: loop.advance(7 * day_ms, moved.set))
    await moved.wait()
    assert days == [day_ms * nth for nth in range(1, 8)]
    assert looks[-1] == 7 * day_ms
    assert len(looks) <= MAX_CHECKS_PER_ADVANCE + 2
    again = trio.Event()
    loop.call_soon(lambda: loop.advance(2 * second_ms, again.set))
    await again.wait()
    assert looks[-2:] == [7 * day_ms + second_ms, 7 * day_ms + 2 * second_ms]


async def test_a_move_that_is_called_off_leaves_looks_as_often_as_they_were(loop: Loop) -> None:
    began_ms = loop.monotonic_ms()
    looks: list[int] = []

    def look() -> None:
        looks.append(loop.monotonic_ms() - began_ms)
        loop.schedule_check(1_000, look)

    loop.schedule_check(1_000, look)
    moved = trio.Event()
    loop.schedule(10**6, loop.stop_advancing)
    loop.call_soon(lambda: loop.advance(10**9, moved.set))
    await moved.wait()
    stopped_ms = loop.monotonic_ms() - began_ms
    assert stopped_ms < 10**9
    again = trio.Event()
    loop.call_soon(lambda: loop.advance(1_000, again.set))
    await again.wait()
    assert stopped_ms <= looks[-1] <= stopped_ms + 1_000
    assert len([at for at in looks if at >= stopped_ms]) in (1, 2)


async def test_a_week_without_time_between_nodes_has_everything_else(loop: Loop) -> None:
    day_ms = 24 * 3600 * 1000
    began_ms, between_ms = loop.monotonic_ms(), loop.internode_clock.monotonic_ms()
    seen: list[str] = []
    loop.schedule(day_ms, lambda: seen.append("a day"))
    loop.internode_clock.schedule(500, lambda: seen.append("nobody answered"))
    moved, off = trio.Event(), trio.Event()
    loop.call_soon(lambda: loop.advance(7 * day_ms, moved.set, advance_internode_clock=False))
    loop.call_soon(
        lambda: loop.advance(7 * day_ms, off.set, advance_internode_clock=False)
    )  # when the first is over
    await moved.wait()
    loop.call_soon(loop.stop_advancing)
    await off.wait()
    assert loop.monotonic_ms() - began_ms >= 7 * day_ms
    assert (loop.internode_clock.monotonic_ms(), seen) == (between_ms, ["a day"])
    both = trio.Event()
    loop.call_soon(lambda: loop.advance(500, both.set))
    await both.wait()
    assert (loop.internode_clock.monotonic_ms(), seen) == (between_ms + 500, ["a day", "nobody answered"])
