"""Sentences about requests that the broker has denied: the user, the missing right, and the resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kwire.broker.security.authorizer import Operation
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_configs import DescribeConfigsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.schema import Message

RESOURCES: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
"""The kind of resource whose right is missing, by error code."""
RIGHTS: Final[Mapping[tuple[int, str], Operation]] = {
    (ApiKey.METADATA, "topic"): Operation.DESCRIBE,
    (ApiKey.LIST_OFFSETS, "topic"): Operation.DESCRIBE,
    (ApiKey.FETCH, "topic"): Operation.READ,
    (ApiKey.PRODUCE, "topic"): Operation.WRITE,
    (ApiKey.DESCRIBE_PRODUCERS, "topic"): Operation.READ,
    (ApiKey.DESCRIBE_CONFIGS, "topic"): Operation.DESCRIBE_CONFIGS,
    (ApiKey.DESCRIBE_CONFIGS, "group"): Operation.DESCRIBE_CONFIGS,
    (ApiKey.DESCRIBE_CONFIGS, "cluster"): Operation.DESCRIBE_CONFIGS,
    (ApiKey.CONSUMER_GROUP_DESCRIBE, "topic"): Operation.DESCRIBE,
    (ApiKey.FIND_COORDINATOR, "group"): Operation.DESCRIBE,
    (ApiKey.DESCRIBE_GROUPS, "group"): Operation.DESCRIBE,
    (ApiKey.CONSUMER_GROUP_DESCRIBE, "group"): Operation.DESCRIBE,
    (ApiKey.OFFSET_FETCH, "group"): Operation.DESCRIBE,
    (ApiKey.OFFSET_COMMIT, "group"): Operation.READ,
    (ApiKey.OFFSET_COMMIT, "topic"): Operation.READ,
    (ApiKey.FIND_COORDINATOR, "transactional id"): Operation.DESCRIBE,
    (ApiKey.DESCRIBE_TRANSACTIONS, "transactional id"): Operation.DESCRIBE,
    (ApiKey.INIT_PRODUCER_ID, "cluster"): Operation.IDEMPOTENT_WRITE,
}
"""The right that a request of the console needs, by API and kind of resource."""


def denial(error: Exception, request: Message | None, principal: str, topic: str) -> str:
    """Return the sentence about a denied request; empty for any other error.

    `request` is the last one. `topic` is the topic of the page; empty if it has none.
    """
    kind = RESOURCES.get(error.code) if isinstance(error, ApiError) else None
    if kind is None:
        return ""
    api_key = -1 if request is None else request.API_KEY
    right = RIGHTS.get((api_key, kind))
    needed = right.name if right is not None else "another right"
    if api_key == ApiKey.INIT_PRODUCER_ID and topic:
        needed = f"WRITE on topic {topic}"  # KIP-679: this implies IDEMPOTENT_WRITE
    elif kind == "cluster":
        needed += " on the cluster"
    else:
        name = "" if request is None else _name(kind, request, str(error))
        needed += f" on {kind} {name}" if name else f" on a {kind}"
    return f"{principal} needs {needed}"


def _name(kind: str, request: Message, message: str) -> str:
    """Return the name of the denied resource: the only one in the request, or that in the error message."""
    names = _topics(request) if kind == "topic" else _others(request)
    if len(names) == 1:
        return names[0]
    found = [name for name in names if f"{name}-" in message or f"topic {name}" in message]
    return max(found, key=len, default="")


def _topics(request: Any) -> list[str]:
    if isinstance(request, DescribeConfigsRequest):
        return [one.resource_name for one in request.resources]
    listed = getattr(request, "topics", None) or getattr(request, "topic_data", None) or ()
    found = [getattr(one, "name", "") or getattr(one, "topic", "") for one in listed]
    return [str(name) for name in found if name]


def _others(request: Any) -> list[str]:
    if isinstance(request, DescribeConfigsRequest):
        return [one.resource_name for one in request.resources]
    if isinstance(request, FindCoordinatorRequest):
        return [request.key] if request.key else list(request.coordinator_keys)
    for field in ("group_id", "groups", "group_ids", "transactional_ids"):
        if value := getattr(request, field, None):
            listed = [value] if isinstance(value, str) else value
            # From version 8 on, the groups of OffsetFetch are structures.
            return [one if isinstance(one, str) else one.group_id for one in listed]
    return []
