"""Pollers, timers and wake-ups of an event loop: epoll, timerfd and eventfd, or kqueue and a pipe.

On Linux, the poller is the epoll object itself. kqueue has a separate filter for each direction of a
descriptor, and a filter for timers.

A descriptor without events in its mask differs: epoll still reports that its connection was reset, but
kqueue does not. The loop then notices the reset when it sends or receives again.
"""

from __future__ import annotations

import select
import sys
from typing import Final, Protocol

from kwire.host.system_os import os

READABLE: Final = 0x001
WRITABLE: Final = 0x004
LOST: Final = 0x018
"""Events of a poller, with the values of EPOLLIN, EPOLLOUT, and EPOLLERR | EPOLLHUP."""


class Poller(Protocol):
    """A set of watched descriptors, with the interface of epoll. All events are level-triggered."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Watch a descriptor for READABLE and WRITABLE. LOST is reported with any mask."""

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Change the mask of a watched descriptor."""

    def unregister(self, fd: int, /) -> None:
        """Stop watching a descriptor."""

    def poll(self, timeout: float, maxevents: int, /) -> list[tuple[int, int]]:
        """Return ready descriptors with their events. A negative timeout (in seconds) waits without limit."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while any event is ready."""

    def close(self) -> None: ...


class LoopTimer(Protocol):
    """The timer of a poller."""

    fd: int
    """The number under which the poller reports that the timer has expired."""

    def arm(self, delay_ms: int) -> None:
        """Expire after `delay_ms`, or at once if that is not positive. This replaces an earlier arming."""

    def consume(self) -> None:
        """Stop the poller from reporting the timer, after it has expired."""

    def close(self) -> None: ...


if sys.platform == "darwin":
    _FILTERS: Final = ((READABLE, select.KQ_FILTER_READ), (WRITABLE, select.KQ_FILTER_WRITE))
    _TIMER: Final = -1
    """The number of the timer, which is no descriptor."""

    class KqueuePoller:
        """A poller that waits on kqueue."""

        def __init__(self) -> None:
            self.kqueue = select.kqueue()
            self._masks: dict[int, int] = {}

        def register(self, fd: int, eventmask: int, /) -> None:
            self._change(fd, 0, eventmask)
            self._masks[fd] = eventmask

        def modify(self, fd: int, eventmask: int, /) -> None:
            self._change(fd, self._masks[fd], eventmask)
            self._masks[fd] = eventmask

        def unregister(self, fd: int, /) -> None:
            self._change(fd, self._masks.pop(fd), 0)

        def _change(self, fd: int, before: int, after: int) -> None:
            changes = [
                select.kevent(fd, kind, select.KQ_EV_ADD if after & event else select.KQ_EV_DELETE)
                for event, kind in _FILTERS
                if (before ^ after) & event
            ]
            if changes:
                self.kqueue.control(changes, 0)

        def poll(self, timeout: float, maxevents: int, /) -> list[tuple[int, int]]:
            ready: dict[int, int] = {}
            for event in self.kqueue.control(None, maxevents, None if timeout < 0 else timeout):
                fd, found = event.ident, READABLE
                if event.filter == select.KQ_FILTER_WRITE:
                    found = WRITABLE | LOST if event.flags & select.KQ_EV_EOF else WRITABLE
                elif event.filter == select.KQ_FILTER_TIMER:
                    fd = _TIMER
                ready[fd] = ready.get(fd, 0) | found
            return list(ready.items())

        def fileno(self) -> int:
            return self.kqueue.fileno()

        def close(self) -> None:
            self.kqueue.close()

    class KqueueTimer:
        """A one-shot timer of a kqueue. The kqueue removes the timer when it reports the expiry."""

        fd = _TIMER

        def __init__(self, kqueue: select.kqueue) -> None:
            self._kqueue = kqueue

        def arm(self, delay_ms: int) -> None:
            flags = select.KQ_EV_ADD | select.KQ_EV_ONESHOT
            event = select.kevent(0, select.KQ_FILTER_TIMER, flags, data=max(1, delay_ms))
            self._kqueue.control([event], 0)

        def consume(self) -> None:
            return

        def close(self) -> None:
            return

    def new_poller() -> tuple[Poller, LoopTimer]:
        """Return a poller and its timer."""
        poller = KqueuePoller()
        return poller, KqueueTimer(poller.kqueue)

    def open_wakeup() -> tuple[int, int]:
        """Return the descriptor that wakes up a poller, and the one that `write_wakeup` writes to."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        return reader, writer

    def write_wakeup(fd: int, count: int, /) -> None:
        """Wake up the poller. Any thread may call this. `count` is 1."""
        try:
            os.write(fd, b"\0")
        except BlockingIOError:
            pass  # the pipe is full, so the poller wakes up anyway

    def read_wakeup(fd: int) -> None:
        """Make the descriptor unreadable again."""
        try:
            os.read(fd, 1 << 16)
        except BlockingIOError:
            pass

elif sys.platform == "linux":
    from kwire.host.platform.timerfd import TimerFd

    def new_poller() -> tuple[Poller, LoopTimer]:
        """Return a poller and its timer."""
        poller, timer = select.epoll(256), TimerFd()
        poller.register(timer.fd, select.EPOLLIN)
        return poller, timer

    def open_wakeup() -> tuple[int, int]:
        """Return the descriptor that wakes up a poller, and the one that `write_wakeup` writes to."""
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return fd, fd

    write_wakeup = os.eventfd_write

    def read_wakeup(fd: int) -> None:
        """Make the descriptor unreadable again."""
        try:
            os.eventfd_read(fd)
        except BlockingIOError:
            pass
