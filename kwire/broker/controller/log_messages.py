"""Log messages for the controller's decisions: broker registrations, fencing, unclean leader elections."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from kwire.broker.controller.commands import FenceBroker, RegisterBroker, RemoveExpiredTokens
from kwire.broker.metadata.image import RECOVERING, MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.wire.primitives import uuid_to_text
from kwire.wire.records.metadata import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RemoveDelegationTokenRecord,
    UnregisterBrokerRecord,
)

MAX_NAMED_PARTITIONS: Final = 3
"""The maximum number of partitions that a message names."""


def log_messages(
    command: object, records: Sequence[StoredRecord], image: MetadataImage, node_id: int
) -> Iterator[tuple[int, str]]:
    """Yield the level and text of each message for `records`, which were decided on top of `image`.

    Registration and state changes of this node's broker (`node_id`) are omitted: the broker logs them itself.
    """
    recovering: list[str] = []
    changed = sum(isinstance(record, PartitionChangeRecord) for record, _ in records)
    for record, _ in records:
        if isinstance(record, PartitionChangeRecord):
            topic = image.topics_by_id[record.topic_id]
            # An election of the only replica loses nothing: no other replica had more records.
            if (
                record.leader_recovery_state == RECOVERING
                and len(topic.partitions[record.partition_id].replicas) > 1
            ):
                recovering.append(f"{topic.name}-{record.partition_id}")
        elif isinstance(record, RegisterBrokerRecord):
            if isinstance(command, RegisterBroker) and record.broker_id != node_id:
                text = f"Registered broker {record.broker_id} with broker epoch {record.broker_epoch}"
                yield logging.INFO, text
        elif isinstance(record, UnregisterBrokerRecord):
            yield logging.INFO, f"Unregistered broker {record.broker_id}"
        elif isinstance(record, RemoveDelegationTokenRecord):
            if isinstance(command, RemoveExpiredTokens):
                owner = image.delegation_tokens[record.token_id].owner
                yield logging.INFO, f"Deleted expired delegation token {record.token_id} of {owner}"
        elif isinstance(record, BrokerRegistrationChangeRecord):
            text = _registration_change_message(record, image)
            is_logged_by_broker = record.broker_id == node_id and not record.log_dirs
            if text and not is_logged_by_broker and not isinstance(command, FenceBroker):
                level = logging.WARNING if record.log_dirs else logging.INFO
                yield level, text + _changed_partitions_suffix(changed)
    if recovering:
        named = ", ".join(recovering[:MAX_NAMED_PARTITIONS])
        others = len(recovering) - MAX_NAMED_PARTITIONS
        more = f" and {others} more" if others > 0 else ""
        reason = "no in-sync replica is active, so acknowledged records may be lost"
        yield logging.WARNING, f"Unclean leader election for {named}{more}: {reason}"


def _registration_change_message(record: BrokerRegistrationChangeRecord, image: MetadataImage) -> str:
    if record.fenced:
        state = "Fenced" if record.fenced > 0 else "Unfenced"
        return f"{state} broker {record.broker_id}"
    if record.in_controlled_shutdown:
        return f"Broker {record.broker_id} began its controlled shutdown"
    if record.log_dirs:
        broker = image.brokers[record.broker_id]
        failed = [uuid_to_text(one) for one in broker.log_dirs if one not in record.log_dirs]
        return f"Log directories of broker {record.broker_id} failed: {', '.join(failed)}"
    return ""


def _changed_partitions_suffix(partitions: int) -> str:
    if not partitions:
        return ""
    return f"; {partitions} partition{'s' if partitions > 1 else ''} changed leader or ISR"
