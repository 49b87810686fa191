"""The CPU time, arguments, priorities and limits of processes."""

from __future__ import annotations

import resource
import select
import sys
from contextlib import suppress
from typing import Final

from kwire.host.system_os import os

if sys.platform == "darwin":
    OPEN_FILES: Final = "/dev/fd"
    """The directory with the descriptors of the calling process."""
    SHARED_MEMORY: Final = ""
    """The directory of files in memory; empty if there is none."""
    MAX_OPEN_FILES: Final = 10_240
    """OPEN_MAX. setrlimit permits no higher soft limit of descriptors, even if the hard limit is higher."""

    def cpu_seconds(pid: int) -> float | None:
        """Return the CPU time of a process; None if it is unknown."""
        return None

    def has_argument(pid: int, argument: str) -> bool:
        """Return whether a process runs and has this argument, a path.

        `ps` may show characters beyond ASCII in another form. Then only the name of the file is compared.
        """
        import subprocess  # a late import, because it takes 3 ms

        command = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
        try:
            shown = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError:
            return False
        return (argument if argument.isascii() else argument.rpartition("/")[2]) in shown.stdout

    def yield_to_others() -> None:
        """Keep this process from preempting others, where the system supports that."""

    def run_when_idle() -> None:
        """Run this thread only when a processor is idle, where the system supports that."""

    def watch_process(poll: select.poll, pid: int) -> float | None:
        """Make `poll` return when a process ends.

        Returns None, or the interval in ms at which the caller must check the process, if the system does not
        support this.
        """
        return 1_000

elif sys.platform == "linux":
    OPEN_FILES: Final = "/proc/self/fd"
    """The directory with the descriptors of the calling process."""
    SHARED_MEMORY: Final = "/dev/shm"
    """The directory of files in memory; empty if there is none."""
    MAX_OPEN_FILES: Final = sys.maxsize
    """The highest soft limit of descriptors that setrlimit permits."""

    def cpu_seconds(pid: int) -> float | None:
        """Return the CPU time of a process; None if it is unknown."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None

    def has_argument(pid: int, argument: str) -> bool:
        """Return whether a process runs and has this argument."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return argument.encode(errors="surrogateescape") in file.read().split(b"\0")
        except OSError:
            return False

    def yield_to_others() -> None:
        """Keep this process from preempting others, where the system supports that."""
        with suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    def run_when_idle() -> None:
        """Run this thread only when a processor is idle, where the system supports that."""
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    def watch_process(poll: select.poll, pid: int) -> float | None:
        """Make `poll` return when a process ends.

        Returns None, or the interval in ms at which the caller must check the process, if the system does not
        support this.
        """
        with suppress(OSError):  # an old kernel, or the process has ended
            poll.register(os.pidfd_open(pid), select.POLLIN)
        return None


def open_file_limits() -> tuple[int, int]:
    """Return the soft limit of descriptors, and the highest value to which this process can raise it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = sys.maxsize
    return soft, max(soft, min(hard, MAX_OPEN_FILES))
