"""Reports of log directories and their replicas to the controller, as in AssignmentsManager. KIP-858.

The report of a replica is repeated until the controller has accepted it, or until the metadata shows that the
replica does not exist. Without the report, the controller would not elect another leader if the directory of
the replica failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from kwire.broker.controller.commands import AssignReplicasToDirs
from kwire.broker.controller.port import ControllerPort
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.node.broker_lifecycle import BrokerLifecycleManager
from kwire.broker.replication.directory_moves import OnAssigned
from kwire.broker.replication.log_dirs import DirectoryAssignments
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import Uuid

MAX_ASSIGNMENTS_PER_REQUEST: Final = 2_250
MIN_BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 10_000

TopicIdPartition = tuple[Uuid, int]


class _Assignment(NamedTuple):
    directory_id: Uuid
    on_assigned: list[OnAssigned]


class NodeAssignmentsManager:
    """`AssignmentsManager` of one broker."""

    def __init__(
        self,
        controller: ControllerPort,
        lifecycle: BrokerLifecycleManager,
        host: Host,
        node_id: int,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._controller = controller
        self._lifecycle = lifecycle
        self._host = host
        self._logger = host.logger("kwire.node")
        self._node_id = node_id
        self._image = image
        self._pending: dict[TopicIdPartition, _Assignment] = {}
        """The assignments that the controller has not accepted yet."""
        self._is_sending = False
        """Whether a request is in flight or scheduled."""
        self._has_new_leader = False
        """Whether there is a new active controller since the request in flight was sent."""
        self._is_stopped = False
        self._backoff_ms = MIN_BACKOFF_MS
        self._timer: Timer | None = None

    def assign(self, directory_ids: DirectoryAssignments, on_assigned: OnAssigned | None = None) -> None:
        if self._is_stopped:
            return
        for replica, directory_id in directory_ids.items():
            assignment = self._pending.get(replica)
            if assignment is None or assignment.directory_id != directory_id:
                assignment = self._pending[replica] = _Assignment(directory_id, [])
            if on_assigned is not None:
                assignment.on_assigned.append(on_assigned)
        if not self._is_sending:
            self._is_sending = True
            self._host.call_soon(self._send)

    def retry_now(self) -> None:
        """Retry without backoff, because there is a new active controller."""
        self._backoff_ms, self._has_new_leader = MIN_BACKOFF_MS, True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._send()

    def stop(self) -> None:
        """Send no more assignments, because the broker is shutting down. The next start sends them."""
        self._is_stopped = True
        self._pending.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._timer = None
        image = self._image()
        sent: dict[TopicIdPartition, _Assignment] = {}
        for replica, assignment in list(self._pending.items()):
            if not self._is_replica(image, replica):
                del self._pending[replica]
            elif len(sent) < MAX_ASSIGNMENTS_PER_REQUEST:
                sent[replica] = assignment
        self._is_sending, self._has_new_leader = bool(sent), False
        if sent:
            directory_ids = {replica: assignment.directory_id for replica, assignment in sent.items()}
            self._controller.submit(
                AssignReplicasToDirs(self._node_id, self._lifecycle.broker_epoch, directory_ids),
                partial(self._handle_reply, sent),
            )

    def _is_replica(self, image: MetadataImage, replica: TopicIdPartition) -> bool:
        topic_id, index = replica
        topic = image.topics_by_id.get(topic_id)
        return (
            topic is not None
            and index < len(topic.partitions)
            and self._node_id in topic.partitions[index].replicas
        )

    def _handle_reply(
        self,
        sent: Mapping[TopicIdPartition, _Assignment],
        reply: Mapping[TopicIdPartition, ErrorCode] | ApiError,
    ) -> None:
        """Retry what the controller has not accepted. `reply` has an error for each refused replica."""
        refused = dict.fromkeys(sent, reply.code) if isinstance(reply, ApiError) else reply
        for replica, assignment in sent.items():
            # If the replica has got another directory meanwhile, the manager reports that directory next.
            if replica not in refused and self._pending.get(replica) is assignment:
                del self._pending[replica]
                for on_assigned in assignment.on_assigned:
                    on_assigned()
        if not refused or not self._pending or self._has_new_leader:
            self._backoff_ms = MIN_BACKOFF_MS
            self._send()
            return
        if isinstance(reply, ApiError):
            self._logger.warning(
                "Cannot report the log directories of %s to the controller, will retry in %d ms: %s",
                *(plural(len(sent), "replica"), self._backoff_ms, reply),
            )
        else:
            # The usual reason is that the topic was deleted, or the replica reassigned. The metadata follows.
            codes = ", ".join(sorted({code.name for code in refused.values()}))
            self._logger.info(
                "The controller has refused the log directories of %s, will retry in %d ms: %s",
                *(plural(len(refused), "replica"), self._backoff_ms, codes),
            )
        self._timer = self._host.internode_clock.schedule(self._backoff_ms, self._send)
        self._backoff_ms = min(2 * self._backoff_ms, MAX_BACKOFF_MS)

    def report_directories(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid]) -> None:
        self._lifecycle.report_directories(failed, cordoned)
