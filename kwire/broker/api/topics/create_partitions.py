"""CreatePartitions v0–3. KIP-195: a topic grows, it never shrinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.controller.commands import CreatePartitions, Fault
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.java import hash_map_order, string_hash
from kwire.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(
    node: Node, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse | Parked:
    """A topic named twice is refused; the others go to the controller. Both as Kafka's sets tell them."""
    named: dict[str, CreatePartitionsTopic] = {}
    twice: dict[str, CreatePartitionsTopic] = {}
    for topic in request.topics:
        (twice if topic.name in named else named)[topic.name] = topic
    results = [
        _result(name, Fault(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name in hash_map_order(twice, string_hash)
    ]
    asked = [named[name] for name in hash_map_order(named, string_hash) if name not in twice]

    if asked and request.timeout_ms <= 0:
        return _all_refused(request, Fault(ErrorCode.REQUEST_TIMED_OUT))

    def done(reply: list[tuple[str, Fault | None]] | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.complete(_all_refused(request, Fault(reply.code, reply.message)))
            return
        results.extend(_result(name, fault) for name, fault in reply)
        context.complete(CreatePartitionsResponse(results=results))

    node.controller.submit(CreatePartitions(asked, request.validate_only), done)
    return PARKED


def _all_refused(request: CreatePartitionsRequest, fault: Fault) -> CreatePartitionsResponse:
    """What stops the whole request is the answer to each entry, also to those that never got so far."""
    return CreatePartitionsResponse(results=[_result(topic.name, fault) for topic in request.topics])


def _result(name: str, fault: Fault | None) -> CreatePartitionsTopicResult:
    if fault is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(name=name, error_code=fault.code, error_message=fault.message)
