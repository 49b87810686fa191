"""From a frame to the handler of its API, and from what went wrong to an answer.

Handlers are import_handler when their API is first called.
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
    from kwire.broker.api.request.ports import CombinedRole, ControllerRequestContext

Handler = Callable[["CombinedRole", RequestContext, Any], Message | Delayed]
Routes = tuple[dict[int, SupportedApi], dict[int, Handler]]
"""What a role serves, and the handlers of what it was context so far."""

_CONTROLLER = ListenerRole.CONTROLLER
_PRODUCE = ApiKey.PRODUCE
"""For what each request asks: a member of an enumeration takes six times as long to look up."""


class Dispatcher:
    """Sends each frame of a node's connections to the handler of its API."""

    def __init__(self, node: CombinedRole) -> None:
        self._node = node
        self._as_broker: Routes = apis_for(ListenerRole.BROKER), {}
        self._as_controller: Routes = apis_for(ListenerRole.CONTROLLER), {}

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Whether a frame has to wait until what its connection has context before is answered.

        Apache Kafka takes a connection's requests one at a time, so that each sees what those before it did.
        Not so behind a long poll, which ends with it; nor Produce behind Produce: they are written in their
        order, and nobody looks between them.
        """
        slots = channel.slots
        if not slots or channel.interrupt is not None:
            return False
        if int.from_bytes(frame[:2], "big") == _PRODUCE:
            # Whatever is no Produce had nothing behind it, so it can only be the last.
            return not slots[-1].completed and slots[-1].header.api_key != _PRODUCE
        return not all(context.completed for context in slots)

    def dispatch(self, channel: Channel, frame: memoryview, now_ms: int) -> None:
        """Handle one frame (without its size). WireError means that the connection must be closed."""
        authentication = channel.authentication
        if authentication is not None:
            interrupt = channel.interrupt
            if authentication.handle_frame(channel, frame, now_ms):
                if interrupt is not None:
                    interrupt()
                return
        repeated = channel.repeated_request
        # What waits is answered first, and an answer behind a long poll ends that.
        if repeated is not None and not channel.slots:
            answer = repeated.respond(frame)
            if answer:
                header = repeated.header_of(frame)
                channel.open_slot(header, now_ms, len(frame)).complete_encoded([answer])
                return
            if answer is not None:
                # It holds on to what its coordinator knew, who may be gone. The next one is remembered again.
                channel.repeated_request = None
        header, position = decode_request_header(frame)
        role = channel.role
        apis, handlers = self._as_controller if role is _CONTROLLER else self._as_broker
        served = apis.get(header.api_key)
        if served is None:
            raise WireError(f"API {header.api_key} is not served by a {role.value}")
        version = header.api_version
        if not served.min_version <= version <= served.max_version or version < served.rejected_below:
            if header.api_key != ApiKey.API_VERSIONS:
                raise WireError(
                    f"{ApiKey(header.api_key).name} version {version} is not served "
                    f"({served.min_version} to {served.max_version} are)"
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
            # Ours, not the client's: it is logged with its request, and the broker lives on.
            self._node.host.logger("kwire.dispatch").exception(
                "request failed: %s from %s: %.2000r",
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
            # This reply waits behind a long poll of the same connection: end that poll now.
            interrupt()

    def _handler(self, api_key: int, role: ListenerRole) -> Handler:
        """What answers an API on a listener of this role, directly or by forwarding it."""
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
        """Have the active controller answer a request, be it this node or another."""
        way = self._node.forwarding
        if way is None:
            self._handle_as_controller(context, request)
        else:
            way.forward(context, request, lambda here: self._handle_as_controller(here, request))
        return DELAYED

    def _handle_as_controller(self, context: ControllerRequestContext, request: Any) -> None:
        """Answer a request that is forwarded, as the controller of this node does."""
        try:
            reply = import_handler(HANDLERS[context.header.api_key])(self._node, context, request)
        except ApiError as error:
            context.refuse(error)
        else:
            if not isinstance(reply, Delayed):
                context.complete(reply)
