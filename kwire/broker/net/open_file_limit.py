"""The limit of file descriptors of a process that runs a node (RLIMIT_NOFILE, `ulimit -n`)."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kwire.broker.storage.descriptors import shortage_text
from kwire.host.host import InternodeTime
from kwire.host.platform.processes import open_file_limits

if TYPE_CHECKING:
    from kwire.broker.net.loop import Loop

SHORTAGE_LOG_MS: Final = 60_000
"""The minimum time between two log lines about a shortage."""


def raise_open_file_limit() -> int:
    """Raise the soft limit of this process as far as possible, as the JVM does; return the limit in force.

    Only for processes that kwire owns. The embedded broker leaves the limit of its process alone.
    """
    soft, highest = open_file_limits()
    if soft != highest:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        except (OSError, ValueError):
            return soft  # a sandbox may forbid the change
    return highest


def shortage_log(loop: Loop) -> Callable[[OSError], None]:
    """Return the function that logs that the process has run out of descriptors, at most once a minute."""
    logger = loop.logger("kwire.storage")
    logged_ms: InternodeTime | None = None

    def log(error: OSError) -> None:
        nonlocal logged_ms
        now_ms = loop.internode_clock.monotonic_ms()
        if logged_ms is None or now_ms - logged_ms >= SHORTAGE_LOG_MS:
            logged_ms = now_ms
            logger.warning(
                "%s. Until descriptors are free, the node closes files that it does not use, and requests "
                "may wait or fail with KAFKA_STORAGE_ERROR",
                shortage_text(error, error.strerror or str(error)),
            )

    return log
