"""Requests to an active controller on another node: this node's commands, and clients' forwarded requests.

If there is no active controller, or its node is unreachable or no longer active, a command waits for the next
active controller, as in Apache Kafka's NodeToControllerChannelManager. The news of a leader sends it again at
once. As long as the same leader is known, the command is sent again after `NOT_CONTROLLER_MS`. When the
command's time is over, the result is NOT_CONTROLLER, and the caller decides whether to submit it again. An
active controller may get a command twice. Clients' requests are forwarded in an Envelope (KIP-590), and wait
in the same way.

A former active controller, for example a partitioned one, may never respond. So requests that wait for its
response are sent again as soon as there is a new active controller, which may be this node. Commands are also
sent again to the same node in a later leader epoch: if its machine lost power, it does not remember them. A
client's request is not, because that node may be about to respond to it, and a second execution may fail, for
example with TOPIC_ALREADY_EXISTS.

If this node is the active controller itself, it handles commands and forwarded requests locally.

Heartbeats, commands and forwarded requests use separate connections, because the controller handles the
requests of a connection in order, and one kind of request should not delay another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kwire.broker.api.request.forwarding import DerivedRequest
from kwire.broker.api.request.ports import ControllerRequestContext
from kwire.broker.config import BrokerConfig
from kwire.broker.controller.commands import BrokerHeartbeat, Command, OnDone, RegisterBroker
from kwire.broker.controller.port import ControllerPort
from kwire.broker.raft.view import QuorumView
from kwire.host.host import Host, InternodeTime, PeerAddress, PeerUnreachable, Timer
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.envelope import EnvelopeResponse
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message

FORWARDING_TIMEOUT_MS: Final = 60_000
"""The timeout for forwarding a client's request. As in Kafka, the timeout in the request does not matter."""
NOT_CONTROLLER_MS: Final = 50
"""The pause before a request is sent again to the same node."""


class _InFlight(NamedTuple):
    """A request that waits for the response of the active controller."""

    address: PeerAddress
    epoch: int | None
    """The leader epoch when the request was sent; None if a later epoch does not cause a retry."""


class _Waiting(NamedTuple):
    """A request that waits until it can be sent again."""

    send: Callable[[], None]
    timer: Timer


