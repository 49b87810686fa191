"""DeleteTopics v1–6. KIP-516 (topic ids, v6)."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest(Message):
    topics: list[DeleteTopicState] = field("6+")
    topic_names: list[Str] = field("0-5", ignorable=True)
    timeout_ms: Int32 = field()


class DeleteTopicState(Message):
    """A topic, by name, or by id if the name is null."""

    name: Str | None = field("6+", nullable="6+", default=None)
    topic_id: Uuid = field("6+")


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse(Message):
    throttle_time_ms: Int32 = field()
    responses: list[DeletableTopicResult] = field()


class DeletableTopicResult(Message):
    name: Str | None = field(nullable="6+")
    topic_id: Uuid = field("6+", ignorable=True)
    error_code: Int16 = field()
    error_message: Str | None = field("5+", nullable="5+", ignorable=True, default=None)
