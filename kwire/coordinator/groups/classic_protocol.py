"""The requests of the classic protocol in all versions, and the interface of their handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kwire.coordinator.state_machine import CoordinatorResult
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity
from kwire.wire.messages.sync_group import SyncGroupResponse
from kwire.wire.named_tuple import NamedTuple

JoinDone = Callable[[JoinGroupResponse], None]
SyncDone = Callable[[SyncGroupResponse], None]
Protocols = Sequence[tuple[str, bytes]]
"""The names and metadata of a member's assignment protocols, the preferred one first."""


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


class ClassicProtocol(Protocol):
    """The requests of the classic protocol, for groups of one type."""

    def join(self, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        """Handle JoinGroup. Errors are in the response."""

    def sync(self, sync: SyncRequest, done: SyncDone) -> CoordinatorResult:
        """Handle SyncGroup. Errors are in the response."""

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Handle Heartbeat, and return its error code."""

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity]
    ) -> tuple[CoordinatorResult, LeaveGroupResponse]:
        """Handle LeaveGroup, and return the records and the response."""
