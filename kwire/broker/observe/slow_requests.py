"""The log of slow requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kwire.broker.api.request.request_log import LoggedRequest
from kwire.host.loggers import NodeLogger
from kwire.wire.registry import API_VERSIONS

MAX_PER_SECOND: Final = 10
"""The limit for log lines, because more lines would slow down a broker in which everything is slow."""


class SlowRequests:
    """The logger of slow requests: at most `MAX_PER_SECOND` per second, and the number of the others."""

    def __init__(self, logger: NodeLogger, clock: Callable[[], float]) -> None:
        """`clock` returns seconds since an arbitrary time."""
        self._logger = logger
        self._clock = clock
        self._second = -1
        self._count = 0

    def __call__(self, logged: LoggedRequest) -> None:
        """Log a slow request, or only count it if the limit is reached."""
        assert logged.seconds is not None
        second = int(self._clock())
        if second != self._second:
            if self._count > MAX_PER_SECOND:
                self._logger.warning(
                    "Slow requests: %d more were not logged in an earlier second (limit: %d per second)",
                    *(self._count - MAX_PER_SECOND, MAX_PER_SECOND),
                )
            self._second, self._count = second, 0
        self._count += 1
        if self._count <= MAX_PER_SECOND:
            self._logger.warning(
                "Slow request: %s v%d from client %s at %s took %.1f ms (%d bytes in, %d bytes out)",
                api_name(logged.api_key),
                logged.api_version,
                logged.client_id,
                logged.peer_host,
                1000 * logged.seconds,
                logged.size_bytes,
                logged.response_bytes,
                extra={"request": logged.request_id},
            )


def api_name(key: int) -> str:
    """Return the name of an API key, or the key as text if kwire does not know the API."""
    api = API_VERSIONS.get(key)
    return api.name if api is not None else str(key)
