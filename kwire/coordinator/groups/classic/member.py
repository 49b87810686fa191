"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Collection

from kwire.coordinator.groups.classic_protocol import JoinDone, Protocols, SyncDone
from kwire.coordinator.state_machine import TimerHandle


class ClassicGroupMember:
    """A member's identity, protocols and assignment, and its requests that wait for a response."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "id",
        "instance_id",
        "is_new",
        "join_done",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_done",
    )

    def __init__(
        self,
        member_id: str,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = tuple(protocols)
        self.assignment = assignment
        self.is_new = False
        """Whether the member joined but never got a generation, so that it cannot send heartbeats yet."""
        self.join_done: JoinDone | None = None
        self.sync_done: SyncDone | None = None
        self.session: TimerHandle | None = None

    @property
    def is_static(self) -> bool:
        """Whether the member has an instance id, and so stays in the group after a restart (KIP-345)."""
        return self.instance_id is not None

    @property
    def ignores_session_timeout(self) -> bool:
        """Whether the session cannot time out, because the member waits for a response without heartbeats.

        This does not apply to new members. A client may give up and join again with each retry, which would
        add more and more dead members to the join phase.
        """
        return not self.is_new and (self.join_done is not None or self.sync_done is not None)

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for this protocol, or empty bytes if it is unsupported."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Collection[str]) -> str:
        """Return the member's first protocol that is a candidate. Raises ValueError if there is none."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise ValueError(f"member {self.id} supports none of the candidate protocols")
