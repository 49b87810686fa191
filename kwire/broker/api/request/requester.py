"""A request, as the authorizer sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kwire.broker.security.principal import Principal
    from kwire.broker.security.standard_authorizer import StandardAuthorizer
    from kwire.wire.registry import RequestHeader


class Requester(Protocol):
    """A request with its client, who may be connected to another node, which has forwarded the request."""

    authorizer: StandardAuthorizer | None
    """The authorizer that decides everything about this request; None before the first decision."""

    @property
    def header(self) -> RequestHeader: ...
    @property
    def api_version(self) -> int:
        """The version of the request and of its response."""

    @property
    def principal(self) -> Principal:
        """The principal that sent the request."""

    @property
    def peer_host(self) -> str:
        """The address of the client."""
