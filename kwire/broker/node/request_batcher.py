"""Batching of items into requests to other brokers, with one request at a time per broker.

While a request to a broker is in flight, new items for that broker wait for the next request. The batcher
does not retry: after a failure, the caller decides whether to send the item again and to which broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from kwire.host.host import Host, PeerAddress, PeerUnreachable
from kwire.wire.schema import Message

MAX_BATCHED: Final = 1_000
"""The largest number of items in a request."""

Q = TypeVar("Q")


class BatchedApi(Protocol[Q]):
    """The API of the requests: how to choose items, build a request and handle its response."""

    @property
    def purpose(self) -> str:
        """The purpose of the connections that send the requests, for `Peers.send`."""

    def select_batch(self, waiting: list[Q]) -> tuple[list[Q], list[Q]]:
        """Return the items for the next request (may be empty) and the items that must wait longer."""

    def build_request(self, batch: Sequence[Q]) -> Message:
        """Return the request for a batch of at least one item."""

    def handle_response(self, batch: Sequence[Q], response: Message | PeerUnreachable) -> None:
        """Handle the response to the request for a batch, or the failure of the request."""


class RequestBatcher(Generic[Q]):
    """The items of one API that wait to be sent or for a response, by broker."""

    def __init__(
        self,
        api: BatchedApi[Q],
        host: Host,
        address_of: Callable[[int], PeerAddress | None],
        timeout_ms: Callable[[], int],
    ) -> None:
        """`timeout_ms` returns the request timeout.

        `address_of` returns None for a broker that is not registered, or has no inter-broker listener of this
        broker's inter.broker.listener.name.
        """
        self._api = api
        self._host = host
        self._address_of = address_of
        self._timeout_ms = timeout_ms
        self.waiting: dict[int, list[Q]] = {}
        self.in_flight: dict[int, Sequence[Q]] = {}

    def submit(self, broker_id: int, item: Q) -> None:
        """Send an item at the end of this turn, or after the response to the request in flight."""
        waiting = self.waiting.setdefault(broker_id, [])
        waiting.append(item)
        if len(waiting) == 1 and broker_id not in self.in_flight:
            self._host.call_soon(partial(self._send, broker_id))

    def _send(self, broker_id: int) -> None:
        if broker_id in self.in_flight or broker_id not in self.waiting:
            return
        batch, rest = self._api.select_batch(self.waiting.pop(broker_id))
        if rest:
            self.waiting[broker_id] = rest
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
            error = PeerUnreachable(f"broker {broker_id} is not registered with the inter-broker listener")
            self._host.call_soon(lambda: on_response(error))
            return
        deadline_ms = self._host.internode_clock.monotonic_ms() + self._timeout_ms()
        request = self._api.build_request(batch)
        self._host.peers.send(
            address, self._api.purpose, request, deadline_ms=deadline_ms, on_response=on_response
        )
