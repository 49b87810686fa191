"""What the machine of the quorum has its shell do, strictly in this order.

A `Remember` that is a promise holds up what comes behind it until it is durable, however long that takes: the
machine goes on meanwhile, and it is only what others hear, and what the log gets, that waits.
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
    """Ask a node: `answered(number, ...)` is called once, by the deadline. Several may be under way."""

    number: int
    to: PeerAddress
    request: Message
    deadline_ms: int


class Answer(NamedTuple):
    """Answer who has asked something."""

    asker: object
    response: Message


class Remember(NamedTuple):
    """Have `quorum-state` say this.

    If it is a promise, nothing behind it is done before the file is durable, with this or with something
    newer.
    """

    state: QuorumState
    is_promise: bool


class Tell(NamedTuple):
    """Leader, epoch, the leader's address or the role have changed: whoever follows that is to hear it."""


class Unlead(NamedTuple):
    """This node does not lead any more: it appends nothing more that it has decided, for this reason."""

    reason: ErrorCode


class AppendControls(NamedTuple):
    """Append control records, given by their types, as one batch of the epoch; then `controls_appended`.

    Nothing is done, and nothing called, if the machine does not lead that epoch any more.
    """

    epoch: int
    controls: Sequence[tuple[int, Message]]


class Append(NamedTuple):
    """Write what the leader of `epoch` has sent; `refused` where it does not fit.

    Of who may vote it is synced then, and `synced` is called: it fetches no more until that.
    """

    records: Buffer
    epoch: int


class Cut(NamedTuple):
    """Forget the log from an offset on, sync that, and call `synced`: nothing is asked for before.

    A sync that began before tells nothing of what follows.
    """

    offset: int


class Advance(NamedTuple):
    """All is committed up to there, as far as it is here."""

    high_watermark: int


class BeginSnapshot(NamedTuple):
    """Begin to write a snapshot that is fetched; what was begun before is of no use."""

    snapshot: Snapshot


class AddToSnapshot(NamedTuple):
    """The next bytes of it."""

    data: Buffer


class Install(NamedTuple):
    """All of it is there: check it, make it durable, and begin the log behind it; then `installed`.

    That the log begins there is synced then, and `synced` is called, as after a `Cut`.
    """


class DropSnapshot(NamedTuple):
    """It will not be completed."""


class Complain(NamedTuple):
    """Tell the operator."""

    text: str
    is_fault: bool = True
    """Somebody's; else it is what can happen to any quorum."""


class Fail(NamedTuple):
    """The node has to end."""

    reason: str


Output = (
    Send | Answer | Remember | Tell | Unlead | AppendControls | Append | Cut | Advance | BeginSnapshot
    | AddToSnapshot | Install | DropSnapshot | Complain | Fail
)  # fmt: skip
