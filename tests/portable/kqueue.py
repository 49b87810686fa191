"""An emulation of kqueue on epoll, with its own descriptor, for the modules of kwire.

It has the filters for reading, writing and timers, and the flags that are listed below. Events are
level-triggered. As in kqueue, a closed descriptor loses its filters, and a forked process has no kqueue.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
import termios
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from tests.portable import real_calls

assert sys.platform == "linux"

KQ_FILTER_READ = -1
KQ_FILTER_WRITE = -2
KQ_FILTER_TIMER = -7
KQ_EV_ADD = 0x0001
KQ_EV_DELETE = 0x0002
KQ_EV_ENABLE = 0x0004
KQ_EV_DISABLE = 0x0008
KQ_EV_ONESHOT = 0x0010
KQ_EV_CLEAR = 0x0020
KQ_EV_ERROR = 0x4000
KQ_EV_EOF = 0x8000

_EMULATED = KQ_EV_ADD | KQ_EV_DELETE | KQ_EV_ENABLE | KQ_EV_DISABLE | KQ_EV_ONESHOT
_LOST = select.EPOLLHUP | select.EPOLLERR
_DIRECTIONS = {
    KQ_FILTER_READ: (select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLRDHUP | _LOST),
    KQ_FILTER_WRITE: (select.EPOLLOUT, _LOST),
}
"""The events of epoll for each filter, and those of them that are EV_EOF."""
_SIOCOUTQ = termios.TIOCOUTQ


class kevent:
    """A change of a filter, or an event."""

    def __init__(
        self,
        ident: Any,
        filter: int = KQ_FILTER_READ,
        flags: int = KQ_EV_ADD,
        fflags: int = 0,
        data: int = 0,
        udata: int = 0,
    ) -> None:
        self.ident: int = ident if isinstance(ident, int) else ident.fileno()
        self.filter, self.flags, self.fflags, self.data, self.udata = filter, flags, fflags, data, udata

    def __repr__(self) -> str:
        return f"kevent(ident={self.ident}, filter={self.filter}, flags={self.flags:#x}, data={self.data})"


class _Filter:
    def __init__(self, event: kevent) -> None:
        self.is_enabled = not event.flags & KQ_EV_DISABLE
        self.is_oneshot = bool(event.flags & KQ_EV_ONESHOT)


class _Descriptor:
    """The filters of one open file."""

    def __init__(self, identity: tuple[int, int]) -> None:
        self.identity = identity
        self.filters: dict[int, _Filter] = {}
        self.mask = 0
        """The mask in the epoll; 0 if the epoll does not have this descriptor."""


class kqueue:
    """A queue of events."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._descriptors: dict[int, _Descriptor] = {}
        self._timers: dict[int, tuple[int, Any, _Filter]] = {}
        """The number, the timer and the filter of each timer, by the descriptor of the timer."""
        self._free_timers: dict[int, Any] = {}
        """Unused timers by descriptor. There is always one, because a timer of kqueue needs no descriptor."""
        self._add_free_timer()
        _ALL.add(self)

    @property
    def closed(self) -> bool:
        return self._epoll.closed

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()
        for timer in (*self._free_timers.values(), *(timer for _, timer, _ in self._timers.values())):
            timer.close()
        self._timers.clear()
        self._free_timers.clear()

    def control(
        self, changelist: Iterable[kevent] | None, max_events: int, timeout: float | None = None, /
    ) -> list[kevent]:
        """Apply changes, and return up to `max_events` events after waiting up to `timeout` seconds."""
        if self.closed:
            raise ValueError("I/O operation on closed kqueue object")
        if max_events < 0:
            raise ValueError(f"Length of eventlist must be 0 or positive, got {max_events}")
        if timeout is not None and timeout < 0:
            raise ValueError("timeout must be positive or None")
        events: list[kevent] = []
        for change in changelist or ():
            try:
                self._apply(change)
            except OSError as error:
                if len(events) == max_events:
                    raise
                events.append(kevent(change.ident, change.filter, KQ_EV_ERROR, data=error.errno or 0))
        if events or not max_events:
            return events
        for fd, mask in self._epoll.poll(-1 if timeout is None else timeout, max_events):
            for event in self._events(fd, mask):
                events.append(event)
                if len(events) == max_events:
                    return events
        return events

    def _apply(self, change: kevent) -> None:
        if change.flags & ~_EMULATED:
            raise NotImplementedError(f"flags {change.flags:#x}")
        if change.filter == KQ_FILTER_TIMER:
            self._apply_timer(change)
            return
        if change.filter not in _DIRECTIONS:
            raise NotImplementedError(f"filter {change.filter}")
        identity = _identity(change.ident)
        found = self._descriptors.get(change.ident)
        if found is None or found.identity != identity:
            found = self._descriptors[change.ident] = _Descriptor(identity)
        if change.flags & KQ_EV_ADD:
            found.filters[change.filter] = _Filter(change)
        elif change.filter not in found.filters:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        elif change.flags & KQ_EV_DELETE:
            del found.filters[change.filter]
        elif change.flags & (KQ_EV_ENABLE | KQ_EV_DISABLE):
            found.filters[change.filter].is_enabled = bool(change.flags & KQ_EV_ENABLE)
        self._update(change.ident, found)

    def _update(self, fd: int, descriptor: _Descriptor) -> None:
        mask = 0
        for kind, found in descriptor.filters.items():
            if found.is_enabled:
                mask |= _DIRECTIONS[kind][0]
        if mask and not descriptor.mask:
            self._epoll.register(fd, mask)
        elif mask:
            self._epoll.modify(fd, mask)
        elif descriptor.mask:
            self._epoll.unregister(fd)  # with an empty mask, epoll would still report a lost connection
        descriptor.mask = mask
        if not descriptor.filters:
            del self._descriptors[fd]

    def _add_free_timer(self) -> None:
        from kwire.host.platform.timerfd import TimerFd

        timer = TimerFd()
        self._epoll.register(timer.fd, select.EPOLLIN)
        self._free_timers[timer.fd] = timer

    def _apply_timer(self, change: kevent) -> None:
        fd, timer = next(
            ((fd, timer) for fd, (ident, timer, _) in self._timers.items() if ident == change.ident),
            (-1, None),
        )
        if change.flags & KQ_EV_ADD:
            if not change.flags & KQ_EV_ONESHOT:
                raise NotImplementedError("periodic timers")
            if timer is None:
                if not self._free_timers:
                    self._add_free_timer()
                fd, timer = self._free_timers.popitem()
            self._timers[fd] = change.ident, timer, _Filter(change)
            timer.arm(change.data)
        elif timer is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        elif change.flags & KQ_EV_DELETE:
            self._remove_timer(fd)
        else:
            raise NotImplementedError(f"flags {change.flags:#x} of a timer")

    def _remove_timer(self, fd: int) -> None:
        self._free_timers[fd] = self._timers.pop(fd)[1]

    def _events(self, fd: int, mask: int) -> Iterator[kevent]:
        if fd in self._timers:
            ident, timer, _ = self._timers[fd]
            timer.consume()
            self._remove_timer(fd)
            yield kevent(ident, KQ_FILTER_TIMER, KQ_EV_ADD | KQ_EV_ONESHOT, data=1)
            return
        if fd in self._free_timers:
            self._free_timers[fd].consume()
            return
        descriptor = self._descriptors.get(fd)
        if descriptor is None:
            return
        for kind, (ready, at_end) in _DIRECTIONS.items():
            found = descriptor.filters.get(kind)
            if found is None or not found.is_enabled or not mask & (ready | at_end):
                continue
            flags = KQ_EV_ADD | (KQ_EV_EOF if mask & at_end else 0)
            if found.is_oneshot:
                del descriptor.filters[kind]
                self._update(fd, descriptor)
            yield kevent(fd, kind, flags, data=_readable(fd) if kind == KQ_FILTER_READ else _writable(fd))


def _identity(fd: int) -> tuple[int, int]:
    """Return what distinguishes an open file from a later one with the same number. Raises OSError."""
    found = real_calls.posix.fstat(fd)
    return found.st_dev, found.st_ino


def _readable(fd: int) -> int:
    """Return the number of bytes that can be read, or 1 for a listening socket."""
    try:
        return int(struct.unpack("i", real_calls.fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0])
    except OSError:
        return 1


def _writable(fd: int) -> int:
    """Return the number of free bytes in the send buffer, which is about that of the kernel."""
    try:
        used = int(struct.unpack("i", real_calls.fcntl.ioctl(fd, _SIOCOUTQ, bytes(4)))[0])
        duplicate = real_calls.Socket(fileno=real_calls.posix.dup(fd))
    except OSError:
        return 1
    try:
        return max(0, int(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)) - used)
    finally:
        duplicate.close()


_ALL: weakref.WeakSet[kqueue] = weakref.WeakSet()


def _close_in_forked_process() -> None:
    for queue in _ALL:
        queue.close()


kevent.__module__ = kqueue.__module__ = "select"
os.register_at_fork(after_in_child=_close_in_forked_process)
