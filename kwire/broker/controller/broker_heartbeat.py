"""BrokerHeartbeat: a broker says that it lives and what it command to be, and hears what it is. KIP-631.

A broker is unfenced once its metadata has its registration. One that command to end is first in a controlled
shutdown: others lead from there on, and it may end when it leads nothing and all that serve know of it.

Directories that have failed take their replicas with them (KIP-858); in cordoned ones nothing new is placed
(KIP-1066).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from kwire.broker.controller.broker_registration import check_broker_epoch, fenced_records, unfenced_records
from kwire.broker.controller.commands import BrokerHeartbeat, BrokerHeartbeatReply, ControllerResult
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.log_directories import cordoned_directory_records, offline_directory_records
from kwire.broker.controller.partition_change_builder import apply_records, remove_broker_from_isrs
from kwire.broker.metadata.image import BrokerImage, MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.wire.records.metadata import BrokerRegistrationChangeRecord


class BrokerControlState(Enum):
    """What a registered broker is."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    """Unfenced, and about to go: it gives up what it leads."""
    SHUTDOWN_NOW = auto()
    """Fenced, and free to end."""


TRANSITIONS: Final[dict[BrokerControlState, frozenset[BrokerControlState]]] = {
    BrokerControlState.FENCED: frozenset(
        {BrokerControlState.FENCED, BrokerControlState.UNFENCED, BrokerControlState.SHUTDOWN_NOW}
    ),
    BrokerControlState.UNFENCED: frozenset(BrokerControlState),
    BrokerControlState.CONTROLLED_SHUTDOWN: frozenset(
        {BrokerControlState.CONTROLLED_SHUTDOWN, BrokerControlState.SHUTDOWN_NOW}
    ),
}
"""What a heartbeat can make of a broker."""


def broker_heartbeat(
    command: BrokerHeartbeat,
    image: MetadataImage,
    heartbeats: BrokerHeartbeatManager,
    *,
    unclean_enabled: bool,
) -> ControllerResult[BrokerHeartbeatReply]:
    """What the broker is from here on. ApiError: STALE_BROKER_EPOCH."""
    broker = check_broker_epoch(image, command.broker_id, command.broker_epoch)
    is_caught_up = command.current_metadata_offset >= heartbeats.registration_offset(broker)
    before = _current_state(broker, heartbeats)
    after = _next_state(before, command, is_caught_up, broker, image, heartbeats)
    assert after in TRANSITIONS[before], f"a heartbeat made {after.name} of {before.name}"
    records = offline_directory_records(
        image, broker, command.offline_log_dirs, unclean_enabled=unclean_enabled
    )
    if records:
        # It must not be given anything to lead in a directory that it has just lost.
        image = apply_records(image, records)
        broker = image.brokers[broker.broker_id]
    if after is not before:
        records += _records(after, broker, image, unclean_enabled=unclean_enabled)
    if command.cordoned_log_dirs is not None:
        records += cordoned_directory_records(image, broker, command.cordoned_log_dirs)
    response = BrokerHeartbeatReply(
        is_caught_up,
        is_fenced=after in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        should_shut_down=after is BrokerControlState.SHUTDOWN_NOW,
        in_controlled_shutdown=after is BrokerControlState.CONTROLLED_SHUTDOWN,
    )
    return ControllerResult(records, response, atomic=False)


def _current_state(broker: BrokerImage, heartbeats: BrokerHeartbeatManager) -> BrokerControlState:
    if broker.fenced:
        return BrokerControlState.FENCED
    return (
        BrokerControlState.UNFENCED
        if heartbeats.controlled_shutdown_offset(broker) < 0
        else BrokerControlState.CONTROLLED_SHUTDOWN
    )


def _next_state(
    state: BrokerControlState,
    command: BrokerHeartbeat,
    is_caught_up: bool,
    broker: BrokerImage,
    image: MetadataImage,
    heartbeats: BrokerHeartbeatManager,
) -> BrokerControlState:
    if state is BrokerControlState.FENCED:
        if command.want_shut_down:
            return BrokerControlState.SHUTDOWN_NOW
        # A life that was about to end does not begin again: no record would make it active.
        may_lead = is_caught_up and not broker.in_controlled_shutdown
        return (
            BrokerControlState.UNFENCED if may_lead and not command.want_fence else BrokerControlState.FENCED
        )
    if state is BrokerControlState.UNFENCED:
        if command.want_fence:
            return BrokerControlState.SHUTDOWN_NOW if command.want_shut_down else BrokerControlState.FENCED
        if command.want_shut_down:
            return (
                BrokerControlState.CONTROLLED_SHUTDOWN
                if _has_leaderships(image, broker)
                else BrokerControlState.SHUTDOWN_NOW
            )
        return BrokerControlState.UNFENCED
    lowest = heartbeats.lowest_active_offset(image)
    is_known = lowest is None or heartbeats.controlled_shutdown_offset(broker) <= lowest
    return (
        BrokerControlState.SHUTDOWN_NOW
        if is_known and not _has_leaderships(image, broker)
        else BrokerControlState.CONTROLLED_SHUTDOWN
    )


def _has_leaderships(image: MetadataImage, broker: BrokerImage) -> bool:
    return any(
        partition.leader == broker.broker_id
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def _records(
    state: BrokerControlState, broker: BrokerImage, image: MetadataImage, *, unclean_enabled: bool
) -> list[StoredRecord]:
    if state is BrokerControlState.UNFENCED:
        return unfenced_records(image, broker, unclean_enabled=unclean_enabled)
    if state is BrokerControlState.CONTROLLED_SHUTDOWN:
        departing = remove_broker_from_isrs(
            image, broker.broker_id, unclean_shutdown=False, unclean_enabled=unclean_enabled
        )
        return [*_controlled_shutdown_records(broker), *departing]
    return [] if broker.fenced else fenced_records(image, broker, unclean_enabled=unclean_enabled)


def _controlled_shutdown_records(broker: BrokerImage) -> list[StoredRecord]:
    if broker.in_controlled_shutdown:
        return []
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=1
    )
    return [StoredRecord(change, 1)]
