"""CreateTopics v2–7. The controller decides; names given twice never reach it. KIP-4, KIP-525, KIP-516."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.config.describe import describe_topic
from kwire.broker.controller.commands import CreateTopics
from kwire.broker.metadata.names import CLUSTER_METADATA_TOPIC
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

CONFIGS_SINCE: Final = 5


def handle(
    node: Node, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse | Parked:
    """One outcome a topic name, unless the request is refused as a whole."""
    times = Counter(topic.name for topic in request.topics)
    asked = [
        topic for topic in request.topics if times[topic.name] == 1 and topic.name != CLUSTER_METADATA_TOPIC
    ]

    if asked and request.timeout_ms <= 0:
        return _all_refused(request, ApiError(ErrorCode.REQUEST_TIMED_OUT))

    def done(reply: list[CreatableTopicResult] | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.complete(_all_refused(request, reply))
            return
        results = reply
        if context.api_version >= CONFIGS_SINCE:
            _add_configs(node, asked, results)
        duplicate = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        results.extend(_refused(name, duplicate) for name, count in times.items() if count > 1)
        if times[CLUSTER_METADATA_TOPIC] == 1:
            results.append(
                _refused(
                    CLUSTER_METADATA_TOPIC,
                    ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited.",
                    ),
                )
            )
        context.complete(CreateTopicsResponse(topics=results))

    node.controller.submit(CreateTopics(asked, request.validate_only), done)
    return PARKED


def _all_refused(request: CreateTopicsRequest, error: ApiError) -> CreateTopicsResponse:
    """What stops the whole request is the answer to each entry, also to those that never got so far."""
    return CreateTopicsResponse(topics=[_refused(topic.name, error) for topic in request.topics])


def _refused(name: str, error: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)


def _add_configs(node: Node, asked: list[CreatableTopic], results: list[CreatableTopicResult]) -> None:
    """KIP-525: what was created is told with the configuration that holds for it."""
    overrides = {topic.name: {config.name: config.value for config in topic.configs} for topic in asked}
    for result in results:
        if result.error_code != ErrorCode.NONE:
            continue
        given = {name: value for name, value in overrides[result.name].items() if value is not None}
        result.configs = [
            CreatableTopicConfigs(
                name=entry.name,
                value=given.get(entry.name, entry.value),
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in sorted(describe_topic(node.config, given), key=lambda entry: entry.name)
        ]
