"""The consumer embedded protocol: subscriptions and assignments in the opaque fields of the classic protocol.

The data of each field starts with a version of two bytes. A version above the latest supported version is
decoded as the latest supported version, since new versions only append fields. KIP-429 (v1), KIP-792 (v2),
KIP-881 (v3).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from kwire.coordinator.groups.assignors.spec import Partitions
from kwire.coordinator.groups.consumer.reconciliation import Owned
from kwire.coordinator.ports import TopicsView
from kwire.wire.codegen import decoder, encoder
from kwire.wire.errors import WireError
from kwire.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from kwire.wire.schema import Message

VERSION: Final = struct.Struct(">h")
LATEST: Final = 3

M = TypeVar("M", bound=Message)


class CustomAssignorError(Exception):
    """The error for an assignment with the user data of a custom assignor."""


class MalformedProtocolError(Exception):
    """The error for a subscription or assignment that cannot be decoded."""


def decode_version(data: bytes) -> int:
    """Return the version of a subscription or assignment, limited to the latest supported version.

    Raises MalformedProtocolError if the version is missing or negative.
    """
    if len(data) < VERSION.size:
        raise MalformedProtocolError("consumer protocol metadata is too short to contain a version")
    version: int = VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedProtocolError(f"consumer protocol metadata has the invalid version {version}")
    return min(version, LATEST)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Return a consumer's subscription. Raises MalformedProtocolError."""
    return _decoded(ConsumerProtocolSubscription, data)


def owned_partitions_of(subscription: ConsumerProtocolSubscription, topics: TopicsView) -> Owned:
    """Return the partitions of existing topics that a consumer reports as owned."""
    owned: dict[bytes, list[int]] = {}
    for named in subscription.owned_partitions:
        topic = topics.by_name(named.topic)
        if topic is not None:
            owned.setdefault(topic.topic_id, []).extend(named.partitions)
    return owned


def decode_assignment(data: bytes, topics: TopicsView) -> Partitions:
    """Return the partitions of existing topics in an assignment.

    Raises MalformedProtocolError or CustomAssignorError.
    """
    if not data:
        # The member has joined and has not received an assignment.
        return {}
    assignment = _decoded(ConsumerProtocolAssignment, data)
    if assignment.user_data:
        raise CustomAssignorError
    partitions: dict[bytes, frozenset[int]] = {}
    for named in assignment.assigned_partitions:
        topic = topics.by_name(named.topic)
        if topic is not None:
            partitions[topic.topic_id] = frozenset(named.partitions)
    return partitions


def encode_assignment(partitions: Mapping[bytes, Collection[int]], version: int, topics: TopicsView) -> bytes:
    """Serialize the partitions of existing topics as an assignment in this version."""
    assignment = ConsumerProtocolAssignment(assigned_partitions=[], user_data=None)
    for topic_id, numbers in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None and numbers:
            assignment.assigned_partitions.append(
                ConsumerProtocolAssignmentTopicPartition(topic=topic.name, partitions=sorted(numbers))
            )
    data = bytearray(VERSION.pack(version))
    encoder(ConsumerProtocolAssignment, version)(assignment, data, [])
    return bytes(data)


def _decoded(message_class: type[M], data: bytes) -> M:
    decode = decoder(message_class, decode_version(data))
    try:
        message: M = decode(memoryview(data), VERSION.size, len(data))[0]
    except WireError as error:
        raise MalformedProtocolError(str(error)) from None
    return message
