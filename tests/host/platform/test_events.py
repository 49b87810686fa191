"""The poller, its timer and its wake-up: epoll on Linux, kqueue on macOS and on the imitation of it."""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from kwire.host.platform.events import (
    LOST,
    READABLE,
    WRITABLE,
    LoopTimer,
    Poller,
    new_poller,
    open_wakeup,
    read_wakeup,
    write_wakeup,
)
from kwire.host.system_os import os

FOREVER = -1


@pytest.fixture
def poller_and_timer() -> Iterator[tuple[Poller, LoopTimer]]:
    poller, timer = new_poller()
    yield poller, timer
    timer.close()
    poller.close()


@pytest.fixture
def poller(poller_and_timer: tuple[Poller, LoopTimer]) -> Poller:
    return poller_and_timer[0]


@pytest.fixture
def timer(poller_and_timer: tuple[Poller, LoopTimer]) -> LoopTimer:
    return poller_and_timer[1]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    with left, right:
        yield left, right


Pair = tuple[socket.socket, socket.socket]


def test_events_have_the_values_of_epoll() -> None:
    if sys.platform == "linux":
        assert (READABLE, WRITABLE) == (select.EPOLLIN, select.EPOLLOUT)
        assert LOST == select.EPOLLERR | select.EPOLLHUP


def test_events_are_reported_as_long_as_they_are_ready(poller: Poller, pair: Pair) -> None:
    left, right = pair
    poller.register(left.fileno(), READABLE)
    assert poller.poll(0, 10) == []
    right.sendall(b"x")
    assert [poller.poll(FOREVER, 10) for _ in range(2)] == [[(left.fileno(), READABLE)]] * 2
    left.recv(1)
    assert poller.poll(0, 10) == []


def test_events_of_one_descriptor_are_reported_together(poller: Poller, pair: Pair) -> None:
    left, right = pair
    poller.register(left.fileno(), READABLE | WRITABLE)
    assert poller.poll(FOREVER, 10) == [(left.fileno(), WRITABLE)]
    right.sendall(b"x")
    assert select.select([left], [], [])[0]
    assert poller.poll(FOREVER, 10) == [(left.fileno(), READABLE | WRITABLE)]


def test_mask_selects_the_events(poller: Poller, pair: Pair) -> None:
    left, right = pair
    right.sendall(b"x")
    assert select.select([left], [], [])[0]
    found = []
    poller.register(left.fileno(), 0)
    for mask in (0, READABLE, WRITABLE, READABLE | WRITABLE, 0, WRITABLE):
        poller.modify(left.fileno(), mask)
        found.append(dict(poller.poll(0, 10)).get(left.fileno(), 0))
    assert found == [0, READABLE, WRITABLE, READABLE | WRITABLE, 0, WRITABLE]
    poller.unregister(left.fileno())
    assert poller.poll(0, 10) == []


def test_descriptor_can_be_watched_again_after_another_had_its_number(poller: Poller, pair: Pair) -> None:
    left, right = pair
    duplicate = os.dup(left.fileno())
    poller.register(duplicate, READABLE | WRITABLE)
    poller.unregister(duplicate)
    os.close(duplicate)
    again = os.dup(right.fileno())
    assert again == duplicate
    try:
        poller.register(again, READABLE)
        assert poller.poll(0, 10) == []
        left.sendall(b"x")
        assert poller.poll(FOREVER, 10) == [(again, READABLE)]
    finally:
        poller.unregister(again)
        os.close(again)


def test_unknown_descriptor_is_an_error(poller: Poller, pair: Pair) -> None:
    with pytest.raises((OSError, KeyError)):
        poller.modify(1000, READABLE)
    with pytest.raises((OSError, KeyError)):
        poller.unregister(1000)
    closed = os.dup(pair[0].fileno())
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        poller.register(closed, READABLE)


def test_end_of_a_stream_is_readable(poller: Poller, pair: Pair) -> None:
    left, right = pair
    poller.register(left.fileno(), READABLE)
    right.shutdown(socket.SHUT_WR)
    assert poller.poll(FOREVER, 10) == [(left.fileno(), READABLE)]
    assert left.recv(1) == b""


def test_reset_connection_is_reported_as_lost_while_only_writes_are_watched(
    poller: Poller, pair: Pair
) -> None:
    left, right = pair
    left.sendall(b"unread data turns the end into a reset")
    assert select.select([right], [], [])[0]
    right.close()
    assert select.select([left], [], [])[0]
    poller.register(left.fileno(), WRITABLE)
    [(fd, found)] = poller.poll(FOREVER, 10)
    assert fd == left.fileno()
    assert found & WRITABLE
    assert found & LOST


def test_number_of_events_is_limited(poller: Poller, pair: Pair) -> None:
    for sock in pair:
        poller.register(sock.fileno(), WRITABLE)
    assert len(poller.poll(FOREVER, 1)) == 1
    assert len(poller.poll(FOREVER, 2)) == 2


def test_poller_itself_is_a_descriptor_that_can_be_waited_for(poller: Poller, pair: Pair) -> None:
    left, right = pair
    poller.register(left.fileno(), READABLE)
    assert select.select([poller.fileno()], [], [], 0) == ([], [], [])
    right.sendall(b"x")
    assert select.select([poller.fileno()], [], [])[0] == [poller.fileno()]


def test_timer_is_reported_once_when_it_has_expired(poller: Poller, timer: LoopTimer) -> None:
    timer.arm(1)
    assert poller.poll(FOREVER, 10) == [(timer.fd, READABLE)]
    timer.consume()
    assert poller.poll(0, 10) == []


@pytest.mark.parametrize("delay_ms", [0, -5])
def test_timer_without_a_delay_expires_at_once(poller: Poller, timer: LoopTimer, delay_ms: int) -> None:
    timer.arm(delay_ms)
    assert poller.poll(FOREVER, 10) == [(timer.fd, READABLE)]


def test_later_arming_replaces_an_earlier_one(poller: Poller, timer: LoopTimer) -> None:
    timer.arm(1)
    timer.arm(3_600_000)
    assert poller.poll(0.02, 10) == []
    timer.arm(1)
    assert poller.poll(FOREVER, 10) == [(timer.fd, READABLE)]


def test_expired_timer_makes_the_poller_readable(poller: Poller, timer: LoopTimer) -> None:
    timer.arm(1)
    assert select.select([poller.fileno()], [], [])[0] == [poller.fileno()]


def test_another_thread_wakes_up_the_poller(poller: Poller) -> None:
    reader, writer = open_wakeup()
    try:
        poller.register(reader, READABLE)
        thread = threading.Thread(target=write_wakeup, args=(writer, 1))
        thread.start()
        assert poller.poll(FOREVER, 10) == [(reader, READABLE)]
        thread.join()
        read_wakeup(reader)
        assert poller.poll(0, 10) == []
        read_wakeup(reader)  # there is nothing to read
    finally:
        poller.unregister(reader)
        for fd in {reader, writer}:
            os.close(fd)


def test_wakeups_never_block(poller: Poller) -> None:
    reader, writer = open_wakeup()
    try:
        poller.register(reader, READABLE)
        for _ in range(100_000):  # more than a pipe holds
            write_wakeup(writer, 1)
        assert poller.poll(FOREVER, 10) == [(reader, READABLE)]
        read_wakeup(reader)
        assert poller.poll(0, 10) == []
    finally:
        poller.unregister(reader)
        for fd in {reader, writer}:
            os.close(fd)
