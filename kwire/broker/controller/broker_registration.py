"""Registration, fencing and unregistration of brokers, and registration of controllers. KIP-631, KIP-919.

The controller checks a broker registration in this order: no other incarnation has a valid session, ZooKeeper
migration, log directories (KIP-858), features. The request handler has already checked the cluster id.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.controller.commands import (
    ControllerResult,
    FenceBroker,
    RegisterBroker,
    RegisterController,
    UnregisterBroker,
)
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.partition_change_builder import (
    elect_leaderless_partitions,
    remove_broker_from_isrs,
)
from kwire.broker.metadata.features import KRAFT_VERSION
from kwire.broker.metadata.image import METADATA_VERSION, BrokerImage, ControllerImage, MetadataImage
from kwire.broker.metadata.records import (
    CONTROLLER_REGISTRATION_LEVEL,
    DIRECTORIES_LEVEL,
    StoredRecord,
    broker_record,
    controller_record,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid, uuid_to_text
from kwire.wire.records.metadata import BrokerRegistrationChangeRecord, UnregisterBrokerRecord

FENCED: Final = 1
UNFENCED: Final = -1
RESERVED_DIRECTORIES: Final = 100
"""Directory ids below this number, as big-endian integers, are reserved (KIP-858)."""


def register_controller(command: RegisterController, image: MetadataImage) -> ControllerResult[None]:
    """Register a controller. Before metadata.version 3.7-IV0, this writes no record (KIP-919)."""
    if image.metadata_version < CONTROLLER_REGISTRATION_LEVEL:
        return ControllerResult([], None)
    controller = ControllerImage(
        command.controller_id,
        command.incarnation_id,
        {endpoint.name: endpoint for endpoint in command.endpoints},
        command.features,
    )
    return ControllerResult([controller_record(controller)], None)


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """Return the broker. Raises ApiError STALE_BROKER_EPOCH if it is not registered with `broker_epoch`."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        text = f"No broker registration found for broker id {broker_id}"
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, text)
    if broker.broker_epoch != broker_epoch:
        text = f"Expected broker epoch {broker.broker_epoch}, but got broker epoch {broker_epoch}"
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, text)
    return broker


# --- registration


def register_broker(
    command: RegisterBroker,
    image: MetadataImage,
    heartbeats: BrokerHeartbeatManager,
    *,
    unclean_enabled: bool,
) -> ControllerResult[int]:
    """Register a broker, and return its broker epoch.

    A new incarnation starts fenced. It is removed from every ISR and, after an unclean shutdown, from every
    ELR (KIP-966). If the same incarnation registers again, it keeps its epoch and state.

    Raises ApiError DUPLICATE_BROKER_REGISTRATION if another incarnation has a valid session,
    BROKER_ID_NOT_REGISTERED during a ZooKeeper migration, INVALID_REGISTRATION if the log directories are
    invalid or metadata.version is missing, or UNSUPPORTED_VERSION if a finalized level is not supported.
    """
    known = image.brokers.get(command.broker_id)
    is_same_life = known is not None and known.incarnation_id == command.incarnation_id
    if known is not None and not is_same_life and heartbeats.has_valid_session(known):
        text = (
            "Another broker is registered with that broker id. If the broker was recently restarted this "
            "should self-resolve once the heartbeat manager expires the broker's session."
        )
        raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, text)
    if command.is_migrating:
        text = "Controller does not support registering ZK brokers."
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
    level = image.metadata_version
    if level >= DIRECTORIES_LEVEL:
        _check_directories(command, image)
    _check_features(command, image)
    broker = BrokerImage(
        command.broker_id,
        # KIP-631: the broker epoch is the offset of the registration record.
        image.offset + 1,
        command.incarnation_id,
        {endpoint.name: endpoint for endpoint in command.endpoints},
        command.features,
        command.rack,
        log_dirs=tuple(sorted(command.log_dirs)) if level >= DIRECTORIES_LEVEL else (),
    )
    records = []
    if known is not None and is_same_life:
        broker = broker._replace(
            broker_epoch=known.broker_epoch,
            fenced=known.fenced,
            in_controlled_shutdown=known.in_controlled_shutdown,
        )
    else:
        unclean_shutdown = known is None or known.broker_epoch != command.previous_broker_epoch
        records = list(
            remove_broker_from_isrs(
                image, command.broker_id, unclean_shutdown=unclean_shutdown, unclean_enabled=unclean_enabled
            )
        )
    return ControllerResult([*records, broker_record(broker, level)], broker.broker_epoch, atomic=False)


