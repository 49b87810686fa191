"""BrokerHeartbeat: a broker says that it lives and what it wants to be, and hears what it is. KIP-631.

A broker is unfenced once its metadata has its registration. One that wants to end is first in a controlled
shutdown: others lead from there on, and it may end when it leads nothing and all that serve know of it.

Directories that have failed take their replicas with them (KIP-858); in cordoned ones nothing new is placed
(KIP-1066).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from kwire.broker.controller.brokers import checked_broker, fenced_records, unfenced_records
from kwire.broker.controller.commands import BrokerHeartbeat, HeartbeatReply, Result
from kwire.broker.controller.directories import cordoned_records, offline_records
from kwire.broker.controller.liveness import Liveness
from kwire.broker.controller.partition_changes import departures, replayed
from kwire.broker.metadata.image import BrokerImage, MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.wire.stored.metadata import BrokerRegistrationChangeRecord


class State(Enum):
    """What a registered broker is."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    """Unfenced, and about to go: it gives up what it leads."""
    SHUT_DOWN = auto()
    """Fenced, and free to end."""


MOVES: Final[dict[State, frozenset[State]]] = {
    State.FENCED: frozenset({State.FENCED, State.UNFENCED, State.SHUT_DOWN}),
    State.UNFENCED: frozenset(State),
    State.CONTROLLED_SHUTDOWN: frozenset({State.CONTROLLED_SHUTDOWN, State.SHUT_DOWN}),
}
"""What a heartbeat can make of a broker."""


def broker_heartbeat(
    command: BrokerHeartbeat, image: MetadataImage, liveness: Liveness, *, may_lose: bool
) -> Result[HeartbeatReply]:
    """What the broker is from here on. ApiError: STALE_BROKER_EPOCH."""
    broker = checked_broker(image, command.broker_id, command.broker_epoch)
    is_caught_up = command.current_metadata_offset >= liveness.registered_at(broker)
    before = _state(broker, liveness)
    after = _next(before, command, is_caught_up, broker, image, liveness)
    assert after in MOVES[before], f"a heartbeat made {after.name} of {before.name}"
    records = offline_records(image, broker, command.offline_log_dirs, may_lose=may_lose)
    if records:
        # It must not be given anything to lead in a directory that it has just lost.
        image = replayed(image, records)
        broker = image.brokers[broker.broker_id]
    if after is not before:
        records += _records(after, broker, image, may_lose=may_lose)
    if command.cordoned_log_dirs is not None:
        records += cordoned_records(image, broker, command.cordoned_log_dirs)
    reply = HeartbeatReply(
        is_caught_up,
        is_fenced=after in (State.FENCED, State.SHUT_DOWN),
        should_shut_down=after is State.SHUT_DOWN,
        in_controlled_shutdown=after is State.CONTROLLED_SHUTDOWN,
    )
    return Result(records, reply, atomic=False)


def _state(broker: BrokerImage, liveness: Liveness) -> State:
    if broker.fenced:
        return State.FENCED
    return State.UNFENCED if liveness.shutdown_offset(broker) < 0 else State.CONTROLLED_SHUTDOWN


def _next(
    state: State,
    wants: BrokerHeartbeat,
    is_caught_up: bool,
    broker: BrokerImage,
    image: MetadataImage,
    liveness: Liveness,
) -> State:
    if state is State.FENCED:
        if wants.want_shut_down:
            return State.SHUT_DOWN
        # A life that was about to end does not begin again: no record would make it active.
        may_lead = is_caught_up and not broker.in_controlled_shutdown
        return State.UNFENCED if may_lead and not wants.want_fence else State.FENCED
    if state is State.UNFENCED:
        if wants.want_fence:
            return State.SHUT_DOWN if wants.want_shut_down else State.FENCED
        if wants.want_shut_down:
            return State.CONTROLLED_SHUTDOWN if _leads(image, broker) else State.SHUT_DOWN
        return State.UNFENCED
    lowest = liveness.lowest_active_offset(image)
    is_known = lowest is None or liveness.shutdown_offset(broker) <= lowest
    return State.SHUT_DOWN if is_known and not _leads(image, broker) else State.CONTROLLED_SHUTDOWN


def _leads(image: MetadataImage, broker: BrokerImage) -> bool:
    return any(
        partition.leader == broker.broker_id
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def _records(
    state: State, broker: BrokerImage, image: MetadataImage, *, may_lose: bool
) -> list[StoredRecord]:
    if state is State.UNFENCED:
        return unfenced_records(image, broker, may_lose=may_lose)
    if state is State.CONTROLLED_SHUTDOWN:
        departing = departures(image, broker.broker_id, is_unclean=False, may_lose=may_lose)
        return [*_leaving(broker), *departing]
    return [] if broker.fenced else fenced_records(image, broker, may_lose=may_lose)


def _leaving(broker: BrokerImage) -> list[StoredRecord]:
    if broker.in_controlled_shutdown:
        return []
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=1
    )
    return [StoredRecord(change, 1)]
