"""The limit of file descriptors of a process that runs a node (RLIMIT_NOFILE, `ulimit -n`)."""

from __future__ import annotations

import resource


def raise_open_file_limit() -> int:
    """Raise the soft limit of this process to the hard limit, as the JVM does; return the limit in force.

    Only for processes that kwire owns. The embedded broker leaves the limit of its process alone.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # a sandbox may forbid the change
    return hard