class RemoteController:
    """`ControllerPort` and `ForwardingManager` of a node when another node may be the active controller."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        quorum: QuorumView,
        *,
        cluster_id: Callable[[], str],
        local_controller: ControllerPort | None = None,
    ) -> None:
        """`local_controller` is the controller on this node; None without the controller role."""
        self._local_controller = local_controller
        self._config = config
        self._host = host
        self._quorum = quorum
        self._cluster_id = cluster_id
        self._in_flight: dict[Callable[[Message | PeerUnreachable], None], _InFlight] = {}
        """The pending requests by their callbacks."""
        self._waiting: list[_Waiting] = []
        self._is_stopped = False
        quorum.subscribe_leader(self._leader_changed)

    # --- commands

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Submit a command to the active controller. `on_done` gets the reply or an ApiError.

        `on_done` is called after this call has returned.
        """
        timeout_ms = self._config.controller_socket_timeout_ms
        if isinstance(command, BrokerHeartbeat | RegisterBroker):
            # The broker must find another controller before its session times out.
            timeout_ms = min(timeout_ms, self._config.broker_session_timeout_ms // 2)
        deadline_ms = self._host.internode_clock.monotonic_ms() + timeout_ms

        def send() -> None:
            if self._local_controller is not None and self._quorum.leads:
                self._local_controller.submit(command, finish)
            else:
                self._send_command(command, deadline_ms, finish)

        def finish(reply: Any) -> None:
            is_refused = isinstance(reply, ApiError) and reply.code is ErrorCode.NOT_CONTROLLER
            if not (is_refused and self._wait(send, deadline_ms)):
                on_done(reply)

        send()

    def stop(self) -> None:
        """Send no request again, because the node is stopping."""
        for waiting in self._waiting:
            waiting.timer.cancel()
        self._waiting.clear()
        self._is_stopped = True

    def _wait(self, send: Callable[[], None], deadline_ms: InternodeTime) -> bool:
        """Call `send` when there is a new active controller, or later. Return False if the time is over."""
        remaining_ms = deadline_ms - self._host.internode_clock.monotonic_ms()
        if remaining_ms <= 0 or self._is_stopped:
            return False
        is_known = self._quorum.leads or self._quorum.leader_address() is not None
        delay_ms = min(NOT_CONTROLLER_MS, remaining_ms) if is_known else remaining_ms
        timer = self._host.internode_clock.schedule(delay_ms, lambda: self._send_again(waiting))
        waiting = _Waiting(send, timer)
        self._waiting.append(waiting)
        return True

    def _send_again(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        waiting.timer.cancel()
        waiting.send()

    def _send_command(
        self, command: Command, deadline_ms: InternodeTime, on_reply: Callable[[Any], None]
    ) -> None:
        """Send a command to another node. `on_reply` gets the reply or an ApiError."""
        # Imported here and below to shorten the start of a node that is the only controller.
        from kwire.broker.node.controller_requests import controller_request

        sent = controller_request(command, self._cluster_id(), self._config)

        def on_response(response: Message | ApiError) -> None:
            if not isinstance(response, ApiError):
                try:
                    response = sent.read(response)
                except ApiError as error:
                    response = error
            on_reply(response)

        self._send(sent.purpose, sent.request, deadline_ms, on_response, epoch=self._quorum.epoch)

    def _send(
        self,
        purpose: str,
        request: Message,
        deadline_ms: InternodeTime,
        on_response: Callable[[Message | ApiError], None],
        *,
        epoch: int | None,
    ) -> None:
        """Send a request to the active controller. A top-level error code becomes an ApiError.

        With an `epoch`, the request fails with NOT_CONTROLLER if the same node leads in another epoch.
        """
        from kwire.broker.node.controller_requests import error_code

        address = self._quorum.leader_address()
        if address is None:
            error = ApiError(ErrorCode.NOT_CONTROLLER, "the active controller is unknown")
            self._host.call_soon(lambda: on_response(error))
            return

        def handle(response: Message | PeerUnreachable) -> None:
            if self._in_flight.pop(handle, None) is None:
                return  # the request has already failed because of a new active controller
            if isinstance(response, PeerUnreachable):
                on_response(ApiError(ErrorCode.NOT_CONTROLLER, str(response)))
                return
            code = getattr(response, "error_code", ErrorCode.NONE)
            on_response(ApiError(error_code(code)) if code else response)

        self._in_flight[handle] = _InFlight(address, epoch)
        self._host.peers.send(
            address, purpose, request, deadline_ms=deadline_ms, on_response=handle, to_controller=True
        )

    def _leader_changed(self) -> None:
        leader = self._quorum.leader_address()
        if leader is None and not self._quorum.leads:
            return
        for handle, (address, epoch) in list(self._in_flight.items()):
            if address != leader or epoch not in (None, self._quorum.epoch):
                handle(PeerUnreachable(f"{address} is no longer the active controller"))
        for waiting in list(self._waiting):
            self._send_again(waiting)

    # --- forwarded requests

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Return the API versions of the active controller by API key; empty while they are unknown."""
        address = self._quorum.leader_address()
        return {} if address is None else self._host.peers.api_versions(address)

    def forward(
        self,
        context: ControllerRequestContext,
        request: Message,
        locally: Callable[[ControllerRequestContext], None],
    ) -> None:
        """Forward a client's request to the active controller. Retry while there is none, until the timeout.

        If this node is the active controller, `locally` handles the request.
        """
        deadline_ms = self._host.internode_clock.monotonic_ms() + FORWARDING_TIMEOUT_MS

        def send() -> None:
            if self._quorum.leads:
                locally(_LocalRequest(context, on_response))
                return
            from kwire.broker.node.controller_requests import FORWARDED, envelope

            header = context.header
            frame = encode_request(request, header.api_version, header.correlation_id, header.client_id)[4:]
            wrapped = envelope(frame, context.principal, context.peer_host)
            timeout_ms = self._config.controller_socket_timeout_ms
            until_ms = min(deadline_ms, self._host.internode_clock.monotonic_ms() + timeout_ms)
            self._send(FORWARDED, wrapped, until_ms, on_response, epoch=None)

        def on_response(response: Message | ApiError) -> None:
            if isinstance(response, EnvelopeResponse):
                self._forward_response(context, response)
                return
            assert isinstance(response, ApiError)
            if response.code is ErrorCode.NOT_CONTROLLER:
                if not self._wait(send, deadline_ms):
                    context.refuse(ApiError(ErrorCode.REQUEST_TIMED_OUT))
            elif response.code is ErrorCode.UNSUPPORTED_VERSION:
                # This broker has advertised outdated versions. After a reconnect, the client requests the
                # current ones.
                context.close_connection()
            else:
                self._host.logger("kwire.dispatch").error(
                    "Returning UNKNOWN_SERVER_ERROR for the forwarded request %s: the active controller "
                    "returned %s",
                    *(context.header, response),
                )
                context.refuse(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

        send()

    def _forward_response(self, context: ControllerRequestContext, envelope: EnvelopeResponse) -> None:
        header = context.header
        try:
            _, response = decode_response(
                API_VERSIONS[header.api_key].response_class, header.api_version, envelope.response_data or b""
            )
        except WireError as error:
            self._host.logger("kwire.dispatch").error(
                "Returning UNKNOWN_SERVER_ERROR for the forwarded request %s: cannot decode the active "
                "controller's response: %s",
                header,
                error,
            )
            context.refuse(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        context.complete(response)


class _LocalRequest(DerivedRequest):
    """A client's request that this node handles as active controller. It is retried on NOT_CONTROLLER."""

    def __init__(self, original: ControllerRequestContext, on_refused: Callable[[ApiError], None]) -> None:
        super().__init__(original)
        self._on_refused = on_refused

    def complete(self, response: Message) -> None:
        """Send the response to the client, or retry if it is NOT_CONTROLLER."""
        if getattr(response, "error_code", None) == ErrorCode.NOT_CONTROLLER:
            self._on_refused(ApiError(ErrorCode.NOT_CONTROLLER))
        else:
            self._original.complete(response)

    def refuse(self, error: ApiError) -> None:
        """Send an error response to the client, or retry if the error is NOT_CONTROLLER."""
        if error.code is ErrorCode.NOT_CONTROLLER:
            self._on_refused(error)
        else:
            self._original.refuse(error)
