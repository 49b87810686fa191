"""What a broker passes on to the active controller, and what comes back.

A broker's part of a forwarded API may answer some of the request itself, and forwards the rest as a `Part`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kwire.broker.api.request.context import Parked, RequestContext
from kwire.broker.api.request.error_responses import error_response
from kwire.broker.security.principal import Principal
from kwire.wire.errors import ApiError
from kwire.wire.registry import RequestHeader
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import Asked

Forward = Callable[["Asked", Any], Parked]
"""Have the active controller answer a request."""


class Part:
    """A part of a request, whose answer goes into that of the whole."""

    def __init__(self, whole: RequestContext, request: Message, then: Callable[[Any], None]) -> None:
        self._whole = whole
        self._request = request
        self._then = then

    @property
    def header(self) -> RequestHeader:
        """That of the whole."""
        return self._whole.header

    @property
    def api_version(self) -> int:
        """That of the whole."""
        return self._whole.api_version

    @property
    def principal(self) -> Principal:
        """That of the whole."""
        return self._whole.principal

    @property
    def peer_host(self) -> str:
        """That of the whole."""
        return self._whole.peer_host

    @property
    def listener(self) -> str:
        """That of the whole."""
        return self._whole.listener

    def complete(self, response: Message) -> None:
        """The controller's answer."""
        self._then(response)

    def refuse(self, error: ApiError) -> None:
        """The controller's refusal of all that was forwarded."""
        self._then(error_response(self._whole.header.api_key, self.api_version, self._request, error))

    def close_connection(self) -> None:
        """That of the whole ends."""
        self._whole.close_connection()
