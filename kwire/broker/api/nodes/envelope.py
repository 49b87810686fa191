"""Envelope v0: a client's request, forwarded by a broker to the active controller. KIP-590.

An error of the envelope itself, or NOT_CONTROLLER, is in the Envelope response, where the broker handles the
error. An error of the client's request is in the client's response, which the Envelope response contains. The
sender chooses the principal of the enclosed request. So on a listener with authentication, only nodes may
send an Envelope. Apache Kafka without an authorizer accepts it from every client.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.error_responses import error_response
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, HandledBy
from kwire.broker.security.principal import Principal
from kwire.broker.security.settings import authenticates_clients, is_node
from kwire.host.loggers import escape_unprintable
from kwire.wire.errors import ApiError, ErrorCode, NotInVersion, WireError
from kwire.wire.messages.default_principal import DefaultPrincipalData
from kwire.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.wire.registry import (
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_version_prefixed,
    encode_response,
)
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole
    from kwire.broker.security.standard_authorizer import StandardAuthorizer


def envelope(
    node: ControllerRole,
    context: RequestContext,
    request: EnvelopeRequest,
    handle: Callable[[ControllerRequestContext, Message], None],
) -> Delayed:
    """Pass the enclosed request to `handle`, which responds. The checks are in Apache Kafka's order.

    Raises ApiError CLUSTER_AUTHORIZATION_FAILED, PRINCIPAL_DESERIALIZATION_FAILURE, INVALID_REQUEST,
    UNSUPPORTED_VERSION or NOT_CONTROLLER.
    """
    if (
        node.gate.authorizer is None  # an authorizer allows CLUSTER_ACTION to nodes
        and authenticates_clients(node.config, context.listener)
        and not is_node(node.config, context.principal)
    ):
        node.host.logger("kwire.dispatch").warning(
            "Refused an Envelope from %s: if %s is the principal of a node, add it to super.users",
            *(context.peer_host, escape_unprintable(str(context.principal))),
        )
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    principal = _principal(request)
    try:
        peer_host = str(ipaddress.ip_address(bytes(request.client_host_address)))
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST) from None
    frame = memoryview(request.request_data)
    try:
        header, position = decode_request_header(frame)
    except WireError:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION) from None
    served = SUPPORTED_APIS.get(header.api_key)
    if served is None or served.handled_by is not HandledBy.CONTROLLER:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    if header.api_version not in served.accepted_versions:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    try:
        inner = decode_request(header, frame, position)
    except WireError:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION) from None
    if not node.quorum.leads:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    context.counted_as = header.api_key, header.api_version
    try:
        handle(EnvelopedRequest(context, header, inner, principal, peer_host), inner)
    except WireError:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION) from None
    return DELAYED


def _principal(request: EnvelopeRequest) -> Principal:
    if request.request_principal is not None:
        try:
            principal = decode_version_prefixed(DefaultPrincipalData, request.request_principal)
            return Principal(principal.type, principal.name, principal.token_authenticated)
        except WireError:
            pass
    raise ApiError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)


class EnvelopedRequest:
    """A client's request that arrived in an Envelope."""

    def __init__(
        self,
        outer: RequestContext,
        header: RequestHeader,
        request: Message,
        principal: Principal,
        peer_host: str,
    ) -> None:
        self._outer = outer
        self._request = request
        self.header = header
        self.principal = principal
        self.peer_host = peer_host

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def listener(self) -> str:
        """The listener that received the envelope."""
        return self._outer.listener

    @property
    def authorizer(self) -> StandardAuthorizer | None:
        """The authorizer of the Envelope, which arrived in the same frame."""
        return self._outer.authorizer

    @authorizer.setter
    def authorizer(self, authorizer: StandardAuthorizer | None) -> None:
        self._outer.authorizer = authorizer

    def complete(self, response: Message) -> None:
        """Send the response for the client in an Envelope response. For NOT_CONTROLLER, see `refuse`."""
        header = self.header
        if getattr(response, "error_code", None) == ErrorCode.NOT_CONTROLLER:
            self._outer.refuse(ApiError(ErrorCode.NOT_CONTROLLER))
            return
        try:
            (frame,) = encode_response(header.api_key, header.api_version, header.correlation_id, response)
        except NotInVersion:
            self.refuse(ApiError(ErrorCode.UNSUPPORTED_VERSION))
            return
        assert isinstance(frame, bytearray)
        self._outer.record_errors(header.api_key, response)
        self._outer.complete(EnvelopeResponse(response_data=bytes(frame[4:])))

    def refuse(self, error: ApiError) -> None:
        """Send an error response for the client's whole request.

        NOT_CONTROLLER becomes the error of the Envelope response, so that the broker retries with another
        controller.
        """
        if error.code is ErrorCode.NOT_CONTROLLER:
            self._outer.refuse(error)
        else:
            header = self.header
            self.complete(error_response(header.api_key, header.api_version, self._request, error))

    def close_connection(self) -> None:
        """Close the connection of the broker that forwarded the request."""
        self._outer.close_connection()