def _check_directories(command: RegisterBroker, image: MetadataImage) -> None:
    text: str | None = None
    given = set(command.log_dirs)
    if not given:
        text = "No directories specified in request"
    elif any(_is_reserved(directory) for directory in given):
        text = "Reserved directory ID in request"
    elif len(given) != len(command.log_dirs):
        text = "Duplicate directory ID in request"
    else:
        for broker in image.brokers.values():
            shared = [directory for directory in broker.log_dirs if directory in given]
            if shared and broker.broker_id != command.broker_id:
                directory = uuid_to_text(shared[0])
                text = f"Broker {broker.broker_id} is already registered with directory {directory}"
    if text is not None:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, text)


def _is_reserved(directory: Uuid) -> bool:
    return int.from_bytes(directory, "big") < RESERVED_DIRECTORIES


def _check_features(command: RegisterBroker, image: MetadataImage) -> None:
    """Check that the broker supports every finalized feature level.

    Raises ApiError UNSUPPORTED_VERSION, or INVALID_REGISTRATION if the request lacks metadata.version.
    """
    finalized = {**image.features, KRAFT_VERSION: command.kraft_version}
    for name, (low, high) in command.features.items():
        _check_feature(name, finalized.get(name, 0), low, high)
    if METADATA_VERSION not in command.features:
        text = "Request features do not contain 'metadata.version'"
        raise ApiError(ErrorCode.INVALID_REGISTRATION, text)
    for name, level in finalized.items():
        if name not in command.features:
            _check_feature(name, level, 0, 0)


def _check_feature(name: str, level: int, low: int, high: int) -> None:
    if not low <= level <= high:
        text = (
            f"Unable to register because the broker does not support finalized version {level} of {name}. "
            f"The broker wants a version between {low} and {high}, inclusive."
        )
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)


# --- fencing


def fenced_records(image: MetadataImage, broker: BrokerImage, *, unclean_enabled: bool) -> list[StoredRecord]:
    """Return the records that remove the broker from every ISR and then fence it."""
    records = list(
        remove_broker_from_isrs(
            image, broker.broker_id, unclean_shutdown=False, unclean_enabled=unclean_enabled
        )
    )
    return [*records, _fencing(broker, FENCED)]


def unfenced_records(
    image: MetadataImage, broker: BrokerImage, *, unclean_enabled: bool
) -> list[StoredRecord]:
    """Return the records that unfence the broker and elect leaders of its leaderless partitions."""
    return [
        _fencing(broker, UNFENCED),
        *elect_leaderless_partitions(image, broker.broker_id, unclean_enabled=unclean_enabled),
    ]


def _fencing(broker: BrokerImage, fenced: int) -> StoredRecord:
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=fenced
    )
    return StoredRecord(change)


def fence_broker(
    command: FenceBroker, image: MetadataImage, *, unclean_enabled: bool
) -> ControllerResult[None]:
    """Fence a broker whose session timed out. Do nothing if it is already fenced or has registered again."""
    broker = image.brokers.get(command.broker_id)
    if broker is None or broker.fenced or broker.broker_epoch != command.broker_epoch:
        return ControllerResult([], None)
    return ControllerResult(
        fenced_records(image, broker, unclean_enabled=unclean_enabled), None, atomic=False
    )


def unregister_broker(
    command: UnregisterBroker, image: MetadataImage, *, unclean_enabled: bool
) -> ControllerResult[None]:
    """Remove the broker from every ISR and unregister it. Raises ApiError BROKER_ID_NOT_REGISTERED."""
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        text = f"Broker ID {command.broker_id} is not currently registered"
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
    records = list(
        remove_broker_from_isrs(
            image, broker.broker_id, unclean_shutdown=False, unclean_enabled=unclean_enabled
        )
    )
    gone = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return ControllerResult([*records, StoredRecord(gone)], None, atomic=False)
