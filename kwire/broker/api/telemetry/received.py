"""What clients have pushed, as it is offered to who asks for metrics. KIP-714.

Sums come as what has been added since the last push, and are added up here; all else is as the last push
has it. What there is of a client that has ended stays for a minute, so that what it pushed at its end is
seen; of a silent one until it is forgotten. Bounded in series, of one client and in all, and in the length
of each: what is beyond that is dropped, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kwire.broker.api.telemetry.instances import Client
from kwire.wire.otlp import Kind, Labels, Point, TooMuch
from kwire.wire.primitives import Uuid

MOST_SERIES: Final = 20_000
MOST_SERIES_OF_CLIENT: Final = 2_000
LONGEST_SERIES: Final = 1_024
"""The characters of a name with its labels."""
SHOWN_AFTER_END_MS: Final = 60_000


class Series(NamedTuple):
    """What a number is called."""

    name: str
    labels: Labels
    only_rises: bool


class Pushed:
    """What one client instance has pushed."""

    __slots__ = ("client", "sums", "until_ms", "values")

    def __init__(self, client: Client, sums: dict[Series, float], until_ms: int) -> None:
        self.client = client
        self.sums = sums
        """What is added up, over all pushes."""
        self.values: dict[Series, float] = {}
        """All else, of the last push."""
        self.until_ms = until_ms
        """When it is dropped."""

    def __len__(self) -> int:
        return len(self.sums) + len(self.values)

    def add(self, point: Point, room: int) -> bool:
        """Take a number, if it is known, or there is room for it."""
        series = Series(point.name, point.labels, point.only_rises)
        is_delta = point.kind is Kind.DELTA
        into = self.sums if is_delta else self.values
        is_known = series in into
        if not is_known and (len(self) >= room or _length(series) > LONGEST_SERIES):
            return False
        into[series] = into[series] + point.value if is_known and is_delta else point.value
        return True


class Received:
    """What there is of all clients of a broker."""

    def __init__(self) -> None:
        self.clients: dict[Uuid, Pushed] = {}
        self.dropped_points = 0
        self._size = 0

    def take(self, instance_id: Uuid, client: Client, points: Iterable[Point], *, until_ms: int) -> None:
        """A push has come; what goes wrong in `points` changes nothing. Kept until `until_ms`."""
        known = self.clients.get(instance_id)
        size_before = 0 if known is None else len(known)
        taken = Pushed(client, {} if known is None else dict(known.sums), until_ms)
        room = min(MOST_SERIES_OF_CLIENT, MOST_SERIES - self._size + size_before)
        dropped = 0
        try:
            for point in points:
                dropped += not taken.add(point, room)
        except TooMuch:
            dropped += 1  # at least, and nothing behind it is looked at
        self.dropped_points += dropped
        self._size += len(taken) - size_before
        self.clients[instance_id] = taken
        if not len(taken):
            del self.clients[instance_id]

    def ended(self, instance_id: Uuid, now_ms: int) -> None:
        """The client is gone."""
        known = self.clients.get(instance_id)
        if known is not None:
            known.until_ms = min(known.until_ms, now_ms + SHOWN_AFTER_END_MS)

    def expire(self, now_ms: int) -> None:
        """Drop what is due."""
        for instance_id in [one for one, known in self.clients.items() if known.until_ms <= now_ms]:
            self._size -= len(self.clients.pop(instance_id))


def _length(series: Series) -> int:
    return len(series.name) + sum(len(name) + len(text) for name, text in series.labels)
