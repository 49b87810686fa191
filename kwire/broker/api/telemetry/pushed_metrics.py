"""The metrics that clients have pushed, for export to Prometheus. KIP-714.

The values are those of the last push of each client instance. Delta counts are added to the previous value.
Clients push all their metrics each time, so a series that is not in the last push is removed. For example,
all labels change when a consumer joins a group as another member.

The metrics of a terminated client are kept for a minute, so that its last push can be scraped. The metrics of
a client that stops pushing are kept until its client instance expires. The number of series is limited per
client and in total, and the length of each series is limited. Points beyond the limits are dropped and
counted.
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
"""The limit for the length of a name with its labels, in characters."""
KEPT_AFTER_END_MS: Final = 60_000


class Series(NamedTuple):
    """The name and the labels of a time series."""

    name: str
    labels: Labels
    is_monotonic: bool


class InstanceMetrics:
    __slots__ = ("client", "until_ms", "values")

    def __init__(self, client: ClientMetadata, until_ms: int) -> None:
        self.client = client
        self.values: dict[Series, float] = {}
        self.until_ms = until_ms
        """The time at which the metrics are dropped."""


class PushedMetrics:
    """The metrics of all clients of a broker."""

    def __init__(self) -> None:
        self.clients: dict[Uuid, InstanceMetrics] = {}
        self.dropped_points = 0
        self._size = 0

    def take(
        self, instance_id: Uuid, client: ClientMetadata, points: Iterable[Point], *, until_ms: int
    ) -> None:
        """Replace the metrics of a client instance, and keep the new metrics until `until_ms`.

        If `points` raises MetricsLimitExceeded, the earlier points are taken. After any other exception, the
        old metrics stay.
        """
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
            dropped += 1  # at least one, because the points after it are not decoded
        self.dropped_points += dropped
        self._size += len(values) - len(before)
        if values:
            self.clients[instance_id] = taken
        else:
            self.clients.pop(instance_id, None)

    def end_client(self, instance_id: Uuid, now_ms: int) -> None:
        """Keep the metrics of a terminated client for at most `KEPT_AFTER_END_MS` more."""
        known = self.clients.get(instance_id)
        if known is not None:
            known.until_ms = min(known.until_ms, now_ms + KEPT_AFTER_END_MS)

    def expire(self, now_ms: int) -> None:
        """Drop the metrics whose `until_ms` has passed."""
        for instance_id in [one for one, known in self.clients.items() if known.until_ms <= now_ms]:
            self._size -= len(self.clients.pop(instance_id).values)


def _length(series: Series) -> int:
    return len(series.name) + sum(len(name) + len(text) for name, text in series.labels)
