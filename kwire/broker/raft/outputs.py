"""The outputs of the KRaft state machine, which its caller executes strictly in order.

A `Remember` with `is_promise` blocks all later outputs until quorum-state is durable. The machine itself
continues; only its messages and log writes wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.snapshots import Snapshot
from kwire.host.host import PeerAddress
from kwire.wire.errors import ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Buffer
from kwire.wire.schema import Message


class Send(NamedTuple):
    """Send a request. `answered(number, ...)` is called once, by the deadline. Several may be in flight."""

    number: int
    to: PeerAddress
    request: Message
    deadline_ms: int


class Answer(NamedTuple):
    """Send the response to a request."""

    asker: object
    response: Message


class Remember(NamedTuple):
    """Write quorum-state.

    If it is a promise, no later output is executed before the file is durable, with this state or a newer
    one.
    """

    state: QuorumState
    is_promise: bool


class Tell(NamedTuple):
    """Notify subscribers: the leader, its epoch, its address or this node's role changed."""


class Unlead(NamedTuple):
    """Stop appending decisions, because this node is no longer the leader."""

    reason: ErrorCode


class AppendControls(NamedTuple):
    """Append control records, with their types, as one batch of the epoch; then call `controls_appended`.

    Nothing happens if the machine is no longer the leader of that epoch.
    """

    epoch: int
    controls: Sequence[tuple[int, Message]]


class Append(NamedTuple):
    """Append the records of the leader of `epoch`; call `refused` if they do not follow this log.

    On a controller the log is then synced, and `synced` is called. It fetches nothing before that.
    """

    records: Buffer
    epoch: int


class Cut(NamedTuple):
    """Truncate the log to an offset, sync it, and call `synced`. Nothing is fetched before that.

    A sync that began earlier does not count.
    """

    offset: int


class Advance(NamedTuple):
    """Raise the high watermark, as far as the log reaches."""

    high_watermark: int


class BeginSnapshot(NamedTuple):
    """Start the download of a snapshot, in place of an earlier one."""

    snapshot: Snapshot


class AddToSnapshot(NamedTuple):
    """Append bytes to the downloaded snapshot."""

    data: Buffer


class Install(NamedTuple):
    """Check the downloaded snapshot, sync it, and restart the log after it; then call `installed`.

    The new log start is synced afterwards, and `synced` is called, as after a `Cut`.
    """


class DropSnapshot(NamedTuple):
    """Abandon the download."""


class Complain(NamedTuple):
    """Log a message for operators."""

    text: str
    is_fault: bool = True
    """Whether it is an error of some node. Otherwise it is a warning of a normal event."""


class Fail(NamedTuple):
    """Stop the node."""

    reason: str


Output = (
    Send | Answer | Remember | Tell | Unlead | AppendControls | Append | Cut | Advance | BeginSnapshot
    | AddToSnapshot | Install | DropSnapshot | Complain | Fail
)  # fmt: skip
