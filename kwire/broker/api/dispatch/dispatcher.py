"""Dispatch of request frames to the handlers of their APIs, with an error response if a handler fails.

The handler of an API is imported when the API is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from kwire.broker.api.dispatch.handlers import (
    BEFORE_FORWARDING,
    CONTROLLER_HANDLERS,
    HANDLERS,
    import_handler,
)
from kwire.broker.api.request.context import DELAYED, Channel, Delayed, RequestContext
from kwire.broker.api.request.forwarding import PartialRequest
from kwire.broker.api.request.needs import ByHandler
from kwire.broker.api.request.repeated_request import MAX_REPEATED_BYTES, RepeatedRequest
from kwire.broker.api.request.slices import (
    LARGE_PRODUCE_BYTES,
    LARGE_REQUEST_BYTES,
    InSlices,
    Steps,
    complete_in_slices,
)
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, ListenerRole, apis_for
from kwire.broker.api.request.unexpected_error import unexpected_error
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.registry import (
    API_VERSIONS,
    decode_request,
    decode_request_header,
    decode_request_in_slices,
)
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, NodeRole

Handler = Callable[["NodeRole", RequestContext, Any], Message | Delayed]
Routes = tuple[dict[int, range], dict[int, Handler]]
"""The accepted versions of a listener role, and the handlers that were imported so far, by API key."""

_ENDED = object()
_CONTROLLER = ListenerRole.CONTROLLER
_PRODUCE, _FETCH = ApiKey.PRODUCE, ApiKey.FETCH
"""Global variables are read for each request, because an Enum lookup takes six times as long."""
_ADMITTING_ROLES = {
    api_key: tuple(api.handled_by.value.roles)
    for api_key, api in SUPPORTED_APIS.items()
    if not all(isinstance(need, ByHandler) for need in api.needs)
}
"""By API key, the roles in which a node authorizes requests before their handlers. Else the controller does.

