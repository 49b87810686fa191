"""A record of the requests that clients sent to a broker, with their responses.

    [produced] = broker.requests.find("Produce", topic="orders")
    assert produced.request["acks"] == -1
    print(broker.requests)

The text form is described in `kwire.testing.exchange`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Final

from kwire.testing.arguments import check_limit, check_text
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from kwire.testing.exchange import Exchange
    from kwire.testing.kafka import Kafka
    from kwire.testing.names import ApiName
    from kwire.wire.primitives import Uuid

MAX_EXCHANGES: Final = 10_000
MAX_BYTES: Final = 16 << 20
"""Default limits of the recorder. Beyond them it drops the oldest exchanges."""
RESPONSE_SHARE: Final = 64
"""The longest response whose content is recorded has this fraction of the limit: 256 KiB by default."""


class Recorder:
    """The last requests of all clients, in order, as `Exchange` objects.

    Requests of the `Broker` methods themselves and of other brokers are not recorded. The recorder is kept
    when the broker restarts. Can be used from any thread.
    """

    def __init__(self, max_requests: int = MAX_EXCHANGES, max_bytes: int = MAX_BYTES) -> None:
        """Create an empty recorder that keeps the last requests, within both limits."""
        check_limit("max_recorded_requests", max_requests)
        check_limit("max_recorded_bytes", max_bytes)
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.source: Kafka | None = None
        """The broker or cluster that received the requests, for `History.of`."""
        self.connections = count(1)
        """The numbers of connections."""
        self._lock = Lock()
        self._exchanges: deque[Exchange] = deque()
        self._first_number = 0
        """The number of the first exchange that is kept. Exchanges are numbered from 0 on."""
        self._cleared_at = 0
        """The number of the first exchange since `clear`."""
        self._test_began_s = 0.0
        self._total_bytes = 0
        self.topic_names: dict[Uuid, str] = {}
        """Topic names by id, also of deleted topics."""

    def __iter__(self) -> Iterator[Exchange]:
        return iter(self.numbered()[1])

    def __len__(self) -> int:
        return len(self.numbered()[1])

    def __str__(self) -> str:
        return self.format()

    def numbered(self) -> tuple[int, list[Exchange]]:
        """Return the number of the first exchange that is kept, and the exchanges."""
        with self._lock:
            return self._first_number, list(self._exchanges)

    def since_test_began(self) -> list[Exchange]:
        """Return the exchanges since `clear`, or since the start of a test with kwire's fixtures.

        Raises ValueError if some of them may have been dropped.
        """
        first, exchanges = self.numbered()
        with self._lock:
            cleared_at, began_s = self._cleared_at, self._test_began_s
        if first > cleared_at and (not exchanges or exchanges[0].received_at_s >= began_s):
            raise ValueError(
                f"the recorder has dropped requests of this test, because there were more than "
                f"max_recorded_requests={self.max_requests} or max_recorded_bytes={self.max_bytes}: "
                "pass a larger number to the broker or cluster, or call requests.clear() later"
            )
        return [one for one in exchanges if one.received_at_s >= began_s]

    @property
    def max_response_bytes(self) -> int:
        """The size of the longest response whose content is recorded."""
        return self.max_bytes // RESPONSE_SHARE

    def begin_test(self, at_s: float) -> None:
        """Set the start of a test, in seconds since 1970.

        Earlier exchanges are kept, but are not part of the history of the test.
        """
        with self._lock:
            self._test_began_s = at_s

    def find(
        self,
        api: ApiName,
        *,
        client_id: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        since_s: float = 0.0,
    ) -> list[Exchange]:
        """Return the exchanges of one API, such as "Produce", in order.

        The other arguments filter by client id, topic, partition, or time in seconds since 1970. Raises
        ValueError if there is no such API, or if a topic or partition is given for an API without topics.
        """
        check_api(api, topic, partition)
        return [
            one
            for one in self
            if one.api == api
            and client_id in (None, one.client_id)
            and matches_partition(one.partitions, topic, partition)
            and one.received_at_s >= since_s
        ]

    def format(self, *, since_s: float = 0.0, limit: int | None = None) -> str:
        """Format the exchanges since `since_s`, in seconds since 1970, at most the last `limit`."""
        found = [one for one in self if one.received_at_s >= since_s]
        left_off = 0 if limit is None else max(0, len(found) - limit)
        first = [f"({plural(left_off, 'earlier request')})"] if left_off else []
        return "\n".join([*first, *map(str, found[left_off:])])

    def clear(self) -> None:
        """Drop all recorded exchanges."""
        with self._lock:
            self._first_number += len(self._exchanges)
            self._cleared_at = self._first_number
            self._exchanges.clear()
            self._total_bytes = 0

    def record_request(self, exchange: Exchange) -> None:
        """Add a request. Its response is set later by `Exchange.complete`."""
        with self._lock:
            self._exchanges.append(exchange)
            self._total_bytes += exchange.size_bytes
            self._trim()

    def count_response_bytes(self, response_bytes: int) -> None:
        """Add the size of a response that an exchange keeps, and drop the oldest exchanges if necessary."""
        with self._lock:
            self._total_bytes += response_bytes
            self._trim()

    def _trim(self) -> None:
        while self._exchanges and (
            self._total_bytes > self.max_bytes or len(self._exchanges) > self.max_requests
        ):
            self._total_bytes -= self._exchanges.popleft().size_bytes
            self._first_number += 1
        if not self._exchanges:
            self._total_bytes = 0  # the response of a dropped exchange may have been counted


def matches_partition(
    partitions: frozenset[tuple[str, int]], topic: str | None, partition: int | None
) -> bool:
    """Return whether one of `partitions` has this topic and this number. None matches every value."""
    if topic is None and partition is None:
        return True
    return any(topic in (None, of) and partition in (None, number) for of, number in partitions)


def check_partition(topic: object, partition: object) -> None:
    """Raise TypeError unless these are the name of a topic or None, and the number of a partition or None."""
    if not isinstance(topic, str | None) or not isinstance(partition, int | None):
        raise TypeError(f"topics are str and partitions int, not {topic!r} and {partition!r}")


def check_api(api: str, topic: str | None = None, partition: int | None = None) -> None:
    """Check that an API exists, and that its requests name topics if a topic or partition is given.

    Raises ValueError, or TypeError for values of the wrong type, such as the partition "0".
    """
    from difflib import get_close_matches

    from kwire.testing.exchange import may_name_topics
    from kwire.wire.registry import API_VERSIONS

    check_text("api", api)
    known = {one.name: one.request_class for one in API_VERSIONS.values()}
    if api not in known:
        near = get_close_matches(api, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}"
        raise ValueError(f"there is no API {api!r}: {hint}")
    check_partition(topic, partition)
    if (topic, partition) != (None, None) and not may_name_topics(known[api]):
        raise ValueError(f"{api} requests name no topics: filter by client_id= instead of topic=, partition=")
