"""What a machine has for a broker: limits, memory, a clock. First the facts, then what to make of them."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from kwire.cli.doctor.finding import Finding, ok, problem, warning
from kwire.cli.shared.output import format_size

MIN_OPEN_FILES: Final = 4096
"""Open files below which even a small broker may fail: each connection is one, each segment in use three."""
RECOMMENDED_OPEN_FILES: Final = 65_536
MIN_FREE_MEMORY_BYTES: Final = 512 * 1024 * 1024
MIN_PYTHON: Final = (3, 11)
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 1024
"""More than the kernel's `struct timex` has on any machine."""


class MachineFacts(NamedTuple):
    """What was found; None where it cannot be told."""

    python: tuple[int, int]
    platform: str
    cores: int
    open_files: int
    max_open_files: int
    memory_bytes: int | None
    free_memory_bytes: int | None
    is_clock_synchronized: bool | None
    max_backlog: int | None


def gather_facts() -> MachineFacts:
    """The machine that this process runs on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = _memory()
    return MachineFacts(
        python=sys.version_info[:2],
        platform=sys.platform,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        open_files=_unlimited(soft),
        max_open_files=_unlimited(hard),
        memory_bytes=memory.get("MemTotal"),
        free_memory_bytes=memory.get("MemAvailable"),
        is_clock_synchronized=_is_clock_synchronized(),
        max_backlog=_number("/proc/sys/net/core/somaxconn"),
    )


def findings(machine: MachineFacts, backlog: int) -> Iterator[Finding]:
    """What to make of a machine; `backlog` is what the configuration asks listeners for."""
    version = ".".join(map(str, machine.python))
    if machine.platform != "linux":
        yield problem("system", f"this is {machine.platform}", "run the broker on Linux: it waits by epoll")
    if machine.python < MIN_PYTHON:
        yield problem("system", f"Python {version}", "install Python 3.11 or newer")
    else:
        yield ok("system", f"Python {version} on {machine.platform}")
    yield from _files(machine)
    free = machine.free_memory_bytes
    if free is not None and free < MIN_FREE_MEMORY_BYTES:
        yield warning(
            "memory",
            f"{format_size(free)} are free",
            "give the machine more, or stop something: the page cache lives of what is free, and reads of it",
        )
    elif free is not None:
        yield ok("memory", f"{format_size(free)} of {format_size(machine.memory_bytes or free)} are free")
    if machine.cores == 1:
        yield warning("cores", "there is one", "give it two: clients and the kernel want one, too")
    else:
        yield ok("cores", f"{machine.cores}, of which a broker uses one ('kwire cluster' uses more)")
    yield _clock(machine)
    if machine.max_backlog is not None and machine.max_backlog < backlog:
        yield warning(
            "sockets",
            f"{machine.max_backlog} connections may wait, and socket.listen.backlog.size is {backlog}",
            f"sysctl -w net.core.somaxconn={backlog}",
        )


def _files(machine: MachineFacts) -> Iterator[Finding]:
    limit = machine.open_files
    if limit >= RECOMMENDED_OPEN_FILES:
        yield ok("open files", f"up to {limit:,}")
        return
    enough = machine.max_open_files >= RECOMMENDED_OPEN_FILES
    fix = (
        f"ulimit -n {RECOMMENDED_OPEN_FILES} before the start"
        if enough
        else (
            f"raise the hard limit of {machine.max_open_files:,} "
            f"(LimitNOFILE={RECOMMENDED_OPEN_FILES} of its service)"
        )
    )
    make = problem if limit < MIN_OPEN_FILES else warning
    yield make("open files", f"up to {limit:,}, for connections and segments", fix)


def _clock(machine: MachineFacts) -> Finding:
    if machine.is_clock_synchronized is None:
        return ok("clock", "whether it is synchronised cannot be told here")
    if machine.is_clock_synchronized:
        return ok("clock", "the kernel says that it is synchronised")
    return warning(
        "clock",
        "the kernel says that it is not synchronised",
        "run chrony, ntpd or systemd-timesyncd: retention, timestamps and timeouts of transactions go by it",
    )


def _is_clock_synchronized() -> bool | None:
    """By adjtimex(2), which changes nothing where no mode is given."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def _memory() -> dict[str, int]:
    """What the kernel tells of memory, in bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return {}
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if len(line) == 3}


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _unlimited(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
