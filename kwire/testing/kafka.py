"""Test helpers for any Kafka cluster: topics, records, consumer groups.

    with Kafka("127.0.0.1:9092") as kafka:
        orders = kafka.new_topic("orders", partitions=3)
        kafka.produce(orders, "first", "second", key="customer 7")
        ...
        assert [record.value for record in kafka.records(orders, count=2)] == [b"first", b"second"]
        kafka.wait_until(lambda: kafka.lag("billing", orders) == 0)

A `Broker` and a `Cluster` have the same methods. All methods block, and can be called from any thread. In
asyncio and trio, `aio` has the same methods for `await`:

    async with Kafka("127.0.0.1:9092") as kafka:
        orders = await kafka.aio.new_topic("orders")

The client that sends the requests is imported on first use.

All methods that send requests raise ApiError, with Kafka's error code, if a broker returns an error. They
raise OSError if no broker can be reached in time, and SecurityMismatch if the security protocol is wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from itertools import count as counting
from typing import TYPE_CHECKING, ClassVar, TypeVar, overload

from kwire.host.system_time import libc_time_ns, monotonic
from kwire.testing.arguments import check_configs, check_number, check_seconds, check_text
from kwire.testing.awaitable import awaitable, call_in_thread, sleep
from kwire.testing.client_pool import ClientPool
from kwire.testing.event_loop import blocking, blocks_event_loop, is_coroutine_function
from kwire.testing.lookup_table import LookupTable
from kwire.testing.named_resources import NamedResources
from kwire.testing.results import Group, Record, TopicPartition
from kwire.testing.thread_call import CallThreads, check_cancelled, pause
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from kwire.testing.blocking_client import BlockingClient

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.02
TOPIC_SECONDS = 1.0
"""The time in which every broker of a cluster knows a topic that a client has created."""
MAX_RECORDS_SHOWN = 10
"""The maximum number of records that a failure shows."""


class Kafka:
    """A client of one Kafka cluster, with the methods that tests need."""

    _variable: ClassVar[str] = "kafka"
    """The name of a variable with this object, for messages."""
    _topic_within_s: ClassVar[float] = TOPIC_SECONDS
    """How long methods wait for an unknown topic, unless the caller waits for records."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        timeout_s: float = TIMEOUT_SECONDS,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Configure the client. It connects on the first call.

        `timeout_s` is the timeout of each call. `properties` are security settings of the Java client:
        `security.protocol` and its companions. If they are invalid, the first call raises ValueError.
        """
        check_text("bootstrap_servers", bootstrap_servers)
        check_seconds("timeout_s", timeout_s)
        self._bootstrap_servers = bootstrap_servers
        self._properties = dict(properties or {})
        self._timeout_s = timeout_s
        self._clients = ClientPool(self._new_client)
        self._threads = CallThreads()
        """The threads of calls by `aio`."""
        self._numbers = counting(1)
        self.named_topics, self.named_groups = NamedResources(), NamedResources()
        """The names that were passed to the methods of this object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aio.close()

    @property
    def aio(self) -> AioKafka:
        """The methods of this object, to be awaited in asyncio or trio."""
        return AioKafka(self)

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        self._clients.close()

    @property
    def bootstrap_servers(self) -> str:
        """The brokers to connect to, as host:port, separated by commas."""
        return self._bootstrap_servers

    # --- topics

    @blocking
    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones, sorted."""
        return self._call(lambda client: client.topics())

    @blocking
    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, wait until every partition has a leader, and return the topic's name.

        A `replication_factor` of -1 is the brokers' default. Raises ApiError, such as TOPIC_ALREADY_EXISTS.
        """
        check_text("name", name)
        check_number("partitions", partitions)
        check_number("replication_factor", replication_factor)
        check_configs(config)
        self.named_topics.add(name)
        configs = {key: str(value) for key, value in (config or {}).items()}
        self._call(lambda client: client.create_topic(name, partitions, replication_factor, configs))
        return name

    @blocking
    def new_topic(
        self,
        prefix: str = "topic",
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic with a unique name that starts with `prefix`, and return the name."""
        return self.create_topic(
            self.new_name(prefix),
            partitions=partitions,
            replication_factor=replication_factor,
            config=config,
        )

    def new_name(self, prefix: str) -> str:
        """Return a unique name for a topic, a group or a transactional producer."""
        from secrets import token_hex

        check_text("prefix", prefix)
        return f"{prefix}-{next(self._numbers)}-{token_hex(4)}"

    # --- records

    @blocking
    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        partition: int = 0,
        headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> list[Record]:
        """Append one record per value to one partition, in one batch, and return the records with offsets.

        Text is encoded as UTF-8, and a value of None is a tombstone. The key does not choose the partition.
        `headers` are a mapping, or pairs if a name occurs more than once. Without `timestamp_ms`, the records
        have the current time of the `Broker` or `Cluster`. The topic is created if the brokers create topics
        automatically.
        """
        check_text("topic", topic)
        check_number("partition", partition)
        check_number("timestamp_ms", 0 if timestamp_ms is None else timestamp_ms)
        self.named_topics.add(topic)
        if not values:
            raise ValueError("produce needs at least one value")
        at_ms = self._now_ms() if timestamp_ms is None else timestamp_ms
        with_headers = [_header(pair) for pair in _pairs(headers)]
        encoded = [_bytes(value) for value in values]
        return self._call(
            lambda client: client.produce(topic, partition, encoded, _bytes(key), with_headers, at_ms)
        )

    @blocking
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
        """Return the records of one partition, or of all, from `offset` on, sorted by partition and offset.

        With `count`, wait until there are this many records; raise AssertionError if there are fewer after
        the timeout, or more. With `uncommitted`, include the records of open and aborted transactions. If the
        topic does not exist, wait for it with `count` or `timeout_s`, and else raise ApiError.
        """
        __tracebackhide__ = True  # pytest shows the caller's line
        check_text("topic", topic)
        check_number("partition", 0 if partition is None else partition)
        check_number("offset", offset)
        check_number("count", 0 if count is None else count)
        check_seconds("timeout_s", 0 if timeout_s is None else timeout_s)
        self.named_topics.add(topic)
        if count is None:
            within_s = self._topic_within_s if timeout_s is None else timeout_s
            return self._records(topic, partition, offset, uncommitted, within_s)
        from kwire.wire.errors import ApiError, ErrorCode

        found: list[Record] = []
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = monotonic() + timeout_s

        def enough() -> bool:
            left_s = max(0.0, deadline - monotonic())
            try:
                found[:] = self._records(topic, partition, offset, uncommitted, left_s)
            except ApiError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                raise AssertionError(f"{error.message} (after {timeout_s:g} s)") from None
            return len(found) >= count

        is_there = _poll_until(enough, timeout_s)
        if not is_there or len(found) > count:
            after = "" if is_there else f" after {timeout_s:g} s"
            shown = ":" * bool(found) + "".join(
                f"\n  {_describe(record)}" for record in found[:MAX_RECORDS_SHOWN]
            )
            more = f"\n  and {len(found) - MAX_RECORDS_SHOWN} more" if len(found) > MAX_RECORDS_SHOWN else ""
            has = f"{topic} has {plural(len(found), 'record')}"
            raise AssertionError(f"{has}{after}, not {count}{shown}{more}")
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

    @blocking
    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the high watermark of each partition, which is the end offset that consumers see."""
        check_text("topic", topic)
        self.named_topics.add(topic)
        ends = self._call(lambda client: client.end_offsets(topic, topic_within_s=self._topic_within_s))
        found = LookupTable[int, int]({one.partition: end for one, end in ends.items()})
        return found.named(f"partition of {topic} with number")

    # --- groups

    @blocking
    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed, by partition."""
        check_text("group", group)
        self.named_groups.add(group)
        found = LookupTable(self._call(lambda client: client.committed(group)))
        return found.named(f"committed offset of group {group} for")

    @blocking
    def lag(self, group: str, topic: str) -> int:
        """Return the lag of a group on a topic: end offset minus committed offset, over all partitions.

        A partition without a committed offset counts from its log start offset.
        """
        check_text("group", group)
        check_text("topic", topic)
        self.named_topics.add(topic)
        self.named_groups.add(group)
        return self._call(lambda client: client.lag(group, topic, self._topic_within_s))

    @blocking
    def group(self, name: str) -> Group:
        """Return the state of a classic or consumer group, with its members and their assignments."""
        check_text("name", name)
        self.named_groups.add(name)
        return self._call(lambda client: client.group(name))

    # --- waiting

    @blocking
    def wait_until(
        self, condition: Callable[[], T], *, timeout_s: float | None = None, description: str | None = None
    ) -> T:
        """Call the function `wait_until` of this module, by default with the timeout of this client."""
        __tracebackhide__ = True
        return wait_until(
            condition, timeout_s=self._timeout_s if timeout_s is None else timeout_s, description=description
        )

    def _client_properties(self) -> Mapping[str, str]:
        """Return the security settings to connect with, as properties of the Java client."""
        return self._properties

    def _own_bootstrap_servers(self) -> str:
        """Return the brokers to which the methods of this object connect."""
        return self.bootstrap_servers

    def _now_ms(self) -> int:
        return libc_time_ns() // 1_000_000

    def _call(self, operation: Callable[[BlockingClient], T]) -> T:
        __tracebackhide__ = True
        check_cancelled()
        return self._clients.call(operation)

    def _new_client(self) -> BlockingClient:
        from kwire.client.security import parse_security
        from kwire.testing.blocking_client import BlockingClient

        security = parse_security(self._client_properties())
        return BlockingClient(self._own_bootstrap_servers(), self._timeout_s, self._sleep, security)

    def _sleep(self, seconds: float) -> None:
        """Sleep before a retry. An exception ends the retries."""
        pause(seconds)


class AioKafka:
    """The methods of `Kafka`, for `await`."""

    def __init__(self, target: Kafka) -> None:
        """Create the methods of one object."""
        self._target = target
        self._threads = target._threads

    close = awaitable(Kafka.close, completes=True)
    topics = awaitable(Kafka.topics)
    create_topic = awaitable(Kafka.create_topic)
    new_topic = awaitable(Kafka.new_topic)
    new_name = awaitable(Kafka.new_name)
    produce = awaitable(Kafka.produce)
    records = awaitable(Kafka.records)
    end_offsets = awaitable(Kafka.end_offsets)
    committed = awaitable(Kafka.committed)
    lag = awaitable(Kafka.lag)
    group = awaitable(Kafka.group)

    @overload
    async def wait_until(
        self,
        condition: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None = None,
        description: str | None = None,
    ) -> T: ...

    @overload
    async def wait_until(
        self, condition: Callable[[], T], *, timeout_s: float | None = None, description: str | None = None
    ) -> T: ...

    async def wait_until(
        self,
        condition: Callable[[], object],
        *,
        timeout_s: float | None = None,
        description: str | None = None,
    ) -> object:
        """Call `condition` until its result is true, and return that result, as `Kafka.wait_until` does.

        An async function is awaited in this task. Any other function is called in a thread, so that it may
        call the blocking methods of this object.
        """
        __tracebackhide__ = True
        timeout_s = self._target._timeout_s if timeout_s is None else timeout_s
        deadline = monotonic() + timeout_s
        while True:
            if is_coroutine_function(condition):
                last = condition()
            else:
                last = await call_in_thread(self._threads, condition)
            if isinstance(last, Awaitable):
                last = await last
            if last:
                return last
            if monotonic() >= deadline:
                raise _unmet(condition, timeout_s, description, last)
            await sleep(POLL_SECONDS)


def wait_until(
    condition: Callable[[], T], *, timeout_s: float = TIMEOUT_SECONDS, description: str | None = None
) -> T:
    """Call `condition` about 50 times per second until its result is true, and return that result.

    Raises AssertionError, which contains `description` and the last result, after `timeout_s`. Raises
    TypeError if the condition is an async function.
    """
    __tracebackhide__ = True
    if blocks_event_loop():
        raise RuntimeError(
            "wait_until() would block the running event loop: use `await broker.aio.wait_until(...)` of a "
            "Broker, Cluster or Kafka"
        )
    last: list[T] = []

    def holds() -> bool:
        __tracebackhide__ = True
        last[:] = [condition()]
        if isinstance(last[0], Awaitable):
            if isinstance(last[0], Coroutine):
                last[0].close()
            raise TypeError("the condition is an async function: use `await broker.aio.wait_until(...)`")
        return bool(last[0])

    if not _poll_until(holds, timeout_s):
        raise _unmet(condition, timeout_s, description, last[0])
    return last[0]


def _unmet(
    condition: Callable[[], object], timeout_s: float, description: str | None, last: object
) -> AssertionError:
    awaited = description or getattr(condition, "__name__", "").replace("<lambda>", "") or "the condition"
    return AssertionError(f"waited {timeout_s:g} s for {awaited}, last result: {last!r}")


def _poll_until(holds: Callable[[], bool], timeout_s: float) -> bool:
    __tracebackhide__ = True
    deadline = monotonic() + timeout_s
    while not holds():
        if monotonic() >= deadline:
            return False
        pause(POLL_SECONDS)
    return True


def _bytes(text: object) -> bytes | None:
    if isinstance(text, str):
        return text.encode()
    if text is None or isinstance(text, bytes):
        return text
    hint = ""
    if isinstance(text, list | tuple):
        hint = ". Pass several values as separate arguments: produce(topic, *values)"
    elif isinstance(text, dict):
        hint = ". Serialize it first, for example with json.dumps"
    raise TypeError(
        f"keys, values and headers are str, bytes or None, not {type(text).__name__}: {text!r:.100}{hint}"
    )


def _pairs(headers: object) -> Iterable[object]:
    if isinstance(headers, Mapping):
        return headers.items()
    if headers is None or (isinstance(headers, Iterable) and not isinstance(headers, str | bytes)):
        return headers or ()
    raise TypeError(f"headers are a dict, or a list of pairs (name, value), not {headers!r:.100}")


def _header(pair: object) -> tuple[str, bytes | None]:
    match pair:
        case (str() as name, value):
            return name, _bytes(value)
    raise TypeError(f"a header is a name and a value, such as ('tenant', b'7'), not {pair!r:.100}")


def _describe(record: Record) -> str:
    return f"{record.topic}-{record.partition} at {record.offset}: {record.key!r} = {record.value!r:.100}"
