"""What is asked of other brokers, together where it comes together: one request at a time for each of them.

What comes up while a broker is being asked goes into the next request. Who asks again after a failure does so
by itself, of whoever is the right one by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from kwire.host.host import Host, PeerAddress, PeerUnreachable
from kwire.wire.schema import Message

MAX_BATCHED: Final = 1_000

Q = TypeVar("Q")


class BatchedApi(Protocol[Q]):
    """What one kind of question has of its own."""

    @property
    def purpose(self) -> str:
        """Of the connections that it is asked over."""

    def select_batch(self, waiting: list[Q]) -> tuple[list[Q], list[Q]]:
        """Which of those that wait go into one request, maybe none, and which have to wait on."""

    def build_request(self, batch: Sequence[Q]) -> Message:
        """The request for these, which are some."""

    def handle_response(self, batch: Sequence[Q], response: Message | PeerUnreachable) -> None:
        """What came of the request for these."""


class RequestBatcher(Generic[Q]):
    """The questions of one kind, by the broker that they are for."""

    def __init__(
        self,
        api: BatchedApi[Q],
        host: Host,
        address_of: Callable[[int], PeerAddress | None],
        timeout_ms: Callable[[], int],
    ) -> None:
        """`timeout_ms` is how long a broker may take to answer."""
        self._api = api
        self._host = host
        self._address_of = address_of
        self._timeout_ms = timeout_ms
        self.waiting: dict[int, list[Q]] = {}
        self.in_flight: dict[int, Sequence[Q]] = {}

    def submit(self, broker_id: int, item: Q) -> None:
        """Ask, together with what else is asked in this turn or until this broker has on_response."""
        waiting = self.waiting.setdefault(broker_id, [])
        waiting.append(item)
        if len(waiting) == 1 and broker_id not in self.in_flight:
            self._host.call_soon(partial(self._send, broker_id))

    def _send(self, broker_id: int) -> None:
        if broker_id in self.in_flight or broker_id not in self.waiting:
            return
        batch, left = self._api.select_batch(self.waiting.pop(broker_id))
        if left:
            self.waiting[broker_id] = left
        if not batch:
            return
        self.in_flight[broker_id] = batch

        def on_response(response: Message | PeerUnreachable) -> None:
            del self.in_flight[broker_id]
            try:
                self._api.handle_response(batch, response)
            finally:
                self._send(broker_id)

        address = self._address_of(broker_id)
        if address is None:
            error = PeerUnreachable(f"broker {broker_id} is not registered")
            self._host.call_soon(lambda: on_response(error))
            return
        deadline_ms = self._host.internode_clock.monotonic_ms() + self._timeout_ms()
        request = self._api.build_request(batch)
        self._host.peers.send(
            address, self._api.purpose, request, deadline_ms=deadline_ms, on_response=on_response
        )
