"""A warning while few file descriptors are left for the partitions and connections of a node."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Final

from kwire.broker.storage.descriptors import MAX_CACHED_FILES
from kwire.host.platform.processes import OPEN_FILES
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from kwire.broker.observe.ports import RunningNode

CHECK_MS: Final = 60_000


def watch_open_files(running: RunningNode) -> None:
    """Check the limit now and once a minute, and log a warning whenever few descriptors are left."""
    loop = running.loop
    was_short = False

    def check() -> None:
        nonlocal was_short
        loop.schedule_check(CHECK_MS, check)
        warning = shortage_warning(running)
        if warning and not was_short:
            loop.logger("kwire.net").warning("%s", warning)
        was_short = bool(warning)

    check()


def shortage_warning(running: RunningNode) -> str:
    """Return a warning if few descriptors are left for this node; otherwise an empty text."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        left = limit - len(os.listdir(OPEN_FILES)) + running.cached_file_count
    except OSError:
        left = 0
    partitions = 0 if running.broker is None else len(running.broker.replica_manager.all())
    connections = len(running.server.connections)
    # The disk caches the open files of the partitions. With fewer, it opens and closes files more often.
    if left >= min(MAX_CACHED_FILES, partitions) + connections:
        return ""
    return (
        f"Only {left} of {limit} file descriptors are left for files and for more connections, with "
        f"{plural(partitions, 'partition')} and {plural(connections, 'connection')}: raise the hard limit "
        f"(ulimit -n, or LimitNOFILE in the systemd unit)"
    )
