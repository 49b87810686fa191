"""The way to an active controller that is another node: commands and clients' requests as requests to it.

A command is asked once. Where nobody leads, or who is asked does not or is not reached, the answer is
NOT_CONTROLLER, and who asked asks again. What clients ask goes as it is, in an Envelope (KIP-590), and is
asked again here until its time is over, as Apache Kafka's brokers do it.

A controller that leads no more may never answer, as one that is cut off. What it was asked is then taken for
not done as soon as another one leads, be it this node, and not only when its time is over.

A node may be a controller, too: what it would ask itself while it leads it has decided here.

Heartbeats, commands and forwarded requests have a connection each: the controller takes the requests of one
in their order, and none of them is to wait for those of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kwire.broker.api.request.ports import ControllerRequestContext
from kwire.broker.config import BrokerConfig
from kwire.broker.controller.commands import Command, OnDone
from kwire.broker.controller.port import ControllerPort
from kwire.broker.raft.view import QuorumView
from kwire.broker.security.principal import Principal
from kwire.host.host import Host, PeerAddress, PeerUnreachable
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.envelope import EnvelopeResponse
from kwire.wire.registry import API_VERSIONS, RequestHeader, decode_response, encode_request
from kwire.wire.schema import Message

FORWARDING_TIMEOUT_MS: Final = 60_000
"""How long a client's request is tried; Kafka's, whatever the client's own patience."""
NOT_CONTROLLER_MS: Final = 50


