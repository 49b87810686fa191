"""Threads for blocking work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from kwire.broker.net.workers import Workers, run_all

SECONDS = 10


def test_run_all_returns_after_the_last_function() -> None:
    done: list[int] = []
    run_all((lambda number=number: done.append(number) for number in range(100)), 4)  # type: ignore[misc]
    assert sorted(done) == list(range(100))


def test_run_all_uses_several_threads_and_takes_functions_only_when_needed() -> None:
    together = threading.Barrier(4)
    ended = 0
    most_ahead = 0

    def meet() -> None:
        nonlocal ended
        together.wait(SECONDS)  # breaks unless four threads run at the same time
        ended += 1

    def works() -> Iterator[Callable[[], None]]:
        nonlocal most_ahead
        for taken in range(1, 41):
            most_ahead = max(most_ahead, taken - ended)
            yield meet

    run_all(works(), 4)
    assert ended == 40
    assert most_ahead <= 2 * 4 + 1


class NoThreads:
    """A system that has no memory for another thread, or no thread id, for some attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, attempts: int) -> None:
        self.attempts = attempts
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._start_or_fail(thread))

    def _start_or_fail(self, thread: threading.Thread) -> None:
        self.attempts -= 1
        if self.attempts >= 0:
            raise RuntimeError("can't start new thread")
        self._start(thread)


def test_run_all_without_memory_for_threads_runs_in_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    NoThreads(monkeypatch, 1000)
    idents: list[int] = []
    run_all((lambda: idents.append(threading.get_ident()) for _ in range(5)), 4)
    assert idents == [threading.get_ident()] * 5


def test_work_waits_until_a_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    retries: list[Callable[[], None]] = []
    results: SimpleQueue[object] = SimpleQueue()
    workers = Workers(2, lambda done, result: results.put(result), retry=retries.append)
    system = NoThreads(monkeypatch, 3)
    workers.run(lambda: "first", lambda result: None)
    workers.run(lambda: "second", lambda result: None)
    assert len(retries) == 1
    retries.pop()()
    assert len(retries) == 1
    assert results.empty()
    retries.pop()()
    assert [results.get(timeout=SECONDS) for _ in range(2)] == ["first", "second"]
    system.attempts = 1000
    workers.run(lambda: "third", lambda result: None)
    assert results.get(timeout=SECONDS) == "third"
    workers.in_progress = 0
    workers.close()


def test_run_all_calls_a_function_while_it_waits() -> None:
    """A worker may wait for a descriptor that only this thread can free."""
    freed = threading.Event()
    done: list[bool] = []
    run_all([lambda: done.append(freed.wait(SECONDS))] * 20, 2, freed.set)
    assert done == [True] * 20


def test_run_all_without_functions_starts_no_thread() -> None:
    before = threading.active_count()
    run_all(iter(()), 4)
    assert threading.active_count() == before


def test_run_all_uses_this_thread_if_the_system_permits_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    done: list[int] = []
    run_all((lambda number=number: done.append(number) for number in range(20)), 4)  # type: ignore[misc]
    assert done == list(range(20))


def test_run_all_raises_an_exception_after_all_other_functions_have_ended() -> None:
    done: list[int] = []

    def fail() -> None:
        raise MemoryError

    works: list[Callable[[], None]] = [fail] * 20
    with pytest.raises(MemoryError):
        run_all([*works, lambda: done.append(1)], 4)
    assert done == [1]
