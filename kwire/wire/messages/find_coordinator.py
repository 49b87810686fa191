"""FindCoordinator v0–6.

KIP-98 (key types, v1), KIP-699 (many keys, v4), KIP-890 (v5), KIP-932 (share groups, v6).
"""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message

GROUP, TRANSACTION, SHARE = range(3)
"""Key types: a group, a transactional id, or a partition of a share group."""


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest(Message):
    """A request for the coordinators of groups, transactional ids or share group partitions."""

    key: Str = field("0-3")
    key_type: Int8 = field("1+")
    coordinator_keys: list[Str] = field("4+")


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse(Message):
    """The addresses of the coordinators."""

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0-3")
    error_message: Str | None = field("1-3", nullable="1-3", ignorable=True)
    node_id: Int32 = field("0-3")
    host: Str = field("0-3")
    port: Int32 = field("0-3")
    coordinators: list[Coordinator] = field("4+")


class Coordinator(Message):
    """The coordinator of one key."""

    key: Str = field("4+")
    node_id: Int32 = field("4+")
    host: Str = field("4+")
    port: Int32 = field("4+")
    error_code: Int16 = field("4+")
    error_message: Str | None = field("4+", nullable="4+", ignorable=True)
