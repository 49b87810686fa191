"""The functions of the module `time`, safe from libraries that replace them in tests.

The brokers of `kwire.testing` run in the process of a test, and must not stop when the test stops its clock.
freezegun replaces the functions in every loaded module, and finds them by their identity; `unittest.mock`
replaces the attributes of `time`. So this module takes the functions from an instance of `time` of its own.
They are the same C functions, at the same cost.

time-machine replaces the C functions that return the wall clock, in all instances of `time`. `libc_time_ns`
returns the wall clock nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.machinery import BuiltinImporter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import time as _time
else:
    _spec = BuiltinImporter.find_spec("time")
    _time = BuiltinImporter.create_module(_spec)
    BuiltinImporter.exec_module(_time)

localtime = _time.localtime
monotonic = _time.monotonic
monotonic_ns = _time.monotonic_ns
perf_counter = _time.perf_counter
sleep = _time.sleep
strftime = _time.strftime


def libc_time_ns() -> int:
    """Return the wall clock in ns since 1970, as `time.time_ns` does, but ten times as slowly (0.5 µs)."""
    return _libc_clock()()


@cache
def _libc_clock() -> Callable[[], int]:
    import ctypes  # 2 ms, which `kwire` on the command line does not need

    class TimeSpec(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    clock_gettime, byref = ctypes.PyDLL(None).clock_gettime, ctypes.byref
    realtime = _time.CLOCK_REALTIME

    def time_ns() -> int:
        now = TimeSpec()  # a new one each time, because several threads read the clock
        clock_gettime(realtime, byref(now))
        return int(now.seconds * 1_000_000_000 + now.nanoseconds)

    return time_ns
