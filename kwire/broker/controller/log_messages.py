"""What an operator is told of the controller's decisions: who comes and goes, where records may be lost."""

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
"""So many partitions are told by their names."""


def log_messages(
    command: object, records: Sequence[StoredRecord], image: MetadataImage, node_id: int
) -> Iterator[tuple[int, str]]:
    """A level and a sentence each, of what was decided on top of `image`.

    Of the broker of the controller's own node (`node_id`), that broker tells itself.
    """
    recovering: list[str] = []
    changed = sum(isinstance(record, PartitionChangeRecord) for record, _ in records)
    for record, _ in records:
        if isinstance(record, PartitionChangeRecord):
            topic = image.topics_by_id[record.topic_id]
            # A replica that is the only one has whatever there is.
            if (
                record.leader_recovery_state == RECOVERING
                and len(topic.partitions[record.partition_id].replicas) > 1
            ):
                recovering.append(f"{topic.name}-{record.partition_id}")
        elif isinstance(record, RegisterBrokerRecord):
            if isinstance(command, RegisterBroker) and record.broker_id != node_id:
                yield logging.INFO, f"broker {record.broker_id} is registered, in epoch {record.broker_epoch}"
        elif isinstance(record, UnregisterBrokerRecord):
            yield logging.INFO, f"broker {record.broker_id} is forgotten"
        elif isinstance(record, RemoveDelegationTokenRecord):
            if isinstance(command, RemoveExpiredTokens):
                owner = image.delegation_tokens[record.token_id].owner
                yield logging.INFO, f"delegation token {record.token_id} of {owner} has run out"
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
        text = "a leader was elected that may lack acknowledged records, since none that has them lives"
        yield logging.WARNING, f"{text}: {named}{more}"


def _registration_change_message(record: BrokerRegistrationChangeRecord, image: MetadataImage) -> str:
    if record.fenced:
        state = "fenced" if record.fenced > 0 else "unfenced"
        return f"broker {record.broker_id} is {state}"
    if record.in_controlled_shutdown:
        return f"broker {record.broker_id} is about to end"
    if record.log_dirs:
        broker = image.brokers[record.broker_id]
        failed = [uuid_to_text(one) for one in broker.log_dirs if one not in record.log_dirs]
        return f"log directories of broker {record.broker_id} have failed: {', '.join(failed)}"
    return ""


def _changed_partitions_suffix(partitions: int) -> str:
    if not partitions:
        return ""
    return f"; {partitions} partition{'s have' if partitions > 1 else ' has'} changed with it"
