"""Requests that a broker forwards to the active controller, and requests for some items of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kwire.broker.api.request.context import Delayed
from kwire.broker.api.request.error_responses import ItemResults, error_response
from kwire.broker.security.principal import Principal
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.registry import RequestHeader
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext
    from kwire.broker.security.standard_authorizer import StandardAuthorizer

Forward = Callable[["ControllerRequestContext", Any], Delayed]
"""A function that forwards a request to the active controller."""


class DerivedRequest:
    """A request that is handled in place of an original request, with the properties of the original one."""

    def __init__(self, original: ControllerRequestContext) -> None:
        self._original = original

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
    def authorizer(self) -> StandardAuthorizer | None:
        return self._original.authorizer

    @authorizer.setter
    def authorizer(self, authorizer: StandardAuthorizer | None) -> None:
        self._original.authorizer = authorizer

    @property
    def listener(self) -> str:
        return self._original.listener

    def close_connection(self) -> None:
        """Close the connection of the original request."""
        self._original.close_connection()


class PartialRequest(DerivedRequest):
    """A request for those items of an original request that have no results yet.

    The response gets the results of the other items.
    """

    def __init__(self, original: ControllerRequestContext, request: Message, results: ItemResults) -> None:
        super().__init__(original)
        self._request = request
        self._results = results

    def complete(self, response: Message) -> None:
        self._results.add_to(response)
        self._original.complete(response)

    def refuse(self, error: ApiError) -> None:
        """Use an error as the result of all items. After NOT_CONTROLLER, the request is retried."""
        if error.code is ErrorCode.NOT_CONTROLLER:
            self._original.refuse(error)
        else:
            self.complete(error_response(self.header.api_key, self.api_version, self._request, error))
