"""Requests that a broker forwards to the active controller.

A broker may itself handle some items of a request. It then forwards the other items as a `PartialRequest`.
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
"""A function that forwards a request to the active controller."""


class PartialRequest:
    """A request for some items of an original request, with the context of the original request.

    The results of these items are added to the response to the original request.
    """

    def __init__(
        self, original: RequestContext, request: Message, on_response: Callable[[Any], None]
    ) -> None:
        self._original = original
        self._request = request
        self._on_response = on_response

    @property
    def header(self) -> RequestHeader:
        return self._original.header

    @property
    def api_version(self) -> int:
        return self._original.api_version

    @property
    def principal(self) -> Principal:
        return self._original.principal

    @property
    def peer_host(self) -> str:
        return self._original.peer_host

    @property
    def listener(self) -> str:
        return self._original.listener

    def complete(self, response: Message) -> None:
        self._on_response(response)

    def refuse(self, error: ApiError) -> None:
        """Use an error from the controller as the result of all forwarded items."""
        self._on_response(
            error_response(self._original.header.api_key, self.api_version, self._request, error)
        )

    def close_connection(self) -> None:
        """Close the connection of the original request."""
        self._original.close_connection()
