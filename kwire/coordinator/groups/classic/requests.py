"""JoinGroup and SyncGroup requests of all versions."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.coordinator.groups.classic.member import Protocols
from kwire.wire.named_tuple import NamedTuple


class JoinRequest(NamedTuple):
    """A JoinGroup request, and the features of its version."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    reason: str | None = None
    requires_member_id: bool = True
    """Whether a dynamic member first gets a member id and must join with it (v4, KIP-394)."""
    can_skip_assignment: bool = True
    """Whether the response has SkipAssignment, for a static leader that rejoins (v9)."""


class SyncRequest(NamedTuple):
    """A SyncGroup request. Protocol type and name are None before v5."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Sequence[tuple[str, bytes]]
