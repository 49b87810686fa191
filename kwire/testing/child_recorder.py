"""The recorder of a broker in a child process, and the changes that are sent to it.

The exchanges of `ChildRecorder` are copies. Before they are read, the recorder fetches the changes.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from kwire.testing.exchange import Exchange, Result, TopicNames
from kwire.testing.recorder import MAX_BYTES, MAX_EXCHANGES, Recorder
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid
from kwire.wire.registry import RequestHeader


class ExchangeCopy(NamedTuple):
    """The parts of an exchange."""

    received_at_s: float
    header: RequestHeader
    body: bytes
    fault: str
    connection: int
    fetched_partitions: frozenset[tuple[str, int]] | None
    result: Result | None


class RecorderChanges(NamedTuple):
    """The changes of a recorder in the child process since the last read."""

    first: int
    """The number of the first exchange that is kept."""
    start: int
    """The number of the first exchange in `exchanges`."""
    exchanges: list[ExchangeCopy]
    results: dict[int, Result]
    """Results of exchanges that were sent without a result."""
    topic_names: list[tuple[Uuid, str]]


class RecorderFeed:
    """The changes of a recorder, in the child process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pending: dict[int, Exchange] = {}
        """Exchanges that were sent without a result, also if the recorder has dropped them since."""

    def read(self, since: int, pending: list[int], names_known: int) -> RecorderChanges:
        """Return the exchanges from number `since` on, and results of the exchanges in `pending`."""
        first, exchanges = self._recorder.numbered()
        start = max(since, first)
        copies = []
        waiting = {number: self._pending[number] for number in pending if number in self._pending}
        for number, exchange in enumerate(exchanges[start - first :], start):
            copy = _copy(exchange)
            if copy.result is None:
                waiting[number] = exchange
            copies.append(copy)
        results = {}
        for number in pending:
            exchange_or_none = waiting.get(number)
            if exchange_or_none is None and first <= number < first + len(exchanges):
                exchange_or_none = exchanges[number - first]
            if exchange_or_none is not None and (result := exchange_or_none.result()) is not None:
                results[number] = result
                waiting.pop(number, None)
        self._pending = waiting
        names = list(self._recorder.topic_names.items())[names_known:]
        return RecorderChanges(first, start, copies, results, names)


class ChildExchange(Exchange):
    """A copy of an exchange. It gets its result on first access after the request is complete."""

    def __init__(self, copy: ExchangeCopy, names: TopicNames, refresh: Callable[[], None]) -> None:
        super().__init__(copy.received_at_s, copy.header, memoryview(copy.body), names)
        self.fault = copy.fault
        self.connection = copy.connection
        self.fetched_partitions = copy.fetched_partitions
        self._result = copy.result
        self._refresh = refresh

    def result(self) -> Result | None:
        """Return the result, or None while the request is in progress."""
        if self._result is None:
            self._refresh()
        return self._result

    def set_result(self, result: Result) -> None:
        """Set the result."""
        self._result = result


class ChildRecorder(Recorder):
    """The recorder of a broker in a child process."""

    def __init__(
        self,
        read: Callable[[int, list[int], int], RecorderChanges],
        clear: Callable[[], None],
        max_requests: int = MAX_EXCHANGES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Create a recorder that reads its changes with `read` (see `RecorderFeed.read`)."""
        super().__init__(max_requests, max_bytes)
        self._read, self._clear = read, clear
        self._next_number = 0
        self._pending: WeakValueDictionary[int, ChildExchange] = WeakValueDictionary()

    def numbered(self) -> tuple[int, list[Exchange]]:
        """Return the number of the first exchange that is kept, and the exchanges."""
        self._refresh()
        return super().numbered()

    def clear(self) -> None:
        """Drop all recorded exchanges."""
        self._clear()
        self._refresh()
        with self._lock:
            self._cleared_at = self._first_number

    def forget(self) -> None:
        """Drop all copies, because the broker is a new one."""
        with self._lock:
            self._exchanges.clear()
            self._pending.clear()
            self.topic_names.clear()
            self._first_number = self._next_number = self._cleared_at = 0

    def _refresh(self) -> None:
        # Several threads may do this at once. The lock is not held during the call: under gevent, the thread
        # that waits for the lock could be the one that has to run.
        changes = self._read(self._next_number, list(self._pending), len(self.topic_names))
        with self._lock:
            self.topic_names.update(changes.topic_names)
            for number, result in changes.results.items():
                exchange = self._pending.pop(number, None)
                if exchange is not None:
                    exchange.set_result(result)
            for number, copy in enumerate(changes.exchanges, changes.start):
                if number >= self._next_number:
                    self._add(number, copy)
            while self._exchanges and self._first_number < changes.first:
                self._exchanges.popleft()
                self._first_number += 1
            if not self._exchanges:
                self._first_number = max(self._first_number, changes.first)
                self._next_number = max(self._next_number, changes.first)

    def _add(self, number: int, copy: ExchangeCopy) -> None:
        exchange = ChildExchange(copy, self.topic_names, self._refresh)
        if not self._exchanges or number > self._next_number:  # those between were dropped
            self._exchanges.clear()
            self._first_number = number
        self._exchanges.append(exchange)
        self._next_number = number + 1
        if copy.result is None:
            self._pending[number] = exchange


def _copy(exchange: Exchange) -> ExchangeCopy:
    return ExchangeCopy(
        exchange.received_at_s,
        exchange.header,
        bytes(exchange.body),
        exchange.fault,
        exchange.connection,
        exchange.fetched_partitions,
        exchange.result(),
    )
