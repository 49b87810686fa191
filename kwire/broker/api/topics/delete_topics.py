"""DeleteTopics v1–6: by name, from v6 by name or id. KIP-516."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.controller.commands import DeletedTopic, DeleteTopics, TopicToDelete
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kwire.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

NOTHING = TopicToDelete(None, None)
FIRST_WITH_IDS = 6
FIRST_WITH_DISABLED_CODE = 3


def handle(node: Node, context: RequestContext, request: DeleteTopicsRequest) -> Parked:
    """One outcome a topic. ApiError where delete.topic.enable is off, or there is no time for any of them."""
    version = context.header.api_version
    if version >= FIRST_WITH_IDS:
        asked = [
            TopicToDelete(topic.name, None if topic.topic_id == ZERO_UUID else topic.topic_id)
            for topic in request.topics
        ]
    else:
        asked = [TopicToDelete(name, None) for name in request.topic_names]
    if not node.config.delete_topic_enable:
        raise ApiError(
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= FIRST_WITH_DISABLED_CODE
            else ErrorCode.INVALID_REQUEST
        )
    times = Counter(asked)
    if request.timeout_ms <= 0 and any(count == 1 and topic != NOTHING for topic, count in times.items()):
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    def done(reply: list[DeletedTopic] | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.complete(context.error_response(reply))
        else:
            context.complete(_response(reply))

    node.controller.submit(DeleteTopics(asked), done)
    return PARKED


def _response(topics: list[DeletedTopic]) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=topic.name,
                topic_id=topic.topic_id or ZERO_UUID,
                error_code=ErrorCode.NONE if topic.fault is None else topic.fault.code,
                error_message=None if topic.fault is None else topic.fault.message,
            )
            for topic in topics
        ]
    )
