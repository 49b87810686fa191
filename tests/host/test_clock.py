"""The timer queue and the virtual host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kwire.host.clock import QueuedTimer, TimerQueue
from kwire.host.host import Host
from kwire.testing.virtual_host import VirtualHost


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=300), st.integers(0, 60))
def test_timers_fire_in_order_of_deadline_then_of_scheduling(
    entries: list[tuple[int, bool]], now_ms: int
) -> None:
    queue = TimerQueue(lambda: 0)
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


def test_cancel_after_the_call_has_no_effect() -> None:
    queue = TimerQueue(lambda: 0)
    timer = queue.add(1, lambda: None)
    assert queue.pop_due(1) is not None
    timer.cancel()
    assert len(queue) == 0


def test_canceled_timers_do_not_accumulate() -> None:
    queue = TimerQueue(lambda: 0)
    queue.add(10**9, lambda: None)
    for _ in range(100_000):
        queue.add(10**9, lambda: None).cancel()
    assert len(queue._heap) < 1_000
    assert len(queue) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "postpone", "cancel", "wait"]), st.integers(0, 9)), max_size=200
    )
)
def test_postpone_equals_cancel_and_add(steps: list[tuple[str, int]]) -> None:
    """A queue that postpones and a queue that cancels and adds behave alike."""
    now_ms = 0
    postponing, adding = TimerQueue(lambda: now_ms), TimerQueue(lambda: now_ms)
    fired: list[tuple[str, int, int]] = []
    timers: list[tuple[QueuedTimer, QueuedTimer]] = []
    deadlines_ms: list[int | None] = []

    def add_timer(queue: TimerQueue, delay_ms: int, number: int) -> QueuedTimer:
        name = "postponing" if queue is postponing else "adding"

        def due() -> None:
            fired.append((name, number, now_ms))
            deadlines_ms[number] = None

        return queue.add(delay_ms, due)

    for action, number in steps:
        known = number % len(timers) if timers else 0
        if action == "add":
            deadlines_ms.append(now_ms + number)
            timers.append(
                (add_timer(postponing, number, len(timers)), add_timer(adding, number, len(timers)))
            )
        elif action == "wait":
            now_ms += number
            for queue in (postponing, adding):
                wakeup_ms, deadline_ms = queue.wakeup_ms(), queue.next_deadline_ms()
                assert (wakeup_ms is None) == (deadline_ms is None)
                assert wakeup_ms is None or deadline_ms is None or wakeup_ms <= deadline_ms
                while (callback := queue.pop_due(now_ms)) is not None:
                    callback()
        elif timers and action == "cancel":
            deadlines_ms[known] = None
            for timer in timers[known]:
                timer.cancel()
        elif timers:
            old, (moved, other) = deadlines_ms[known], timers[known]
            new = now_ms + number
            assert moved.postpone(number) == (old is not None and new >= old)
            if old is not None and new >= old:
                deadlines_ms[known] = new
                other.cancel()
                timers[known] = (moved, add_timer(adding, number, known))
        assert len(postponing) == len(adding)
        assert postponing.next_deadline_ms() == adding.next_deadline_ms()
    by_queue = {name: [event[1:] for event in fired if event[0] == name] for name in ("postponing", "adding")}
    assert by_queue["postponing"] == by_queue["adding"]


def test_postponed_timer_has_one_heap_entry() -> None:
    now_ms = 0
    queue = TimerQueue(lambda: now_ms)
    timer = queue.add(10, lambda: None)
    for now_ms in range(10_000):
        assert timer.postpone(10)
        assert queue.pop_due(now_ms) is None
    assert len(queue._heap) == 1
    assert queue.next_deadline_ms() == now_ms + 10


def test_fired_or_canceled_timer_cannot_be_postponed() -> None:
    queue = TimerQueue(lambda: 0)
    canceled, fired = queue.add(1, lambda: None), queue.add(1, lambda: None)
    canceled.cancel()
    assert queue.pop_due(1) is not None
    assert not canceled.postpone(5)
    assert not fired.postpone(5)
    assert queue.pop_due(10) is None


def test_virtual_host_makes_each_call_at_its_deadline() -> None:
    virtual = VirtualHost(seed=1, now_ms=1_000)
    host: Host = virtual
    calls: list[tuple[str, int]] = []

    def record(name: str) -> None:
        calls.append((name, host.now_ms()))

    def first() -> None:
        record("a")
        host.schedule(50, lambda: record("a2"))

    host.schedule(500, lambda: record("b"))
    host.schedule(100, first)
    virtual.advance(499)
    assert calls == [("a", 1_100), ("a2", 1_150)]
    virtual.advance(1)
    assert calls[-1] == ("b", 1_500)
    assert host.now_ms() == 1_500
    assert virtual.timers == 0


def test_virtual_host_delivers_work_after_the_requesting_call() -> None:
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


def test_wall_clock_skew_does_not_change_durations() -> None:
    host = VirtualHost(now_ms=1_000)
    due: list[int] = []
    host.schedule(50, lambda: due.append(host.now_ms()))
    host.skew_ms = -300
    host.advance(50)
    assert due == [750]
    assert host.monotonic_ms() == 50
