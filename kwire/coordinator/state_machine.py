"""What every coordinator machine is: commands give records, and records are the state that survives.

A machine has no clock loop, no log and no socket. A command reads the state and gives a
`CoordinatorResult`: records to append to the machine's partition, and what to do when they are committed.
Durable state changes only through `replay`, which is called for each record in the order of the log: when a
partition is loaded, and for the records of a running machine as soon as they are appended. So later
commands see them at once; but nobody is told, not even a reader, before everything that was appended until
then is committed. Should it be lost, the whole machine is discarded. A record that describes what memory
holds already (`applied`) is not replayed while the machine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kwire.host.loggers import NodeLogger
from kwire.wire.errors import ApiError
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message

Committed = Callable[[ApiError | None], None]


def ignore_outcome(_error: ApiError | None) -> None:
    """For records that nobody waits for."""


class CoordinatorRecord(NamedTuple):
    """One record of the coordinator's partition: a key, and a value or a tombstone."""

    key: Message
    value: Message | None
    value_version: int = 0
    applied: bool = False
    """Whether memory holds this already, so that replaying it would change nothing."""


class CoordinatorResult(NamedTuple):
    """The outcome of a command.

    With no records, `committed` is called when those of all earlier commands are committed; at once, where
    they are already.
    """

    records: Sequence[CoordinatorRecord] = ()
    committed: Committed = ignore_outcome
    producer: tuple[int, int] | None = None
    """The producer (id, epoch) in whose transaction the records are written: they count if it commits."""


EMPTY_RESULT: Final = CoordinatorResult()
"""Of a command that changes nothing."""


HeartbeatFastPath = Callable[[], bool]
"""Keeps a member's session alive, as its last heartbeat did.

False, and nothing is done, where the same request might do something else by now.
"""


class TimerHandle(Protocol):
    """A later call that can be called off."""

    def cancel(self) -> None:
        """Do not make the call."""

    def postpone(self, delay_ms: int) -> bool:
        """Make the call when `delay_ms` have passed from now, instead of before.

        As if it were called off and asked for again, but much cheaper. False, and nothing changes, where
        there is nothing to postpone: the call was made or called off, or this would be sooner.
        """


class CoordinatorContext(Protocol):
    """What a machine may ask of its runtime."""

    def now_ms(self) -> int:
        """Wall-clock time, for what is stored."""

    def monotonic_ms(self) -> int:
        """Time that no clock's setting moves, for durations."""

    def schedule(self, delay_ms: int, command: Callable[[], CoordinatorResult]) -> TimerHandle:
        """Run a command of this machine when `delay_ms` have passed, unless the machine is gone by then."""

    def new_uuid(self) -> str:
        """A random UUID in its usual text form."""

    def logger(self, name: str) -> NodeLogger:
        """The logger of that name, for the node that the machine is on."""
