"""Transaction verification for producers whose transaction has no batch in the log yet. KIP-890.

If a batch is rejected, the producer sends it again. Later batches of the producer must not be appended before
that batch, even if the log has no producer state that shows them to be out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kwire.wire.batch import BatchHeader
from kwire.wire.errors import ApiError, ErrorCode


class VerificationState:
    """The lowest sequence in the batches that a producer has sent since its verification began.

    Rejected batches count, too.
    """

    __slots__ = ("began_ms", "epoch", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, epoch: int, sequence: int, *, supports_epoch_bump: bool, began_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.supports_epoch_bump = supports_epoch_bump
        """Whether the producer uses transaction version 2, in which each transaction starts at sequence 0."""
        self.began_ms = began_ms

    def update_lowest_sequence(self, epoch: int, sequence: int) -> None:
        """Record the epoch and base sequence of a batch. Batches of an older epoch are ignored."""
        if epoch > self.epoch or (epoch == self.epoch and sequence < self.lowest_sequence):
            self.epoch = epoch
            self.lowest_sequence = sequence


class _VerificationQueue:
    """The batches of one producer that wait for the verification of an earlier batch, to keep their order."""

    __slots__ = ("is_calling", "is_taken", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.is_taken = True
        self.is_calling = False


class Verifications:
    """The verification states of one log, by producer id."""

    __slots__ = ("_begun", "_queues")

    def __init__(self) -> None:
        self._begun: dict[int, VerificationState] = {}
        self._queues: dict[int, _VerificationQueue] = {}

    def __len__(self) -> int:
        return len(self._begun)

    def begin(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool, began_ms: int
    ) -> VerificationState:
        """Record a batch that may start its producer's transaction in this log.

        The returned state is current until the transaction has started or ended in this log. `sequence` is
        the batch's base sequence. `began_ms` is a monotonic time.
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
        """Return whether the transaction has neither started nor ended in this log since `begin`."""
        return self._begun.get(producer_id) is begun

    def is_verifying(self, producer_id: int) -> bool:
        """Return whether a batch of the producer is being verified, so that later batches must wait."""
        return producer_id in self._queues

    def run_in_turn(self, producer_id: int, go: Callable[[], None]) -> None:
        """Call `go` now, or after the verification of the producer's earlier batches.

        `end_turn` must be called after the verification that `go` starts.
        """
        turns = self._queues.get(producer_id)
        if turns is not None:
            turns.waiting.append(go)
            return
        self._queues[producer_id] = _VerificationQueue()
        go()

    def end_turn(self, producer_id: int) -> None:
        """End the verification of a batch, and start that of the producer's next waiting batch."""
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
                self.end_turn(producer_id)  # this call has raised; the other waiting batches continue
            elif not turns.is_taken:
                del self._queues[producer_id]

    def check(self, header: BatchHeader, *, is_unknown: bool) -> None:
        """Check that a batch does not overtake a rejected batch. Raises OUT_OF_ORDER_SEQUENCE_NUMBER.

        `is_unknown` means that the producer state has no batch of the producer.
        """
        begun = self._begun.get(header.producer_id)
        if begun is None:
            return
        sequence = header.base_sequence
        if (begun.supports_epoch_bump and sequence != 0 and is_unknown) or sequence > begun.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Sequence {sequence} of producer {header.producer_id} follows a batch that was rejected. "
                f"The producer must send that batch first.",
            )

    def complete(self, header: BatchHeader) -> None:
        """Drop the producer's state after a batch or the marker of the transaction was appended.

        With transaction version 2, a marker has a later epoch than the batches of its transaction. A marker
        with the same epoch belongs to an earlier transaction, so the state is kept.
        """
        begun = self._begun.get(header.producer_id)
        if begun is None:
            return
        if header.is_control and begun.supports_epoch_bump and begun.epoch == header.producer_epoch:
            return
        del self._begun[header.producer_id]

    def expire(self, oldest_ms: int) -> None:
        """Drop the states that began at `oldest_ms`, a monotonic time, or before."""
        self._begun = {
            producer_id: begun for producer_id, begun in self._begun.items() if begun.began_ms > oldest_ms
        }