class RemoteController:
    """The `ControllerPort` of a node that need not lead the quorum, and the way of what it forwards."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        quorum: QuorumView,
        *,
        cluster_id: Callable[[], str],
        local_controller: ControllerPort | None = None,
    ) -> None:
        """`own` is the controller of this node, if it is one."""
        self._local_controller = local_controller
        self._config = config
        self._host = host
        self._quorum = quorum
        self._cluster_id = cluster_id
        self._in_flight: dict[Callable[[Message | PeerUnreachable], None], PeerAddress] = {}
        """Who was asked, by what is to be called with the answer."""
        quorum.subscribe_leader(self._leader_changed)

    # --- commands

    def submit(self, command: Command, on_done: OnDone[Any]) -> None:
        """Have the active controller decide a command; `on_done` gets the reply, or an ApiError.

        It is never called before this returns.
        """
        if self._local_controller is not None and self._quorum.leads:
            self._local_controller.submit(command, on_done)
            return
        # Imported here, as below: a controller that is alone starts without what others are asked.
        from kwire.broker.node.controller_requests import HEARTBEATS, controller_request

        asked = controller_request(command, self._cluster_id())
        patience_ms = self._config.controller_socket_timeout_ms
        if asked.purpose == HEARTBEATS:
            # A broker that hears nothing has to find another controller before its session is over.
            patience_ms = min(patience_ms, self._config.broker_session_timeout_ms // 2)

        def answered(answer: Message | ApiError) -> None:
            if not isinstance(answer, ApiError):
                try:
                    answer = asked.read(answer)
                except ApiError as error:
                    answer = error
            on_done(answer)

        self._send(
            asked.purpose, asked.request, self._host.internode_clock.monotonic_ms() + patience_ms, answered
        )

    def _send(
        self,
        purpose: str,
        request: Message,
        deadline_ms: int,
        on_response: Callable[[Message | ApiError], None],
    ) -> None:
        """Ask who leads now. What it says for the whole request is an ApiError."""
        from kwire.broker.node.controller_requests import error_code

        address = self._quorum.leader_address()
        if address is None:
            error = ApiError(ErrorCode.NOT_CONTROLLER, "nobody is known to lead the quorum")
            self._host.call_soon(lambda: on_response(error))
            return

        def answered(answer: Message | PeerUnreachable) -> None:
            if self._in_flight.pop(answered, None) is None:
                return  # it was given up
            if isinstance(answer, PeerUnreachable):
                on_response(ApiError(ErrorCode.NOT_CONTROLLER, str(answer)))
                return
            code = getattr(answer, "error_code", ErrorCode.NONE)
            on_response(ApiError(error_code(code)) if code else answer)

        self._in_flight[answered] = address
        self._host.peers.send(
            address, purpose, request, deadline_ms=deadline_ms, on_response=answered, to_controller=True
        )

    def _leader_changed(self) -> None:
        leader = self._quorum.leader_address()
        if leader is None and not self._quorum.leads:
            return
        for answered, asked in list(self._in_flight.items()):
            if asked != leader:
                answered(PeerUnreachable(f"{asked} leads the quorum no more"))

    # --- what clients ask

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """See `ForwardingManager`."""
        address = self._quorum.leader_address()
        return {} if address is None else self._host.peers.api_versions(address)

    def forward(
        self,
        asked: ControllerRequestContext,
        request: Message,
        locally: Callable[[ControllerRequestContext], None],
    ) -> None:
        """Have the active controller answer a client's request, however often it takes to find it.

        `locally` has this node answer it, while it leads.
        """
        deadline_ms = self._host.internode_clock.monotonic_ms() + FORWARDING_TIMEOUT_MS

        def ask() -> None:
            if self._quorum.leads:
                locally(_LocalRequest(asked, answered))
                return
            from kwire.broker.node.controller_requests import FORWARDED, envelope

            header = asked.header
            frame = encode_request(request, header.api_version, header.correlation_id, header.client_id)[4:]
            wrapped = envelope(frame, asked.principal, asked.peer_host)
            patience_ms = self._config.controller_socket_timeout_ms
            until_ms = min(deadline_ms, self._host.internode_clock.monotonic_ms() + patience_ms)
            self._send(FORWARDED, wrapped, until_ms, answered)

        def answered(answer: Message | ApiError) -> None:
            if isinstance(answer, EnvelopeResponse):
                self._forward_response(asked, answer)
                return
            assert isinstance(answer, ApiError)
            if answer.code is ErrorCode.NOT_CONTROLLER:
                if self._host.internode_clock.monotonic_ms() + NOT_CONTROLLER_MS < deadline_ms:
                    self._host.internode_clock.schedule(NOT_CONTROLLER_MS, ask)
                else:
                    asked.refuse(ApiError(ErrorCode.REQUEST_TIMED_OUT))
            elif answer.code is ErrorCode.UNSUPPORTED_VERSION:
                # The client goes by what this broker has advertised: it is to ask for that again.
                asked.close_connection()
            else:
                self._host.logger("kwire.dispatch").error(
                    "the controller does not take what this broker forwards: %s", answer
                )
                asked.refuse(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

        ask()

    def _forward_response(self, asked: ControllerRequestContext, answer: EnvelopeResponse) -> None:
        header = asked.header
        try:
            _, response = decode_response(
                API_VERSIONS[header.api_key].response_class, header.api_version, answer.response_data or b""
            )
        except WireError as error:
            self._host.logger("kwire.dispatch").error("the controller's answer cannot be read: %s", error)
            asked.refuse(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        asked.complete(response)


class _LocalRequest:
    """A request of a client that this node answers itself, unless it turns out not to lead any more."""

    def __init__(self, asked: ControllerRequestContext, on_refused: Callable[[ApiError], None]) -> None:
        self._asked = asked
        self._on_refused = on_refused

    @property
    def header(self) -> RequestHeader:
        """As it was asked, like all of this."""
        return self._asked.header

    @property
    def api_version(self) -> int:
        """See `header`."""
        return self._asked.api_version

    @property
    def principal(self) -> Principal:
        """See `header`."""
        return self._asked.principal

    @property
    def peer_host(self) -> str:
        """See `header`."""
        return self._asked.peer_host

    @property
    def listener(self) -> str:
        """See `header`."""
        return self._asked.listener

    def complete(self, response: Message) -> None:
        """Answer."""
        if getattr(response, "error_code", None) == ErrorCode.NOT_CONTROLLER:
            self._on_refused(ApiError(ErrorCode.NOT_CONTROLLER))
        else:
            self._asked.complete(response)

    def refuse(self, error: ApiError) -> None:
        """Answer with an error of the whole, or have it asked elsewhere."""
        if error.code is ErrorCode.NOT_CONTROLLER:
            self._on_refused(error)
        else:
            self._asked.refuse(error)

    def close_connection(self) -> None:
        """End the client's connection."""
        self._asked.close_connection()
