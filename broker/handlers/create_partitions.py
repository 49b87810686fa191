"""CreatePartitions v0–3. KIP-195: a topic grows, it never shrinks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.controller.commands import CreatePartitions, Fault
from broker.handlers.context import PARKED, Parked, RequestContext
from kwire.errors import ApiError, ErrorCode
from kwire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from broker.node import Node


def handle(
    node: Node, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse | Parked:
    """A topic named twice is refused; the others go to the controller."""
    times = Counter(topic.name for topic in request.topics)
    results = [
        _result(name, Fault(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name, count in times.items()
        if count > 1
    ]
    asked = [topic for topic in request.topics if times[topic.name] == 1]

    if asked and request.timeout_ms <= 0:
        timed_out = Fault(ErrorCode.REQUEST_TIMED_OUT)
        return CreatePartitionsResponse(results=[_result(topic.name, timed_out) for topic in request.topics])

    def done(reply: list[tuple[str, Fault | None]] | ApiError) -> None:
        if isinstance(reply, ApiError):
            refused = Fault(reply.code, reply.message)
            results.extend(_result(topic.name, refused) for topic in asked)
        else:
            results.extend(_result(name, fault) for name, fault in reply)
        context.complete(CreatePartitionsResponse(results=results))

    node.metadata.submit(CreatePartitions(asked, request.validate_only), done)
    return PARKED


def _result(name: str, fault: Fault | None) -> CreatePartitionsTopicResult:
    if fault is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(name=name, error_code=fault.code, error_message=fault.message)
