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

    def together(self, waiting: list[Q]) -> tuple[list[Q], list[Q]]:
        """Which of those that wait go into one request, maybe none, and which have to wait on."""

    def request(self, questions: Sequence[Q]) -> Message:
        """The request for these, which are some."""

    def answered(self, questions: Sequence[Q], answer: Message | PeerUnreachable) -> None:
        """What came of the request for these."""


class RequestBatcher(Generic[Q]):
    """The questions of one kind, by the broker that they are for."""

    def __init__(
        self,
        kind: BatchedApi[Q],
        host: Host,
        address_of: Callable[[int], PeerAddress | None],
        timeout_ms: Callable[[], int],
    ) -> None:
        """`timeout_ms` is how long a broker may take to answer."""
        self._kind = kind
        self._host = host
        self._address_of = address_of
        self._timeout_ms = timeout_ms
        self.waiting: dict[int, list[Q]] = {}
        self.under_way: dict[int, Sequence[Q]] = {}

    def ask(self, broker_id: int, question: Q) -> None:
        """Ask, together with what else is asked in this turn or until this broker has answered."""
        waiting = self.waiting.setdefault(broker_id, [])
        waiting.append(question)
        if len(waiting) == 1 and broker_id not in self.under_way:
            self._host.call_soon(partial(self._send, broker_id))

    def _send(self, broker_id: int) -> None:
        if broker_id in self.under_way or broker_id not in self.waiting:
            return
        questions, left = self._kind.together(self.waiting.pop(broker_id))
        if left:
            self.waiting[broker_id] = left
        if not questions:
            return
        self.under_way[broker_id] = questions

        def answered(answer: Message | PeerUnreachable) -> None:
            del self.under_way[broker_id]
            try:
                self._kind.answered(questions, answer)
            finally:
                self._send(broker_id)

        address = self._address_of(broker_id)
        if address is None:
            error = PeerUnreachable(f"broker {broker_id} is not registered")
            self._host.call_soon(lambda: answered(error))
            return
        deadline_ms = self._host.internode_clock.monotonic_ms() + self._timeout_ms()
        request = self._kind.request(questions)
        self._host.peers.send(
            address, self._kind.purpose, request, deadline_ms=deadline_ms, on_response=answered
        )
