"""What a test does to a Kafka, and asks of it, beside the client that it tests.

    with Kafka("127.0.0.1:9092") as kafka:          # any Kafka; a `Broker` is one by itself
        orders = kafka.new_topic("orders", partitions=3)
        kafka.produce(orders, "first", "second", key="customer 7")
        ...
        assert [record.value for record in kafka.records(orders, count=2)] == [b"first", b"second"]
        kafka.wait_until(lambda: kafka.lag("billing", orders) == 0)

Everything blocks, and may be called from any thread: asynchronous tests call it with `asyncio.to_thread` or
`anyio.to_thread.run_sync`. What it asks with is imported when it first asks.

ApiError, with Kafka's code, is raised where a broker refuses, a password among others; OSError where none can
be reached in time, and SecurityMismatch where they are to be asked by SASL or TLS, or not so.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count as counting
from typing import TYPE_CHECKING, TypeVar

from kwire.testing.results import Group, Record, TopicPartition

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from kwire.testing.blocking_client import BlockingClient

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.02
MAX_RECORDS_SHOWN = 10
"""How many records a failure names."""


class Kafka:
    """See the module."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        timeout_s: float = TIMEOUT_SECONDS,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is connected before something is asked. `timeout_s` is how long each question may take.

        `properties` are those of a client in Java that say how it is secured: `security.protocol` and what
        goes with it. What they say wrongly is a ValueError, of what asks first.
        """
        self._bootstrap_servers = bootstrap_servers
        self._properties = dict(properties or {})
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._client: BlockingClient | None = None
        self._client_pid = 0
        """The process that has the client."""
        self._numbers = counting(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, which are made anew where something else is asked."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect: host:port, with commas between several."""
        return self._bootstrap_servers

    # --- topics

    def topics(self) -> list[str]:
        """The names of all topics that are not Kafka's own, sorted."""
        return self._call(lambda client: client.topics())

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Make a topic, and return its name when all its partitions are led. -1 is the brokers' default.

        ApiError, as TOPIC_ALREADY_EXISTS.
        """
        self._call(lambda client: client.create_topic(name, partitions, replication_factor, config or {}))
        return name

    def new_topic(
        self,
        prefix: str = "topic",
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Make a topic of a name that is nobody else's, and return it."""
        return self.create_topic(
            self.new_name(prefix),
            partitions=partitions,
            replication_factor=replication_factor,
            config=config,
        )

    def new_name(self, prefix: str) -> str:
        """A name that nobody else has: of a topic, a group or a transactional producer."""
        from secrets import token_hex

        return f"{prefix}-{next(self._numbers)}-{token_hex(4)}"

    # --- records

    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        partition: int = 0,
        headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> list[Record]:
        """Append a record for each value (text in UTF-8; None deletes the key), and say where they are.

        All go to one partition, in one batch: to the first one, whatever the key, where none is given. Pairs
        as `headers`, which a `Record` has, too, may name one twice. A topic that is not there is made where
        brokers make such. Records are of now, by the time of a `Broker` or a `Cluster`, where no
        `timestamp_ms` is given.
        """
        if not values:
            raise ValueError("give produce at least one value")
        at_ms = self._now_ms() if timestamp_ms is None else timestamp_ms
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        with_headers = [(name, _bytes(value)) for name, value in pairs]
        encoded = [_bytes(value) for value in values]
        return self._call(
            lambda client: client.produce(topic, partition, encoded, _bytes(key), with_headers, at_ms)
        )

    def records(
        self,
        topic: str,
        *,
        partition: int | None = None,
        offset: int = 0,
        count: int | None = None,
        uncommitted: bool = False,
        timeout_s: float | None = None,
    ) -> list[Record]:
        """All records of the topic from `offset` on, partition by partition: what consumers may see of them.

        With `count` wait until there are so many, and fail (AssertionError) where they do not come in time,
        or are more. `uncommitted` has those of transactions that are under way or aborted, too. A topic that
        somebody else is to make is waited for as well: ApiError, where there is none when time is over.
        """
        __tracebackhide__ = True  # a failure is the caller's, for pytest
        if count is None:
            return self._records(topic, partition, offset, uncommitted, timeout_s)
        found: list[Record] = []
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s

        def enough() -> bool:
            left_s = max(0.0, deadline - time.monotonic())
            found[:] = self._records(topic, partition, offset, uncommitted, left_s)
            return len(found) >= count

        is_there = _poll_until(enough, timeout_s)
        if not is_there or len(found) > count:
            after = "" if is_there else f" after {timeout_s:g} s"
            shown = ":" * bool(found) + "".join(
                f"\n  {_describe(record)}" for record in found[:MAX_RECORDS_SHOWN]
            )
            more = f"\n  and {len(found) - MAX_RECORDS_SHOWN} more" if len(found) > MAX_RECORDS_SHOWN else ""
            raise AssertionError(f"{topic} has {len(found)} records{after}, and not {count}{shown}{more}")
        return found

    def _records(
        self,
        topic: str,
        partition: int | None,
        offset: int,
        uncommitted: bool,
        topic_within_s: float | None = None,
    ) -> list[Record]:
        return self._call(
            lambda client: list(
                client.records(
                    topic, partition, offset, committed=not uncommitted, topic_within_s=topic_within_s
                )
            )
        )

    def end_offsets(self, topic: str) -> dict[int, int]:
        """By partition the offset that its next record gets."""
        ends = self._call(lambda client: client.end_offsets(topic))
        return {one.partition: end for one, end in ends.items()}

    # --- groups

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """What the group has committed: by partition the offset that it reads next."""
        return self._call(lambda client: client.committed(group))

    def lag(self, group: str, topic: str) -> int:
        """How many offsets of the topic the group has not committed yet, all that is there where none is."""
        return self._call(lambda client: client.lag(group, topic))

    def group(self, name: str) -> Group:
        """The state of a group, of either protocol, with its members and what they are assigned."""
        return self._call(lambda client: client.group(name))

    # --- waiting

    def wait_until(
        self, condition: Callable[[], T], *, timeout_s: float | None = None, description: str | None = None
    ) -> T:
        """As `wait_until` of this module, with this one's timeout."""
        __tracebackhide__ = True
        return wait_until(
            condition, timeout_s=self._timeout_s if timeout_s is None else timeout_s, description=description
        )

    def _client_properties(self) -> Mapping[str, str]:
        """How it is to be asked."""
        return self._properties

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def _call(self, operation: Callable[[BlockingClient], T]) -> T:
        with self._lock:
            if self._client is not None and self._client_pid != os.getpid():
                # A child that was forked has a copy of its parent's connections, on which answers would mix.
                self._client.close()
                self._client = None
            if self._client is None:
                from kwire.client.security import parse_security
                from kwire.testing.blocking_client import BlockingClient

                security = parse_security(self._client_properties())
                self._client = BlockingClient(self.bootstrap_servers, self._timeout_s, self._sleep, security)
                self._client_pid = os.getpid()
            return operation(self._client)

    def _sleep(self, seconds: float) -> None:
        """Before something is asked again. What it raises ends that."""
        time.sleep(seconds)


def wait_until(
    condition: Callable[[], T], *, timeout_s: float = TIMEOUT_SECONDS, description: str | None = None
) -> T:
    """What the condition gives, as soon as that is true. It is asked some fifty times a second.

    AssertionError, naming `description`, where it is not true within `timeout_s`.
    """
    __tracebackhide__ = True
    last: list[T] = []

    def holds() -> bool:
        last[:] = [condition()]
        return bool(last[0])

    if not _poll_until(holds, timeout_s):
        awaited = description or getattr(condition, "__name__", "").replace("<lambda>", "") or "the condition"
        raise AssertionError(f"waited {timeout_s:g} s for {awaited}, and had {last[0]!r} in the end")
    return last[0]


def _poll_until(holds: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _bytes(text: bytes | str | None) -> bytes | None:
    if isinstance(text, str):
        return text.encode()
    if text is None or isinstance(text, bytes):
        return text
    raise TypeError(
        f"keys, values and headers are str, bytes or None, and not {type(text).__name__}: {text!r:.100}"
    )


def _describe(record: Record) -> str:
    return f"{record.topic}-{record.partition} at {record.offset}: {record.key!r} = {record.value!r:.100}"
