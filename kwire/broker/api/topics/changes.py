"""CreateTopics v2–7, DeleteTopics v1–6, CreatePartitions v0–3.

CreateTopics: KIP-4, KIP-525, KIP-516. DeleteTopics: by name, and from v6 on by name or id (KIP-516).
CreatePartitions: KIP-195. CreateTopics and CreatePartitions reject a name that occurs twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import Delayed
from kwire.broker.config.describe import describe_topic, inherited_source
from kwire.broker.controller.commands import (
    CreatePartitions,
    CreateTopics,
    DeletedTopic,
    DeleteTopics,
    Fault,
    MutationQuota,
    TopicToDelete,
)
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from kwire.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kwire.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kwire.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole

CONFIGS_SINCE: Final = 5
NO_TOPIC = TopicToDelete(None, None)
FIRST_WITH_IDS = 6
CREATE_TOPICS_STRICT_SINCE: Final = 6
DELETE_TOPICS_STRICT_SINCE: Final = 5
CREATE_PARTITIONS_STRICT_SINCE: Final = 3
"""The first versions in which changes beyond the quota of the client are refused. KIP-599."""
FIRST_WITH_DISABLED_CODE = 3


def create_topics(
    node: ControllerRole, context: ControllerRequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse | Delayed:
    """Create topics. Return one result per topic name.

    Raises ApiError REQUEST_TIMED_OUT if the timeout is not positive.
    """
    times = Counter(topic.name for topic in request.topics)
    topics = [topic for topic in request.topics if times[topic.name] == 1 and topic.name != METADATA_TOPIC]

    if topics and request.timeout_ms <= 0:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    described = {
        topic.name
        for topic in topics
        if node.gate.allows(
            context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name, is_asked=False
        )
    }

    def respond(results: list[CreatableTopicResult]) -> CreateTopicsResponse:
        if context.api_version >= CONFIGS_SINCE:
            _add_configs(node, described, topics, results)
        refused = [name for name, count in times.items() if count > 1]
        results += [_refused(name, "Duplicate topic name.") for name in refused]
        if times[METADATA_TOPIC] == 1:
            text = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
            results.append(_refused(METADATA_TOPIC, text))
        return CreateTopicsResponse(topics=results, throttle_time_ms=throttle_time_ms(quota))

    quota = node.client_quotas.mutation_quota(context, CREATE_TOPICS_STRICT_SINCE)
    return submit(node, context, CreateTopics(topics, request.validate_only, quota=quota), respond)


def throttle_time_ms(quota: MutationQuota | None) -> int:
    """Return the throttle time of a response, in ms."""
    return 0 if quota is None else quota.throttle_time_ms()


def _refused(name: str, text: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=text)


def _add_configs(
    node: ControllerRole,
    described: Collection[str],
    topics: list[CreatableTopic],
    results: list[CreatableTopicResult],
) -> None:
    """Add the effective configuration of the created topics that the client may describe. KIP-525."""
    overrides = {topic.name: {config.name: config.value for config in topic.configs} for topic in topics}
    for result in results:
        if result.error_code != ErrorCode.NONE:
            continue
        if result.name not in described:
            result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result.num_partitions = result.replication_factor = -1
            result.configs = []
            continue
        given = {name: value for name, value in overrides[result.name].items() if value is not None}
        result.configs = [
            CreatableTopicConfigs(
                name=entry.name,
                value=given.get(entry.name, entry.value),
                read_only=entry.read_only,
                config_source=(
                    entry.source if entry.name in given else inherited_source(node.config, entry.name)
                ),
                is_sensitive=entry.is_sensitive,
            )
            for entry in sorted(describe_topic(node.config, given), key=lambda entry: entry.name)
        ]


def delete_topics(
    node: ControllerRole, context: ControllerRequestContext, request: DeleteTopicsRequest
) -> Delayed:
    """Delete topics. Return one result per topic.

    Raises ApiError TOPIC_DELETION_DISABLED (before v3, INVALID_REQUEST) if delete.topic.enable is false, or
    REQUEST_TIMED_OUT if the timeout is not positive.
    """
    version = context.api_version
    if version >= FIRST_WITH_IDS:
        topics = [
            TopicToDelete(topic.name, None if topic.topic_id == ZERO_UUID else topic.topic_id)
            for topic in request.topics
        ]
    else:
        topics = [TopicToDelete(name, None) for name in request.topic_names]
    if not node.config.delete_topic_enable:
        raise ApiError(
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= FIRST_WITH_DISABLED_CODE
            else ErrorCode.INVALID_REQUEST
        )
    times = Counter(topics)
    if request.timeout_ms <= 0 and any(count == 1 and topic != NO_TOPIC for topic, count in times.items()):
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    quota = node.client_quotas.mutation_quota(context, DELETE_TOPICS_STRICT_SINCE)
    return submit(node, context, DeleteTopics(topics, quota), partial(_response, quota))


def _response(quota: MutationQuota | None, topics: list[DeletedTopic]) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        throttle_time_ms=throttle_time_ms(quota),
        responses=[
            DeletableTopicResult(
                name=topic.name,
                topic_id=topic.topic_id or ZERO_UUID,
                error_code=ErrorCode.NONE if topic.fault is None else topic.fault.code,
                error_message=None if topic.fault is None else topic.fault.message,
            )
            for topic in topics
        ],
    )


def create_partitions(
    node: ControllerRole, context: ControllerRequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse | Delayed:
    """Add partitions to topics. Return one result per topic name.

    Raises ApiError REQUEST_TIMED_OUT if the timeout is not positive.
    """
    times = Counter(topic.name for topic in request.topics)
    topics = [topic for topic in request.topics if times[topic.name] == 1]
    duplicate = Fault(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results = [_result(name, duplicate) for name, count in times.items() if count > 1]

    if topics and request.timeout_ms <= 0:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    def respond(outcomes: list[tuple[str, Fault | None]]) -> CreatePartitionsResponse:
        results.extend(_result(name, fault) for name, fault in outcomes)
        return CreatePartitionsResponse(results=results, throttle_time_ms=throttle_time_ms(quota))

    quota = node.client_quotas.mutation_quota(context, CREATE_PARTITIONS_STRICT_SINCE)
    return submit(node, context, CreatePartitions(topics, request.validate_only, quota), respond)


def _result(name: str, fault: Fault | None) -> CreatePartitionsTopicResult:
    if fault is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(name=name, error_code=fault.code, error_message=fault.message)
