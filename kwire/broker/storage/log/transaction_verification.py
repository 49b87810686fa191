"""What producers have tried to begin a transaction with, until one of its batches is in the log. KIP-890.

A batch that is refused comes again. Those that its producer sent after it must not overtake it, though
nothing may be known of the producer that they could be out of order with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kwire.wire.batch import BatchHeader
from kwire.wire.errors import ApiError, ErrorCode


class VerificationState:
    """The batches that one producer has sent, whatever became of them."""

    __slots__ = ("began_ms", "epoch", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, epoch: int, sequence: int, *, supports_epoch_bump: bool, began_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.supports_epoch_bump = supports_epoch_bump
        """Whether the producer follows version 2 of the protocol, in which each transaction begins at 0."""
        self.began_ms = began_ms

    def update_lowest_sequence(self, epoch: int, sequence: int) -> None:
        """A batch was sent. An older epoch says nothing of the newer one."""
        if epoch > self.epoch or (epoch == self.epoch and sequence < self.lowest_sequence):
            self.epoch = epoch
            self.lowest_sequence = sequence


class _VerificationQueue:
    """Of a producer that sends more before it is told of the first: the answers may come from elsewhere."""

    __slots__ = ("is_calling", "is_taken", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.is_taken = True
        self.is_calling = False


class Verifications:
    """Those of one log, by producer id."""

    __slots__ = ("_begun", "_queues")

    def __init__(self) -> None:
        self._begun: dict[int, VerificationState] = {}
        self._queues: dict[int, _VerificationQueue] = {}

    def __len__(self) -> int:
        return len(self._begun)

    def begin(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool, began_ms: int
    ) -> VerificationState:
        """A batch is about to be appended that may begin its transaction here.

        What is returned is current until the transaction has begun here, or ended. `began_ms` is of the
        monotonic clock.
        """
        begun = self._begun.get(producer_id)
        if begun is None:
            begun = VerificationState(
                epoch, sequence, supports_epoch_bump=supports_epoch_bump, began_ms=began_ms
            )
            self._begun[producer_id] = begun
        begun.update_lowest_sequence(epoch, sequence)
        return begun

    def is_current(self, producer_id: int, begun: VerificationState) -> bool:
        """Whether neither a batch of the transaction nor its end has come since this was begun."""
        return self._begun.get(producer_id) is begun

    def is_verifying(self, producer_id: int) -> bool:
        """Whether a batch of the producer is being verified, which others must not overtake."""
        return producer_id in self._queues

    def run_in_turn(self, producer_id: int, go: Callable[[], None]) -> None:
        """Call this now, or when it is its turn: it is over with `end_turn`."""
        turns = self._queues.get(producer_id)
        if turns is not None:
            turns.waiting.append(go)
            return
        self._queues[producer_id] = _VerificationQueue()
        go()

    def end_turn(self, producer_id: int) -> None:
        """A batch is verified, or refused, and those behind it may go on."""
        turns = self._queues[producer_id]
        turns.is_taken = False
        if turns.is_calling:
            return
        turns.is_calling = True
        try:
            while turns.waiting and not turns.is_taken:
                turns.is_taken = True
                turns.waiting.popleft()()
        finally:
            turns.is_calling = False
            if turns.waiting and not turns.is_taken:
                self.end_turn(producer_id)  # one of them has failed, not those behind it
            elif not turns.is_taken:
                del self._queues[producer_id]

    def check(self, header: BatchHeader, *, is_unknown: bool) -> None:
        """Whether a batch overtakes one that was refused. OUT_OF_ORDER_SEQUENCE_NUMBER.

        `is_unknown`: the log has no batch of the producer.
        """
        begun = self._begun.get(header.producer_id)
        if begun is None:
            return
        sequence = header.base_sequence
        if (begun.supports_epoch_bump and sequence != 0 and is_unknown) or sequence > begun.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Sequence {sequence} of producer {header.producer_id} comes before an earlier one that was "
                f"refused.",
            )

    def complete(self, header: BatchHeader) -> None:
        """A batch of the transaction is in the log, or a marker.

        In version 2 the marker of a transaction has a later epoch than its batches. One of the same epoch
        ends what was before, and what is about to begin goes on.
        """
        begun = self._begun.get(header.producer_id)
        if begun is None:
            return
        if header.is_control and begun.supports_epoch_bump and begun.epoch == header.producer_epoch:
            return
        del self._begun[header.producer_id]

    def expire(self, oldest_ms: int) -> None:
        """Forget what began before a time, or then."""
        self._begun = {
            producer_id: begun for producer_id, begun in self._begun.items() if begun.began_ms > oldest_ms
        }
