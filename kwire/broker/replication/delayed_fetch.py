"""Fetch requests that wait for a partition to grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kwire.host.host import Host


class DelayedFetch(Protocol):
    """A Fetch request that waits for the partition to grow."""

    def try_complete(self) -> None:
        """Complete the request if possible, after the high watermark rose or the replica's role changed."""

    def complete(self) -> None:
        """Send the response with the records that are available."""


def call_each(
    delayed_fetches: dict[DelayedFetch, None], step: Callable[[DelayedFetch], None], host: Host, log_name: str
) -> None:
    """Call `step` with every delayed fetch of a log; remove a fetch for which `step` fails."""
    for delayed_fetch in list(delayed_fetches):
        try:
            step(delayed_fetch)
        except Exception:
            # An exception in one fetch must not keep the other fetches from being checked.
            host.logger("kwire.partition").exception(
                "Cannot check a delayed fetch of %s: it completes when its maximum wait is over", log_name
            )
            delayed_fetches.pop(delayed_fetch, None)
