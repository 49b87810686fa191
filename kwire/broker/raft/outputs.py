"""The outputs of the KRaft state machine. The caller executes them strictly in order.

A `Remember` with `is_promise` contains a vote or an epoch that other nodes will rely on. It blocks all later
outputs until quorum-state is durable. The machine itself continues; only its messages and log writes wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.snapshots import Snapshot
from kwire.host.host import InternodeTime, PeerAddress
from kwire.wire.errors import ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Buffer
from kwire.wire.schema import Message


class Send(NamedTuple):
    """Send a request, and call `Machine.handle_response` once with `number`, by the deadline.

    Other requests may be in flight.
    """

    number: int
    to: PeerAddress
    request: Message
    deadline_ms: InternodeTime


class Reached(NamedTuple):
    """End the backoffs of connections to this voter, because the voter has sent a request."""

    address: PeerAddress


class Requester(Protocol):
    """The sender of a request to the quorum, which waits for the response."""

    @property
    def api_version(self) -> int: ...

    def complete(self, response: Message) -> None: ...


class Respond(NamedTuple):
    """Send the response to the request for which `Machine.handle_request` got this `requester`."""

    requester: object
    response: Message


class Remember(NamedTuple):
    """Write quorum-state.

    With `is_promise`, later outputs wait until the file is durable with this state or a newer state.
    """

    state: QuorumState
    is_promise: bool


class Tell(NamedTuple):
    """Notify subscribers that the leader, its epoch, its address or this node's role has changed."""


class Unlead(NamedTuple):
    """Stop appending the controller's records, because this node is no longer the leader."""

    reason: ErrorCode


class AppendControls(NamedTuple):
    """Append control records, given with their types, as one batch, and call `controls_appended`.

    Nothing is appended if the machine is no longer the leader in that epoch.
    """

    epoch: int
    controls: Sequence[tuple[int, Message]]


class Append(NamedTuple):
    """Append records of the leader of `epoch`. Call `refused` if they do not follow this log.

    On a controller, the log is then synced and `synced` is called. The machine fetches nothing before that.
    """

    records: Buffer
    epoch: int


class Truncate(NamedTuple):
    """Truncate the log to an offset, sync it, and call `synced`. The machine fetches nothing before that.

    A sync that began before the truncation does not count.
    """

    offset: int


class Advance(NamedTuple):
    """Raise the high watermark, but not above the log end offset."""

    high_watermark: int


class BeginSnapshot(NamedTuple):
    """Start the download of a snapshot, which replaces an earlier download."""

    snapshot: Snapshot


class AddToSnapshot(NamedTuple):
    """Append bytes to the downloaded snapshot."""

    data: Buffer


class Install(NamedTuple):
    """Check the downloaded snapshot, sync it, restart the log after it, and call `installed`.

    Afterwards the new log start is synced and `synced` is called, as after a `Truncate`.
    """


class DropSnapshot(NamedTuple):
    """Abandon the download."""


class Complain(NamedTuple):
    """Write a log line for operators."""

    text: str
    is_fault: bool = True
    """True for an error of a node (logged as error), false for a normal event (logged as warning)."""


class Fail(NamedTuple):
    """Stop the node."""

    reason: str


Output = (
    Send | Reached | Respond | Remember | Tell | Unlead | AppendControls | Append | Truncate | Advance
    | BeginSnapshot | AddToSnapshot | Install | DropSnapshot | Complain | Fail
)  # fmt: skip
