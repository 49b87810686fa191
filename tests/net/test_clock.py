"""The queue of timers, and the host on virtual time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.clock import TimerQueue
from broker.host import Host
from broker.testing.virtual import VirtualHost


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=300), st.integers(0, 60))
def test_what_is_due_comes_in_order_of_deadline_then_of_scheduling(
    entries: list[tuple[int, bool]], now_ms: int
) -> None:
    queue = TimerQueue()
    fired: list[int] = []
    timers = [queue.add(deadline, lambda i=i: fired.append(i)) for i, (deadline, _) in enumerate(entries)]  # type: ignore[misc]
    for timer, (_, cancelled) in zip(timers, entries, strict=True):
        if cancelled:
            timer.cancel()
            timer.cancel()
    kept = [(deadline, i) for i, (deadline, cancelled) in enumerate(entries) if not cancelled]
    assert len(queue) == len(kept)
    while (callback := queue.pop_due(now_ms)) is not None:
        callback()
    assert fired == [i for deadline, i in sorted(kept) if deadline <= now_ms]
    later = [deadline for deadline, _ in kept if deadline > now_ms]
    assert queue.next_deadline_ms() == (min(later) if later else None)
    assert len(queue) == len(later)


def test_cancelling_after_the_call_changes_nothing() -> None:
    queue = TimerQueue()
    timer = queue.add(1, lambda: None)
    assert queue.pop_due(1) is not None
    timer.cancel()
    assert len(queue) == 0


def test_dead_timers_do_not_gather() -> None:
    queue = TimerQueue()
    queue.add(10**9, lambda: None)
    for _ in range(100_000):
        queue.add(10**9, lambda: None).cancel()
    assert queue.heap_size < 1_000
    assert len(queue) == 1


def test_virtual_time_makes_each_call_at_its_own_moment() -> None:
    virtual = VirtualHost(seed=1, now_ms=1_000)
    host: Host = virtual
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, host.now_ms()))

    def first() -> None:
        note("a")
        host.schedule(50, lambda: note("a2"))

    host.schedule(500, lambda: note("b"))
    host.schedule(100, first)
    virtual.advance(499)
    assert seen == [("a", 1_100), ("a2", 1_150)]
    virtual.advance(1)
    assert seen[-1] == ("b", 1_500)
    assert host.now_ms() == 1_500
    assert virtual.timers == 0


def test_virtual_work_is_delivered_after_the_call_that_asked_for_it() -> None:
    virtual = VirtualHost()
    results: list[object] = []
    turns: list[int] = []
    virtual.end_turn = lambda: turns.append(len(results))
    virtual.run_in_worker(lambda: 7, results.append)
    virtual.run_in_worker(lambda: [][0], results.append)
    virtual.call_soon(lambda: results.append("soon"))
    assert results == []
    virtual.run_pending()
    assert results[0] == 7
    assert isinstance(results[1], IndexError)
    assert results[2] == "soon"
    assert turns == [1, 2, 3]
