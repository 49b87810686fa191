"""The fields of ConsumerGroupHeartbeat requests: validation without group state, and changes of the member.

KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from kwire.broker.config.broker import ASSIGNORS as KNOWN_ASSIGNORS
from kwire.coordinator.groups.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerGroupMember,
)
from kwire.coordinator.groups.consumer.reconciliation import Owned
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.wire.named_tuple import NamedTuple

FIRST_VERSION_WITH_CLIENT_MEMBER_ID = 1
NOT_SET = -1


MayDescribe = Callable[[str], bool]
"""Returns whether a client may describe a topic, by the topic's name."""


def describes_all(_topic: str) -> bool:
    """Allow a client to describe every topic."""
    return True


class ClientIdentity(NamedTuple):
    """The client id and host of a request's sender, and the topics that the sender may describe."""

    client_id: str
    client_host: str
    may_describe: MayDescribe = describes_all


def assignor_names(configured: Iterable[str]) -> list[str]:
    """Return the short names of assignors, such as `range`. `configured` may contain Kafka's class names."""
    return [KNOWN_ASSIGNORS[name] for name in configured]


def check_request(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]
) -> None:
    """Check the fields of a request.

    Raises ApiError: INVALID_REQUEST; UNSUPPORTED_ASSIGNOR if the request's assignor is not in `assignors`.
    """
    epoch = request.member_epoch
    if api_version >= FIRST_VERSION_WITH_CLIENT_MEMBER_ID or epoch > JOINING_EPOCH or epoch == LEAVING_EPOCH:
        _check_not_blank(request.member_id, "MemberId")
    _check_not_blank(request.group_id, "GroupId")
    _check_not_blank(request.instance_id, "InstanceId")
    _check_not_blank(request.rack_id, "RackId")
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms == NOT_SET:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == STATIC_LEAVING_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    """Return the partitions that the member reports as owned, or None if the request lacks the field."""
    if request.topic_partitions is None:
        return None
    owned: dict[bytes, list[int]] = {}
    for topic in request.topic_partitions:
        owned.setdefault(topic.topic_id, []).extend(topic.partitions)
    return owned


def is_full_request(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has all fields. A member that may have missed a response sends all fields."""
    return (
        request.rebalance_timeout_ms != NOT_SET
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def changes_nothing(
    member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: ClientIdentity
) -> bool:
    """Whether the request changes no property of the member, apart from its owned partitions."""
    return (
        request.rebalance_timeout_ms == NOT_SET
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and (request.instance_id is None or request.instance_id == member.instance_id)
        and client.client_id == member.client_id
        and client.client_host == member.client_host
        and member.classic is None
    )


def updated_member(
    member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: ClientIdentity
) -> ConsumerGroupMember:
    """Return the member with the fields of the request. Null fields change nothing.

    A classic member becomes a member with the consumer protocol.
    """
    changes: dict[str, Any] = {}
    if request.instance_id is not None:
        changes["instance_id"] = request.instance_id
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != NOT_SET:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        changes["assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        changes["subscribed"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        changes["regex"] = request.subscribed_topic_regex
    if client.client_id != member.client_id:
        changes["client_id"] = client.client_id
    if client.client_host != member.client_host:
        changes["client_host"] = client.client_host
    if member.classic is not None:
        changes["classic"] = None
    if not changes:
        return member
    return member._replace(**changes)


def _check_not_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise _invalid(f"{name} can't be empty.")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
