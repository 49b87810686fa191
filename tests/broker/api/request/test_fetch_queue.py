"""The queue of delayed Fetches of one connection, on an event loop whose turns the test runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kwire.broker.api.request.fetch_queue import SLICE_MS, FetchQueue
from kwire.broker.api.request.undecided_fetch import UndecidedFetch

FETCHES = 10


class SlowLoop:
    """An event loop, and a queue of Fetches that take 1 ms each to start."""

    def __init__(self) -> None:
        self.queue = FetchQueue()
        self.soon: list[Callable[[], None]] = []
        self.now_ms = 0
        self.started: list[tuple[int, bool]] = []
        """The numbers of the started Fetches, and whether each may wait."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def begin(self) -> UndecidedFetch:
        """Let the first Fetch wait, and queue the others behind it."""
        first = UndecidedFetch(self.queue)
        host: Any = self
        for number in range(FETCHES):
            self.queue.append(partial(self.start, number), host)
        return first

    def start(self, number: int, may_wait: bool) -> None:
        self.now_ms += 1
        self.started.append((number, may_wait))

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


@pytest.fixture
def loop() -> SlowLoop:
    return SlowLoop()


def test_queued_fetches_are_completed_in_several_turns_if_they_take_long(loop: SlowLoop) -> None:
    """A connection may have 512 of them. Meanwhile, the event loop serves other connections."""
    first = loop.begin()
    assert not loop.queue.complete_all()
    assert not first.may_wait
    counts = [len(loop.started)]
    while not loop.queue.complete_all():
        assert len(loop.started) == counts[-1], "this turn has done enough for the connection"
        loop.turn()
        counts.append(len(loop.started))
    assert counts == list(range(SLICE_MS, FETCHES + 1, SLICE_MS))
    assert loop.started == [(number, False) for number in range(FETCHES)]
    loop.turn()
    assert len(loop.started) == FETCHES


def test_fetches_of_a_closed_connection_are_not_started(loop: SlowLoop) -> None:
    loop.begin()
    loop.queue.complete_all()
    loop.queue.clear()
    loop.turn()
    assert len(loop.started) == SLICE_MS
    loop.begin()
    assert not loop.queue.complete_all()
    assert len(loop.started) == 2 * SLICE_MS


def test_next_fetch_starts_once_an_undecided_fetch_has_ended(loop: SlowLoop) -> None:
    first = loop.begin()
    loop.turn()
    assert loop.started == []
    first.end()
    loop.turn()
    assert loop.started == [(0, True)]


def test_undecided_fetch_that_begins_to_wait_keeps_its_place(loop: SlowLoop) -> None:
    first = loop.begin()
    completed: list[bool] = []
    loop.queue.begin_wait(lambda: completed.append(True))
    first.end()
    loop.turn()
    assert loop.started == []
    loop.queue.complete_all()
    assert (completed, first.may_wait) == ([True], True)


def test_queue_of_a_muted_connection_starts_no_fetch(loop: SlowLoop) -> None:
    first = loop.begin()
    loop.queue.is_muted = True
    first.end()
    loop.turn()
    assert loop.started == []
    loop.queue.unmute()
    loop.turn()
    assert loop.started == [(0, True)]


def test_muted_connection_completes_its_fetches_later(loop: SlowLoop) -> None:
    loop.begin()
    loop.queue.is_muted = True
    assert not loop.queue.complete_all()
    loop.turn()
    assert (loop.started, loop.soon) == ([], [])
    loop.queue.unmute()
    while loop.soon:
        loop.turn()
    assert loop.started == [(number, False) for number in range(FETCHES)]
    loop.queue.unmute()
    assert loop.soon == []
