"""The contract of a coordinator's state machine: commands return records, and replaying them changes state.

A state machine has no thread, log or socket. A command reads the state and returns a `CoordinatorResult`:
records to append to the machine's partition, and a callback for when they are committed. `replay` changes the
durable state. It is called for each record in log order, with the record's offset: when a partition is
loaded, and as soon as a running machine's records are appended. The exception are records marked `applied`:
the command itself has changed the state, so a running machine does not replay them. Later commands see the
changes at once. Clients see them later: the response to a command waits until all records appended so far are
committed. If an append is lost, the state machine is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from kwire.host.loggers import NodeLogger
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message

Committed = Callable[[ApiError | None], None]
"""Called with None when a command's records are committed, or with the error if they are not."""


def ignore_outcome(_error: ApiError | None) -> None:
    """Do nothing: no client waits for these records."""


class CoordinatorRecord(NamedTuple):
    """One record of the coordinator's partition: a key, and a value or a tombstone."""

    key: Message
    value: Message | None
    value_version: int = 0
    applied: bool = False
    """Whether the record's effect is already in memory, so that it need not be replayed."""


class CoordinatorResult(NamedTuple):
    """The records of a command, and a callback for when they are committed.

    Without records, `committed` is called when the records of all earlier commands are committed, possibly at
    once.
    """

    records: Sequence[CoordinatorRecord] = ()
    committed: Committed = ignore_outcome
    producer: tuple[int, int] | None = None
    """The producer (id, epoch) whose transaction contains the records, or None if they are in no transaction.

    Transactional records take effect when the transaction commits.
    """
    written: Callable[[int], None] | None = None
    """Called with the offset of the last record when the log has all records, before they are committed."""


EMPTY_RESULT: Final = CoordinatorResult()
"""The result of a command that changes nothing."""


HeartbeatFastPath = Callable[[], bool]
"""A function that handles a repetition of a member's last heartbeat by renewing the member's session.

Returns False, and does nothing, if the request must be handled in full.
"""


class TimerHandle(Protocol):
    """A scheduled command."""

    def cancel(self) -> None:
        """Cancel the command."""

    def postpone(self, delay_ms: int) -> bool:
        """Reschedule the command to `delay_ms` from now, and return whether that was possible.

        The effect is that of canceling and scheduling again, at a much lower cost. Returns False, and changes
        nothing, if the command has run or was canceled, or if the new time would be earlier.
        """


class CoordinatorContext(Protocol):
    """The services of the runtime for a state machine."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds, for stored timestamps."""

    def monotonic_ms(self) -> int:
        """Return the monotonic time in milliseconds, for durations."""

    def schedule(self, delay_ms: int, command: Callable[[], CoordinatorResult]) -> TimerHandle:
        """Run a command of this state machine after `delay_ms`, unless the machine is unloaded earlier."""

    def execute(self, result: CoordinatorResult) -> None:
        """Append and replay the records of a command that no request has caused."""

    def new_uuid(self) -> str:
        """Return a random UUID in its usual text form."""

    def logger(self, name: str) -> NodeLogger:
        """Return this node's logger with the given name, such as `kwire.coordinator`."""


DecodedRecord = tuple[Message, Message | None, int]
"""A record's key, value and offset."""


class CoordinatorStateMachine(Protocol):
    """The methods of a coordinator's state machine that the runtime calls. Kafka: CoordinatorShard."""

    def decode_batch(self, data: memoryview) -> Iterator[DecodedRecord]:
        """Decode the records of a stored batch. Raises CorruptBatch or WireError."""

    def replay(self, key: Message, value: Message | None, offset: int) -> None:
        """Apply a record to the state. `offset` is the record's offset in the log."""

    def record_pending(self, key: Message) -> None:
        """Remember the state of this key before a record that is not committed yet is replayed."""

    def record_committed(self, key: Message) -> None:
        """Forget the oldest state that was remembered for this key: its record is committed."""

    def transactional_record_written(self, key: Message) -> None:
        """Handle a record of a transaction. The record is held back until the transaction commits."""

    def replay_transactional(self, key: Message, value: Message | None, offset: int) -> None:
        """Apply a record of a transaction that has committed."""

    def on_loaded(self) -> None:
        """Start timers and resume unfinished work after the log was loaded. Commands follow."""

    def on_unloaded(self, code: ErrorCode) -> None:
        """Complete all waiting requests with this error because the partition is unloaded."""
