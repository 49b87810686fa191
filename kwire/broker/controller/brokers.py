"""Brokers come and go: they register, are fenced and unfenced, and are forgotten. KIP-631, KIP-919."""

from __future__ import annotations

from typing import Final

from kwire.broker.controller.commands import (
    RegisterBroker,
    RegisterController,
    Result,
    ShutDownBroker,
    UnfenceBroker,
    UnregisterBroker,
)
from kwire.broker.controller.partition_changes import arrivals, departures
from kwire.broker.metadata.image import BrokerImage, ControllerImage, MetadataImage
from kwire.broker.metadata.records import (
    CONTROLLER_REGISTRATION_LEVEL,
    CORDONED_LEVEL,
    StoredRecord,
    broker_record,
    controller_record,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.stored.metadata import BrokerRegistrationChangeRecord, UnregisterBrokerRecord

FENCED: Final = 1
UNFENCED: Final = -1


def register_controller(command: RegisterController, image: MetadataImage) -> Result[None]:
    """KIP-919; clusters before 3.7 have no such record."""
    if image.metadata_version < CONTROLLER_REGISTRATION_LEVEL:
        return Result([], None)
    controller = ControllerImage(
        command.controller_id,
        command.incarnation_id,
        {endpoint.name: endpoint for endpoint in command.endpoints},
        command.features,
    )
    return Result([controller_record(controller)], None)


def register_broker(command: RegisterBroker, image: MetadataImage) -> Result[int]:
    """The broker, fenced, with an epoch of its own; and what an unclean end of its last life costs it."""
    # KIP-631: the offset at which a registration is written is the broker's epoch.
    broker_epoch = image.offset + 1
    known = image.brokers.get(command.broker_id)
    is_unclean = known is not None and known.broker_epoch != command.previous_broker_epoch
    records = []
    if known is not None:
        records = list(departures(image, command.broker_id, is_unclean=is_unclean))
    broker = BrokerImage(
        command.broker_id,
        broker_epoch,
        command.incarnation_id,
        {endpoint.name: endpoint for endpoint in command.endpoints},
        command.features,
        command.rack,
        log_dirs=tuple(sorted(command.log_dirs)),
    )
    records.append(broker_record(broker, image.metadata_version))
    return Result(records, broker_epoch, atomic=False)


def unfence_broker(command: UnfenceBroker, image: MetadataImage) -> Result[None]:
    """The broker leads what has no leader and is its own to lead."""
    broker = image.brokers[command.broker_id]
    records: list[StoredRecord] = []
    if broker.fenced:
        unfence = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=UNFENCED
        )
        records.append(StoredRecord(unfence))
    records += arrivals(image, broker.broker_id)
    if broker.cordoned_log_dirs is None and image.metadata_version >= CORDONED_LEVEL:
        uncordoned = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, cordoned_log_dirs=[]
        )
        records.append(StoredRecord(uncordoned, 3))
    return Result(records, None, atomic=False)


def shut_down_broker(command: ShutDownBroker, image: MetadataImage) -> Result[None]:
    """A controlled shutdown: leadership goes where it can, and the broker is fenced."""
    broker = image.brokers.get(command.broker_id)
    if broker is None or broker.fenced:
        return Result([], None)
    leaving = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=1
    )
    fenced = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=FENCED
    )
    departing = departures(image, broker.broker_id, is_unclean=False)
    return Result([StoredRecord(leaving, 1), *departing, StoredRecord(fenced)], None, atomic=False)


def unregister_broker(command: UnregisterBroker, image: MetadataImage) -> Result[None]:
    """Nobody counts on the broker any more, and then it is forgotten. ApiError: BROKER_ID_NOT_REGISTERED."""
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        text = f"Broker ID {command.broker_id} is not currently registered"
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
    records = list(departures(image, broker.broker_id, is_unclean=False))
    gone = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return Result([*records, StoredRecord(gone)], None, atomic=False)
