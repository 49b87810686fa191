"""What clients have pushed, as it is offered to who asks for metrics. KIP-714.

Shown is what the last push of a client instance has: counts come as what has been added since the push
before, and are added up here. What a push leaves out is gone, as when a consumer is another member of its
group and all its labels change: clients push all that they have each time. What there is of a client that
has ended stays for a minute, so that what it pushed at its end is seen; of a silent one until it is
forgotten. Bounded in series, of one client and in all, and in the length of each: what is beyond that is
dropped, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kwire.broker.api.telemetry.client_instances import ClientMetadata
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.otlp import Labels, MetricsLimitExceeded, Point, PointKind
from kwire.wire.primitives import Uuid

MAX_SERIES: Final = 20_000
MAX_SERIES_OF_CLIENT: Final = 2_000
MAX_SERIES_LENGTH: Final = 1_024
"""The characters of a name with its labels."""
KEPT_AFTER_END_MS: Final = 60_000


class Series(NamedTuple):
    """What a number is called."""

    name: str
    labels: Labels
    is_monotonic: bool


class InstanceMetrics:
    """What one client instance has pushed."""

    __slots__ = ("client", "until_ms", "values")

    def __init__(self, client: ClientMetadata, until_ms: int) -> None:
        self.client = client
        self.values: dict[Series, float] = {}
        self.until_ms = until_ms
        """When it is dropped."""


class PushedMetrics:
    """What there is of all clients of a broker."""

    def __init__(self) -> None:
        self.clients: dict[Uuid, InstanceMetrics] = {}
        self.dropped_points = 0
        self._size = 0

    def take(
        self, instance_id: Uuid, client: ClientMetadata, points: Iterable[Point], *, until_ms: int
    ) -> None:
        """A push has come; what goes wrong in `points` changes nothing. Kept until `until_ms`."""
        known = self.clients.get(instance_id)
        before: Mapping[Series, float] = {} if known is None else known.values
        room = min(MAX_SERIES_OF_CLIENT, MAX_SERIES - self._size + len(before))
        taken, dropped = InstanceMetrics(client, until_ms), 0
        values = taken.values
        try:
            for point in points:
                series = Series(point.name, point.labels, point.is_monotonic)
                if series not in values and (len(values) >= room or _length(series) > MAX_SERIES_LENGTH):
                    dropped += 1
                elif point.kind is PointKind.DELTA:
                    values[series] = values.get(series, before.get(series, 0)) + point.value
                else:
                    values[series] = point.value
        except MetricsLimitExceeded:
            dropped += 1  # at least, and nothing behind it is looked at
        self.dropped_points += dropped
        self._size += len(values) - len(before)
        if values:
            self.clients[instance_id] = taken
        else:
            self.clients.pop(instance_id, None)

    def end_client(self, instance_id: Uuid, now_ms: int) -> None:
        """The client is gone."""
        known = self.clients.get(instance_id)
        if known is not None:
            known.until_ms = min(known.until_ms, now_ms + KEPT_AFTER_END_MS)

    def expire(self, now_ms: int) -> None:
        """Drop what is due."""
        for instance_id in [one for one, known in self.clients.items() if known.until_ms <= now_ms]:
            self._size -= len(self.clients.pop(instance_id).values)


def _length(series: Series) -> int:
    return len(series.name) + sum(len(name) + len(text) for name, text in series.labels)
