"""A program for tests: it makes this process look like FreeBSD or Windows, and then runs a Python program.

Arguments: `freebsd14` or `win32`, the text of the program, and its arguments. The names that Python's C
modules lack on that system are removed. The modules of the standard library stay as they are on Linux.
"""

from __future__ import annotations

import _socket
import io
import os
import posix
import select
import signal
import socket
import subprocess  # noqa: F401 - needs names that are removed below
import sys
import sysconfig

LINUX_ONLY = (
    *("copy_file_range", "eventfd", "eventfd_read", "eventfd_write", "memfd_create", "pidfd_open"),
    *("posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setscheduler", "SCHED_BATCH"),
)
POSIX_ONLY = (
    *("chown", "fork", "geteuid", "getuid", "killpg", "nice", "openpty", "posix_spawn", "pread", "preadv"),
    *("pwrite", "pwritev", "register_at_fork", "sendfile", "setsid", "statvfs", "sysconf", "uname", "waitid"),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "POSIX_SPAWN_DUP2"),
)
POSIX_MODULES = ("curses", "fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")


def _remove(modules: tuple[object, ...], names: tuple[str, ...]) -> None:
    for module in modules:
        for name in names:
            if hasattr(module, name):
                delattr(module, name)


def imitate(platform: str) -> None:
    sysconfig.get_config_vars()  # cached, because Linux has no file for other systems
    sys.platform = platform
    _remove((select,), tuple(name for name in dir(select) if name.lower().startswith("epoll")))
    _remove((os, posix), LINUX_ONLY)
    if platform == "win32":
        _remove((os, posix), POSIX_ONLY)
        _remove((socket, _socket), ("AF_UNIX", "MSG_DONTWAIT", "MSG_NOSIGNAL", "SCM_RIGHTS", "SO_REUSEPORT"))
        _remove((signal,), ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "pthread_sigmask"))
        io._WindowsConsoleIO = type("_WindowsConsoleIO", (), {})  # type: ignore[attr-defined]
        for name in POSIX_MODULES:
            sys.modules[name] = None  # type: ignore[assignment]


if __name__ == "__main__":
    _, platform, program, *arguments = sys.argv
    sys.argv = [sys.argv[0], *arguments]
    imitate(platform)
    exec(program)
