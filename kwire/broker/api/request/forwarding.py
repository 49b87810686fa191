"""What a broker passes on to the active controller, and what comes back.

A broker's part of a forwarded API may answer some of the request itself, and forwards the rest as
a `PartialRequest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.api.request.error_responses import error_response
from kwire.broker.security.principal import Principal
from kwire.wire.errors import ApiError
from kwire.wire.registry import RequestHeader
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext

Forward = Callable[["ControllerRequestContext", Any], Delayed]
"""Have the active controller answer a request."""


class PartialRequest:
    """A part of a request, whose answer goes into that of the whole."""

    def __init__(
        self, original: RequestContext, request: Message, on_response: Callable[[Any], None]
    ) -> None:
        self._original = original
        self._request = request
        self._on_response = on_response

    @property
    def header(self) -> RequestHeader:
        """That of the whole."""
        return self._original.header

    @property
    def api_version(self) -> int:
        """That of the whole."""
        return self._original.api_version

    @property
    def principal(self) -> Principal:
        """That of the whole."""
        return self._original.principal

    @property
    def peer_host(self) -> str:
        """That of the whole."""
        return self._original.peer_host

    @property
    def listener(self) -> str:
        """That of the whole."""
        return self._original.listener

    def complete(self, response: Message) -> None:
        """The controller's answer."""
        self._on_response(response)

    def refuse(self, error: ApiError) -> None:
        """The controller's refusal of all that was forwarded."""
        self._on_response(
            error_response(self._original.header.api_key, self.api_version, self._request, error)
        )

    def close_connection(self) -> None:
        """That of the whole ends."""
        self._original.close_connection()
