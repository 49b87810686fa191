"""The quotas of clients, as requests see them. `node_quotas` has the implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from kwire.broker.api.request.requester import Requester

if TYPE_CHECKING:
    from kwire.broker.controller.commands import MutationQuota
    from kwire.wire.schema import Message


class CountedRequest(Requester, Protocol):
    """A request that quotas count."""

    throttle_ms: int | None
    """The throttle time in ms, once it has been decided."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def client_id(self) -> str: ...
    @property
    def counted_as(self) -> tuple[int, int] | None: ...
    @property
    def received_s(self) -> float: ...
    @property
    def handled_s(self) -> float: ...


class ClientQuotas:
    """The quotas of the clients of a node (KIP-13, KIP-124). This class enforces none."""

    is_enforced = False
    """Whether `throttle_time_ms` must see each request. Then no request takes the path for repeated ones."""

    def throttle_time_ms(self, context: CountedRequest, response: Message | None) -> int:
        """Record a request that is about to be completed. Return for how long to mute its connection, in ms.

        `response` is None if the request gets no response, or one that is already encoded.
        """
        return 0

    def fetch_limit_bytes(self, context: CountedRequest) -> int:
        """Return the limit of a Fetch response in bytes. A longer one would always be throttled."""
        return 0x7FFFFFFF

    def throttle_fetch(self, context: CountedRequest, response_bytes: int) -> int:
        """Record a Fetch of a client before its response is built. Return for how long to mute, in ms.

        If it is not 0, the response must be empty.
        """
        return 0

    def mutation_quota(self, context: Requester, strict_since: int) -> MutationQuota | None:
        """Return the quota of a client for the partitions that a request creates or deletes. KIP-599.

        From version `strict_since` on, changes beyond the quota are refused. None means no limit.
        """
        return None


NO_QUOTAS: Final = ClientQuotas()
