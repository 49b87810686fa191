"""Checks of the machine: resource limits, memory, cores and clock."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final, NamedTuple

from kwire.cli.doctor.finding import Finding, ok, problem, warning
from kwire.cli.shared.output import format_size
from kwire.host.platform.processes import MAX_OPEN_FILES, open_file_limits
from kwire.wire.record_scan import IMPLEMENTATION

MIN_OPEN_FILES: Final = 4096
"""Limit below which even a small broker may fail: one file per connection, three per active segment."""
RECOMMENDED_OPEN_FILES: Final = 65_536
MIN_FREE_MEMORY_BYTES: Final = 512 * 1024 * 1024
MIN_PYTHON: Final = (3, 11)
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 1024
"""More than the size of the kernel's `struct timex` on any architecture."""


class MachineFacts(NamedTuple):
    """Facts about a machine; None if unknown."""

    python: tuple[int, int]
    platform: str
    cores: int
    max_open_files: int
    """The limit to which `kwire serve` raises its own limit."""
    memory_bytes: int | None
    free_memory_bytes: int | None
    is_clock_synchronized: bool | None
    max_backlog: int | None
    record_validation: str
    """The language of the record scan: native or Python."""
    has_re2: bool
    """Whether google-re2 is installed, which regular expressions of clients need."""


def gather_facts() -> MachineFacts:
    """Return the facts about this machine."""
    memory = _memory()
    return MachineFacts(
        python=sys.version_info[:2],
        platform=sys.platform,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        max_open_files=open_file_limits()[1],
        memory_bytes=memory.get("MemTotal"),
        free_memory_bytes=memory.get("MemAvailable"),
        is_clock_synchronized=_is_clock_synchronized(),
        max_backlog=_number("/proc/sys/net/core/somaxconn"),
        record_validation=IMPLEMENTATION,
        has_re2=find_spec("re2") is not None,
    )


def findings(machine: MachineFacts, backlog: int) -> Iterator[Finding]:
    """Check a machine; `backlog` is the configured socket.listen.backlog.size."""
    version = ".".join(map(str, machine.python))
    if machine.platform not in ("linux", "darwin"):
        yield problem("system", f"this is {machine.platform}", "run the broker on Linux or macOS")
    if machine.python < MIN_PYTHON:
        yield problem("system", f"Python {version}", "install Python 3.11 or newer")
    else:
        yield ok("system", f"Python {version} on {machine.platform}")
    if machine.record_validation == "native":
        yield ok("records", "validated by native code")
    else:
        yield warning(
            "records",
            "validated in Python, so a produced record costs the broker several times as much processor time",
            "install the wheel for this system, or install a C compiler and kwire's source package",
        )
    if not machine.has_re2:
        yield warning(
            "regex",
            "the package google-re2 is missing: subscriptions with a SubscribedTopicRegex get "
            "INVALID_REGULAR_EXPRESSION",
            "pip install 'kwire[regex]'",
        )
    yield from _files(machine)
    free = machine.free_memory_bytes
    if free is not None and free < MIN_FREE_MEMORY_BYTES:
        yield warning(
            "memory",
            f"{format_size(free)} free",
            "add memory, or stop other programs: reads are fast while the page cache holds the data",
        )
    elif free is not None:
        yield ok("memory", f"{format_size(free)} of {format_size(machine.memory_bytes or free)} free")
    if machine.cores == 1:
        yield warning("cores", "only one", "use two: clients and the kernel need one as well")
    else:
        yield ok("cores", f"{machine.cores}, of which one broker uses one ('kwire cluster' can use more)")
    yield _clock(machine)
    if machine.max_backlog is not None and machine.max_backlog < backlog:
        yield warning(
            "sockets",
            f"the kernel limits backlogs to {machine.max_backlog}, socket.listen.backlog.size is {backlog}",
            f"sysctl -w net.core.somaxconn={backlog}",
        )


def _files(machine: MachineFacts) -> Iterator[Finding]:
    limit = machine.max_open_files
    if limit >= min(RECOMMENDED_OPEN_FILES, MAX_OPEN_FILES):
        yield ok("open files", f"up to {limit:,}")
        return
    make = problem if limit < MIN_OPEN_FILES else warning
    yield make(
        "open files",
        f"up to {limit:,}, for connections and segments",
        f"raise the hard limit (as root 'ulimit -n {RECOMMENDED_OPEN_FILES}', or LimitNOFILE="
        f"{RECOMMENDED_OPEN_FILES} in its systemd unit)",
    )


def _clock(machine: MachineFacts) -> Finding:
    if machine.is_clock_synchronized is None:
        return ok("clock", "synchronization is unknown on this system")
    if machine.is_clock_synchronized:
        return ok("clock", "synchronized, according to the kernel")
    return warning(
        "clock",
        "not synchronized, according to the kernel",
        "run chrony, ntpd or systemd-timesyncd: retention and record timestamps use the clock",
    )


def _is_clock_synchronized() -> bool | None:
    """Return what adjtimex(2) reports; None if unknown. Without a mode, the call changes nothing."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def _memory() -> dict[str, int]:
    """Return the values of /proc/meminfo in bytes."""
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
