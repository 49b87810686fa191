"""BrokerHeartbeat: the controller fences, unfences and shuts down brokers. KIP-631.

The controller unfences a broker once the broker has applied the metadata record of its own registration. A
broker that leads partitions and wants to shut down first enters controlled shutdown, in which other brokers
become leader of the partitions. The broker may stop once it leads no partition and every active broker has
applied these leader changes.

A heartbeat also reports log directories that have failed (KIP-858) or are cordoned (KIP-1066).
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
    """The state of a registered broker."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    """The broker is unfenced, and other brokers are becoming leader of its partitions."""
    SHUTDOWN_NOW = auto()
    """The broker is fenced and may stop."""


TRANSITIONS: Final[dict[BrokerControlState, frozenset[BrokerControlState]]] = {
    BrokerControlState.FENCED: frozenset(
        {BrokerControlState.FENCED, BrokerControlState.UNFENCED, BrokerControlState.SHUTDOWN_NOW}
    ),
    BrokerControlState.UNFENCED: frozenset(BrokerControlState),
    BrokerControlState.CONTROLLED_SHUTDOWN: frozenset(
        {BrokerControlState.CONTROLLED_SHUTDOWN, BrokerControlState.SHUTDOWN_NOW}
    ),
}
"""The states that can follow a heartbeat, by the state before the heartbeat."""


def broker_heartbeat(
    command: BrokerHeartbeat,
    image: MetadataImage,
    heartbeats: BrokerHeartbeatManager,
    *,
    unclean_enabled: bool,
) -> ControllerResult[BrokerHeartbeatReply]:
    """Change the broker's state as the heartbeat requires.

    Raises ApiError STALE_BROKER_EPOCH if the broker is not registered with `command.broker_epoch`.
    """
    broker = check_broker_epoch(image, command.broker_id, command.broker_epoch)
    is_caught_up = command.current_metadata_offset >= heartbeats.registration_offset(broker)
    before = _current_state(broker, heartbeats)
    after = _next_state(before, command, is_caught_up, broker, image, heartbeats)
    assert after in TRANSITIONS[before], f"illegal transition from {before.name} to {after.name}"
    records = offline_directory_records(
        image, broker, command.offline_log_dirs, unclean_enabled=unclean_enabled
    )
    if records:
        # Apply failed directories first, so that the broker does not become leader of a replica in one of
        # them.
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
        # No record ends a controlled shutdown. Only a new registration makes the broker active again.
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
