"""A timer as a file descriptor, so that one epoll waits for sockets and timers.

Python supports timerfd only from 3.13 on. Arming the timer takes about a microsecond, a third of the cost of
a trio cancel scope per turn. The loop arms it only for a deadline that is earlier than the armed one.
"""

from __future__ import annotations

import ctypes
import time

from kwire.host.system_os import os

_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class TimerFd:
    """A descriptor that becomes readable when the armed time has passed."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _TimerSpec()
        self._spec_pointer = ctypes.byref(self._spec)

    def arm(self, delay_ms: int) -> None:
        """Expire after `delay_ms`, or at once if that is not positive. This replaces an earlier arming."""
        value = self._spec.value
        if delay_ms > 0:
            value.seconds, rest_ms = divmod(delay_ms, 1000)
            value.nanoseconds = rest_ms * 1_000_000
        else:
            value.seconds = 0
            value.nanoseconds = 1  # zero would disarm the timer
        if self._libc.timerfd_settime(self.fd, 0, self._spec_pointer, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def consume(self) -> None:
        """Make the descriptor unreadable again after the timer has expired."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.fd)
