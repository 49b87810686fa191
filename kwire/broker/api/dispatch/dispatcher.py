"""Dispatch of request frames to the handlers of their APIs, with an error response if a handler fails.

The handler of an API is imported when the API is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kwire.broker.api.dispatch.handlers import (
    BEFORE_FORWARDING,
    CONTROLLER_HANDLERS,
    HANDLERS,
    import_handler,
)
from kwire.broker.api.request.context import DELAYED, Channel, Delayed, RequestContext
from kwire.broker.api.request.repeated_request import MAX_REPEATED_BYTES, RepeatedRequest
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, ListenerRole, SupportedApi, apis_for
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.registry import decode_request, decode_request_header
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, NodeRole

Handler = Callable[["NodeRole", RequestContext, Any], Message | Delayed]
Routes = tuple[dict[int, SupportedApi], dict[int, Handler]]
"""The APIs of a listener role by API key, and the handlers that were imported so far, by API key."""

_CONTROLLER = ListenerRole.CONTROLLER
_PRODUCE = ApiKey.PRODUCE
"""A global variable is read for each request, because an Enum lookup takes six times as long."""


class Dispatcher:
    """Dispatches the request frames of a node's connections to API handlers."""

    def __init__(self, node: NodeRole) -> None:
        self._node = node
        self._as_broker: Routes = apis_for(ListenerRole.BROKER), {}
        self._as_controller: Routes = apis_for(ListenerRole.CONTROLLER), {}

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Return whether a frame must wait for the responses to earlier requests of its connection.

        Apache Kafka handles the requests of a connection one at a time, so that each request sees the effects
        of earlier ones. kwire has two exceptions: a request that arrives during a long poll ends the long
        poll, and a Produce need not wait if all pending requests are Produces, because these are appended in
        order and no request reads in between.
        """
        slots = channel.slots
        if not slots or channel.interrupt is not None:
            return False
        if int.from_bytes(frame[:2], "big") == _PRODUCE:
            # Later requests wait for a request other than Produce, so only the last slot can have one.
            return not slots[-1].completed and slots[-1].header.api_key != _PRODUCE
        return not all(context.completed for context in slots)

    def dispatch(self, channel: Channel, frame: memoryview, now_ms: int) -> None:
        """Handle one request frame, which is given without its size prefix.

        Raises WireError for a malformed request or an unknown API or version. The caller must then close the
        connection.
        """
        authentication = channel.authentication
        if authentication is not None:
            interrupt = channel.interrupt
            if authentication.handle_frame(channel, frame, now_ms):
                if interrupt is not None:
                    interrupt()
                return
        repeated = channel.repeated_request
        # The fast path needs a connection without pending requests: their responses come first, and a pending
        # long poll must end.
        if repeated is not None and not channel.slots:
            response = repeated.respond(frame)
            if response:
                header = repeated.header_of(frame)
                channel.open_slot(header, now_ms, len(frame)).complete_encoded([response])
                return
            if response is not None:
                # Drop the cached request, because its fast path may keep state of a former coordinator alive.
                channel.repeated_request = None
        header, position = decode_request_header(frame)
        role = channel.role
        apis, handlers = self._as_controller if role is _CONTROLLER else self._as_broker
        served = apis.get(header.api_key)
        if served is None:
            raise WireError(f"{header} is not served by a {role.value}")
        version = header.api_version
        if not served.min_version <= version <= served.max_version or version < served.rejected_below:
            if header.api_key != ApiKey.API_VERSIONS:
                raise WireError(
                    f"{header} is not served, only versions {served.min_version} to {served.max_version}"
                )
            from kwire.broker.api.cluster.api_versions import complete_unsupported

            complete_unsupported(channel.open_slot(header, now_ms, len(frame)))
            return
        request = decode_request(header, frame, position)
        handler = handlers.get(header.api_key)
        if handler is None:
            handler = handlers[header.api_key] = self._handler(header.api_key, role)
        interrupt = channel.interrupt
        context = channel.open_slot(header, now_ms, len(frame))
        context.request = request
        try:
            reply = handler(self._node, context, request)
        except ApiError as error:
            reply = context.error_response(error)
        except WireError:
            raise
        except Exception:
            # This is a bug in the broker, not the client's fault: log the request and continue.
            self._node.host.logger("kwire.dispatch").exception(
                "Handling request %s from %s failed; responding with UNKNOWN_SERVER_ERROR. "
                "The request is %.2000r",
                header,
                channel.peer_host,
                request,
                extra={"request": context.request_id},
            )
            reply = context.error_response(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if not isinstance(reply, Delayed):
            context.complete(reply)
        if (
            context.fast_path is not None
            and context.reply is not None
            and len(frame) <= MAX_REPEATED_BYTES
            and (authentication is None or not authentication.session_expires)
        ):
            (piece,) = context.reply
            assert isinstance(piece, bytearray)
            channel.repeated_request = RepeatedRequest(header, frame, piece, context.fast_path)
        if interrupt is not None:
            # The response must wait for an earlier long poll of the connection, so end the long poll now.
            interrupt()

    def _handler(self, api_key: int, role: ListenerRole) -> Handler:
        """Return the function for an API on a listener of this role: its handler or a forwarding function."""
        if role is _CONTROLLER and api_key in CONTROLLER_HANDLERS:
            return import_handler(CONTROLLER_HANDLERS[api_key])
        handler = import_handler(HANDLERS[api_key])
        if api_key == ApiKey.ENVELOPE:
            return lambda node, context, request: handler(node, context, request, self._handle_as_controller)
        if role in SUPPORTED_APIS[api_key].handled_by.value.roles:
            return handler
        if api_key not in BEFORE_FORWARDING:
            return lambda _node, context, request: self._forward(context, request)
        first = import_handler(BEFORE_FORWARDING[api_key])
        return lambda node, context, request: first(node, context, request, self._forward)

    def _forward(self, context: ControllerRequestContext, request: Any) -> Delayed:
        """Forward a request to the active controller, on this node or another one."""
        way = self._node.forwarding
        if way is None:
            self._handle_as_controller(context, request)
        else:
            way.forward(context, request, lambda here: self._handle_as_controller(here, request))
        return DELAYED

    def _handle_as_controller(self, context: ControllerRequestContext, request: Any) -> None:
        """Handle a forwarded request, because the active controller is on this node."""
        try:
            reply = import_handler(HANDLERS[context.header.api_key])(self._node, context, request)
        except ApiError as error:
            context.refuse(error)
        else:
            if not isinstance(reply, Delayed):
                context.complete(reply)