An API is missing if its handler makes all decisions.
"""


class Dispatcher:
    """Dispatches the request frames of a node's connections to API handlers."""

    def __init__(self, node: NodeRole) -> None:
        self._node = node
        self._gate = node.gate
        self._as_broker: Routes = _accepted_versions(ListenerRole.BROKER), {}
        self._as_controller: Routes = _accepted_versions(ListenerRole.CONTROLLER), {}

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Return whether a frame must wait for the responses to earlier requests of its connection.

        Apache Kafka handles the requests of a connection one at a time, so that each request sees the effects
        of earlier ones. kwire has two exceptions. Behind delayed Fetches, a Fetch is queued, and any other
        request completes them, possibly in several turns of the event loop. A Produce need not wait if all
        pending requests are Produces, because these are appended in order and no request reads in between.
        Behind a large Fetch, every request waits until the Fetch has read. Behind a large Produce, every
        request waits until the Produce has appended.
        """
        slots, fetches = channel.slots, channel.fetches
        if fetches.is_slicing:
            return True
        if not slots or (fetches.complete is not None and not fetches.queued):
            return False
        if fetches.queued:
            return int.from_bytes(frame[:2], "big") != _FETCH and not fetches.complete_all()
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
        if authentication is not None and authentication.handle_frame(channel, frame, now_ms):
            channel.fetches.complete_all()
            return
        repeated = channel.repeated_request
        # The fast path needs a connection without pending requests: their responses come first, and delayed
        # Fetches must complete.
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
        accepted, handlers = self._as_controller if role is _CONTROLLER else self._as_broker
        versions = accepted.get(header.api_key)
        if versions is None:
            raise WireError(f"{header} is not served by a {role.value}")
        if header.api_version not in versions:
            if header.api_key != ApiKey.API_VERSIONS:
                raise WireError(f"{header} is not served, only versions {versions[0]} to {versions[-1]}")
            with self._node.quorum.log.disk.lent():
                from kwire.broker.api.cluster.api_versions import complete_unsupported
            channel.fetches.complete_all()
            complete_unsupported(channel.open_slot(header, now_ms, len(frame)))
            return
        handler = handlers.get(header.api_key)
        if handler is None:
            # The first request of an API imports its modules. A process may have no descriptor for that.
            with self._node.quorum.log.disk.lent():
                _ = API_VERSIONS[header.api_key].request_class
                handler = handlers[header.api_key] = self._handler(header.api_key, role)
        is_large = len(frame) > LARGE_REQUEST_BYTES and (
            header.api_key != _PRODUCE or len(frame) > LARGE_PRODUCE_BYTES
        )
        request: Any = None if is_large else decode_request(header, frame, position)
        fetches = channel.fetches
        if fetches.complete is not None or fetches.queued:
            if header.api_key == _FETCH:
                # Keep the frame, because the decoded request would take much more memory.
                context = channel.open_slot(header, now_ms, len(frame))
                start = partial(
                    self._start_large if is_large else self._start_queued_fetch,
                    *(handler, context, frame, position),
                )
                fetches.append(start, self._node.host)
                return
            # The response comes after those of the delayed Fetches, so they complete now.
            fetches.complete_all()
        context = channel.open_slot(header, now_ms, len(frame))
        if is_large:
            self._start_large(handler, context, frame, position, may_wait=True)
            return
        audit_log = self._gate.audit_log
        recorded = 0 if audit_log is None else audit_log.recorded
        self._call(handler, context, request)
        if (
            context.fast_path is not None
            and context.reply is not None
            and len(frame) <= MAX_REPEATED_BYTES
            and (authentication is None or not authentication.session_expires)
        ):
            (piece,) = context.reply
            assert isinstance(piece, bytearray)
            checks = 0 if audit_log is None else audit_log.recorded - recorded
            channel.repeated_request = RepeatedRequest(
                header, frame, piece, context.fast_path, self._gate, checks
            )

    def _start_queued_fetch(
        self, handler: Handler, context: RequestContext, frame: memoryview, position: int, may_wait: bool
    ) -> None:
        """Handle a Fetch that has waited for its turn. The body of the request begins at `position`."""
        request: Any = decode_request(context.header, frame, position)
        if not may_wait or self._node.stopping:
            request.max_wait_ms = min(request.max_wait_ms, 0)
        self._call(handler, context, request)

    def _start_large(
        self, handler: Handler, context: RequestContext, frame: memoryview, position: int, may_wait: bool
    ) -> None:
        """Decode a large request in slices, and handle it."""

        def steps() -> Steps:
            request = yield from decode_request_in_slices(context.header, frame, position)
            context.request = request
            if context.header.api_key == _FETCH and (not may_wait or self._node.stopping):
                request.max_wait_ms = min(request.max_wait_ms, 0)
            if self._gate.authorizer is not None and context.role in _ADMITTING_ROLES.get(
                context.header.api_key, ()
            ):
                request, context.results = yield from self._gate.admit_in_slices(context, request)
            reply = handler(self._node, context, request)
            return (yield from reply.steps) if isinstance(reply, InSlices) else reply

        self._run(context, steps())

    def _run(self, context: RequestContext, steps: Steps) -> None:
        """Run the steps of a request, which takes several turns of the event loop."""
        if context.header.api_key in (_FETCH, _PRODUCE):
            steps = _before_later_requests(context.channel, steps)
        complete_in_slices(self._node.host, context, steps)

    def _call(self, handler: Handler, context: RequestContext, request: Message) -> None:
        """Call a handler, and respond with an error if it fails.

        Raises WireError if the request gets no response and the connection must close.
        """
        context.request = request
        try:
            reply = self._reply(handler, context, request)
        except WireError:
            # The connection closes after the responses to earlier requests, so this request must not be
            # one that still waits for its response.
            if not context.completed:
                context.complete_without_reply()
            raise
        if not isinstance(reply, Delayed):
            context.complete(reply)
        elif reply is not DELAYED:
            assert isinstance(reply, InSlices)
            self._run(context, reply.steps)
        elif not context.completed:
            context.was_delayed()

    def _reply(self, handler: Handler, context: RequestContext, request: Message) -> Message | Delayed:
        """Return the handler's reply, or an error response if the handler fails."""
        try:
            if self._gate.authorizer is not None and context.role in _ADMITTING_ROLES.get(
                context.header.api_key, ()
            ):
                request, context.results = self._gate.admit(context, request)
            return handler(self._node, context, request)
        except ApiError as error:
            return context.error_response(error)
        except WireError:
            raise
        except Exception as error:
            return unexpected_error(self._node.host, context, error, request)

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
        """Handle a forwarded request, because the active controller is on this node.

        If the request has many items, its rights are checked in several turns of the event loop.
        """
        steps = self._steps_as_controller(context, request)
        if next(steps, _ENDED) is _ENDED:
            return
        host = self._node.host

        def next_step() -> None:
            try:
                if next(steps, _ENDED) is not _ENDED:
                    host.call_soon(next_step)
            except Exception:  # without a response, the request would never complete
                host.logger("kwire.dispatch").exception(
                    "Handling forwarded request %s from %s failed; responding with UNKNOWN_SERVER_ERROR",
                    *(context.header, context.peer_host),
                )
                context.refuse(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

        host.call_soon(next_step)

    def _steps_as_controller(
        self, context: ControllerRequestContext, request: Any
    ) -> Generator[None, None, None]:
        admitted = context
        try:
            if self._gate.authorizer is not None:
                request, results = yield from self._gate.admit_in_slices(context, request)
                if results is not None:
                    admitted = PartialRequest(context, request, results)
            reply = import_handler(HANDLERS[context.header.api_key])(self._node, admitted, request)
        except ApiError as error:
            context.refuse(error)
        else:
            if not isinstance(reply, Delayed):
                admitted.complete(reply)


def _accepted_versions(role: ListenerRole) -> dict[int, range]:
    return {api_key: api.accepted_versions for api_key, api in apis_for(role).items()}


def _before_later_requests(channel: Channel, steps: Steps) -> Steps:
    """Run the steps of a Fetch or Produce. Later requests of its connection wait until they end."""
    channel.fetches.begin_slices()
    try:
        return (yield from steps)
    finally:
        channel.fetches.end_slices()
        channel.on_ready(channel)  # later requests need not wait for the response
