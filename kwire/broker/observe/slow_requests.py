"""The log of slow requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kwire.broker.api.request.request_log import LoggedRequest
from kwire.host.loggers import NodeLogger
from kwire.wire.registry import API_VERSIONS

MAX_PER_SECOND: Final = 10
"""When everything is slow, a line a request would make it slower."""


class SlowRequests:
    """Logs requests that took long, and says how many more there were where there are many."""

    def __init__(self, logger: NodeLogger, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, of whatever beginning."""
        self._logger = logger
        self._clock = clock
        self._second = -1
        self._told = 0

    def __call__(self, logged: LoggedRequest) -> None:
        """A request took long."""
        assert logged.seconds is not None
        second = int(self._clock())
        if second != self._second:
            if self._told > MAX_PER_SECOND:
                self._logger.warning("%d more requests were slow", self._told - MAX_PER_SECOND)
            self._second, self._told = second, 0
        self._told += 1
        if self._told <= MAX_PER_SECOND:
            self._logger.warning(
                "slow request: %s version %d of client %s at %s took %.1f ms, %d bytes asked, %d answered",
                api_name(logged.api_key),
                logged.api_version,
                logged.client_id,
                logged.peer_host,
                1000 * logged.seconds,
                logged.size_bytes,
                logged.reply_bytes,
                extra={"request": logged.request_id},
            )


def api_name(key: int) -> str:
    """Kafka's name of an API, or its key where it is not declared."""
    api = API_VERSIONS.get(key)
    return api.name if api is not None else str(key)
