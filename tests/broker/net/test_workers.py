"""Threads for blocking work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from kwire.broker.net.workers import run_all

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
