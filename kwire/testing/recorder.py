"""What clients have asked a broker, and what they were answered: the last of it, in order.

[produced] = broker.requests.find("Produce", topic="orders")
assert produced.request["acks"] == -1
print(broker.requests)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.testing.exchange import Exchange
    from kwire.wire.primitives import Uuid

MAX_EXCHANGES = 10_000
MAX_BYTES = 16 << 20
"""What is kept at most: what is oldest goes."""


class Recorder:
    """Of all clients but the test's own `Broker` methods; brokers of a cluster that ask each other are none.

    Kept across restarts; for any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchanges: deque[Exchange] = deque()
        self._total_bytes = 0
        self.topic_names: dict[Uuid, str] = {}
        """Of all topics that were seen: ids read as matches_partition when the topic is gone, too."""

    def __iter__(self) -> Iterator[Exchange]:
        with self._lock:
            return iter(list(self._exchanges))

    def __len__(self) -> int:
        return len(self._exchanges)

    def __str__(self) -> str:
        return self.format()

    def find(
        self,
        api: str,
        *,
        client_id: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        since_s: float = 0.0,
    ) -> list[Exchange]:
        """Those of one API, as "Produce", in order.

        Perhaps only those of one client, for a topic or a partition, or since a time in seconds since 1970.
        ValueError where Kafka has no such API, or it is asked about no topics.
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
        """All of them for a person, or the last ones of those since a time in seconds since 1970."""
        found = [one for one in self if one.received_at_s >= since_s]
        left_off = 0 if limit is None else max(0, len(found) - limit)
        first = [f"({left_off} before)"] if left_off else []
        return "\n".join([*first, *map(str, found[left_off:])])

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._exchanges.clear()
            self._total_bytes = 0

    def record_request(self, exchange: Exchange) -> None:
        """A request has come."""
        with self._lock:
            self._exchanges.append(exchange)
            self._total_bytes += exchange.size_bytes
            self._trim()

    def record_response(self, answer_bytes: int) -> None:
        """So many bytes of an answer are kept with one of them."""
        with self._lock:
            self._total_bytes += answer_bytes
            self._trim()

    def _trim(self) -> None:
        while self._exchanges and (self._total_bytes > MAX_BYTES or len(self._exchanges) > MAX_EXCHANGES):
            self._total_bytes -= self._exchanges.popleft().size_bytes
        if not self._exchanges:
            self._total_bytes = 0  # an answer may come to what is kept no more


def matches_partition(
    partitions: frozenset[tuple[str, int]], topic: str | None, partition: int | None
) -> bool:
    """Whether what a request names has the topic, and that partition of it; None is any."""
    if topic is None and partition is None:
        return True
    return any(topic in (None, of) and partition in (None, number) for of, number in partitions)


def check_api(api: str, topic: str | None = None, partition: int | None = None) -> None:
    """ValueError where Kafka has no API of that name, or its requests name no topic though one is given.

    TypeError for what no request can name, as the partition "0".
    """
    from difflib import get_close_matches

    from kwire.testing.exchange import may_name_topics
    from kwire.wire.registry import API_VERSIONS

    known = {one.name: one.request_class for one in API_VERSIONS.values()}
    if api not in known:
        near = get_close_matches(api, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"name one of {', '.join(sorted(known))}"
        raise ValueError(f"there is no API {api!r}: {hint}")
    if not isinstance(topic, str | None) or not isinstance(partition, int | None):
        raise TypeError(f"topics are str and partitions int, and not {topic!r} and {partition!r}")
    if (topic, partition) != (None, None) and not may_name_topics(known[api]):
        raise ValueError(f"{api} names no topics: leave topic= and partition= out, or say client_id=")
