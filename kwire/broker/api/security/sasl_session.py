"""The SASL authentication and the session of a connection. KIP-368.

A `SaslSession` gets all frames before the API handlers, and passes frames to the API handlers only after the
client has authenticated (`sasl_authenticator`). If the session can expire, the client must re-authenticate
over the same connection before the session expires, but at most once per second. After the session has
expired, a request other than SaslHandshake closes the connection.

As in Apache Kafka (Selector, KafkaChannel, SocketServer), a client that fails authentication gets its error
after `connection.failed.authentication.delay.ms`, which slows down password guessing. During the delay, no
further frames of that client are handled. A connection may stay unauthenticated until
`connections.max.idle.ms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kwire.broker.api.cluster.api_versions import api_versions, complete_unsupported
from kwire.broker.api.request.context import Channel, RequestContext
from kwire.broker.api.security.sasl_authenticator import (
    AuthenticatedPrincipal,
    FailAuthentication,
    HandleApiVersions,
    SaslServerAuthenticator,
    SendResponse,
    Step,
)
from kwire.broker.config.sasl import ListenerSasl
from kwire.broker.security.mechanisms import sasl_server
from kwire.host.loggers import escape_unprintable
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import decode_request_header
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import NodeRole

MIN_REAUTHENTICATION_MS: Final = 1_000
"""The shortest time between two re-authentications. An earlier SaslHandshake gets ILLEGAL_SASL_STATE."""
MAX_REASON_LENGTH: Final = 1_000
"""The limit for reasons in the log, because a client may send a mechanism name of any length."""


class AuthenticationCounts:
    """The authentication counts of a listener, named like Kafka's metrics."""

    def __init__(self) -> None:
        self.successful_authentication = 0
        self.successful_authentication_no_reauth = 0
        """The part of `successful_authentication` from clients that do not support re-authentication."""
        self.successful_reauthentication = 0
        self.failed_authentication = 0
        self.failed_reauthentication = 0
        self.expired_connections_killed = 0


class SaslSessions:
    def __init__(self, node: NodeRole) -> None:
        self.node = node
        self.counts: dict[str, AuthenticationCounts] = {}
        """The counts by listener name."""
        self._delayed_failures: dict[int, Callable[[], None]] = {}
        """By connection id, the functions that send the error of a failed authentication after its delay."""

    def begin(self, channel: Channel, security: ListenerSasl) -> None:
        counts = self.counts.setdefault(channel.listener, AuthenticationCounts())
        channel.authentication = SaslSession(self, channel, security, counts)

    def send_failure_later(self, channel: Channel, send: Callable[[], None]) -> None:
        """Call `send` after the delay for a failed authentication."""

        def due() -> None:
            if self._delayed_failures.pop(channel.id, None) is not None:
                send()

        self._delayed_failures[channel.id] = send
        self.node.host.schedule(self.node.config.connection_failed_authentication_delay_ms, due)

    def send_delayed_failures(self) -> None:
        """Send the errors of all failed authentications now, because the node shuts down."""
        failing, self._delayed_failures = self._delayed_failures, {}
        for send in failing.values():
            send()


class SaslSession:
    """The authentication of one connection, then its session. Implements `ChannelAuthentication`."""

    __slots__ = (
        "_authenticator",
        "_counts",
        "_established",
        "_expires_ms",
        "_max_frame_bytes",
        "_reauthentication_began_ms",
        "_security",
        "_sessions",
    )

    def __init__(
        self, sessions: SaslSessions, channel: Channel, security: ListenerSasl, counts: AuthenticationCounts
    ) -> None:
        self._sessions = sessions
        self._counts = counts
        self._security = security
        self._max_frame_bytes = channel.max_frame_bytes
        self._established: AuthenticatedPrincipal | None = None
        self._expires_ms: int | None = None  # monotonic time; None means that the session does not expire
        self._reauthentication_began_ms: int | None = None
        self._authenticator: SaslServerAuthenticator | None = self._begin(channel)

    @property
    def expects_raw_tokens(self) -> bool:
        return self._authenticator is not None and self._authenticator.expects_raw_tokens

    @property
    def session_expires(self) -> bool:
        return self._expires_ms is not None

    def handle_frame(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        authenticator = self._authenticator
        if authenticator is None:
            if self._expires_ms is None:
                return False
            if not self._begins_reauthentication(frame):
                return self._close_if_expired(channel, frame, now_ms)
            authenticator = self._authenticator = self._begin(channel)
        self._apply(channel, authenticator.handle_frame(frame, now_ms), now_ms, len(frame))
        return True

    def fail_invalid_size(self, channel: Channel, reason: str, now_ms: int) -> bool:
        if self._authenticator is None:
            return False
        self._apply(channel, self._authenticator.fail(reason), now_ms, 0)
        return True

    def _begin(self, channel: Channel) -> SaslServerAuthenticator:
        node, security = self._sessions.node, self._security
        channel.max_frame_bytes = security.max_receive_bytes
        rng = node.host.random("sasl")
        return SaslServerAuthenticator(
            security,
            lambda mechanism: sasl_server(mechanism, security, node.users, rng),
            self._established,
        )

    def _begins_reauthentication(self, frame: memoryview) -> bool:
        if int.from_bytes(frame[:2], "big") != ApiKey.SASL_HANDSHAKE:
            return False
        now_ms, began_ms = self._sessions.node.host.monotonic_ms(), self._reauthentication_began_ms
        if began_ms is not None and now_ms - began_ms < MIN_REAUTHENTICATION_MS:
            return False
        self._reauthentication_began_ms = now_ms
        return True

    def _close_if_expired(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        assert self._expires_ms is not None
        if self._sessions.node.host.monotonic_ms() <= self._expires_ms:
            return False
        header, _ = decode_request_header(frame)
        self._counts.expired_connections_killed += 1
        channel.open_slot(header, now_ms, len(frame)).close_connection()
        return True

    def _apply(self, channel: Channel, step: Step, now_ms: int, size_bytes: int) -> None:
        context = channel.open_slot(step.header, now_ms, size_bytes)
        if isinstance(step, SendResponse):
            _send(context, step.reply)
            authenticator = self._authenticator
            assert authenticator is not None
            if authenticator.established is not None:
                self._complete(channel, authenticator, authenticator.established, now_ms)
        elif isinstance(step, HandleApiVersions):
            self._handle_api_versions(context, step)
        elif isinstance(step, FailAuthentication):
            self._fail(context, step)
        else:
            self._log_failure(channel, step.reason)
            context.close_connection()

    def _complete(
        self,
        channel: Channel,
        authenticator: SaslServerAuthenticator,
        established: AuthenticatedPrincipal,
        now_ms: int,
    ) -> None:
        counts = self._counts
        if self._established is None:
            counts.successful_authentication += 1
            counts.successful_authentication_no_reauth += not authenticator.supports_reauthentication
        else:
            counts.successful_reauthentication += 1
        lifetime_ms = authenticator.lifetime_ms(now_ms)
        self._expires_ms = None
        if lifetime_ms is not None:
            # A lifetime of 0 ends in this millisecond. Any other lifetime includes its last millisecond.
            self._expires_ms = self._sessions.node.host.monotonic_ms() + (lifetime_ms or -1)
        self._authenticator = None
        self._established = established
        channel.principal = established.principal
        channel.max_frame_bytes = self._max_frame_bytes

    def _handle_api_versions(self, context: RequestContext, step: HandleApiVersions) -> None:
        if not step.is_supported:
            complete_unsupported(context)
            return
        response = api_versions(self._sessions.node, context, step.request)
        context.complete(response)
        if not response.error_code and self._authenticator is not None:
            self._authenticator.api_versions_handled()

    def _fail(self, context: RequestContext, step: FailAuthentication) -> None:
        channel = context.channel
        channel.ending = True
        if self._established is None:
            self._counts.failed_authentication += 1
        else:
            self._counts.failed_reauthentication += 1
        if step.reason:
            self._log_failure(channel, step.reason)

        def send() -> None:
            if channel.closed:
                return
            if step.reply is None:
                context.close_connection()
            else:
                context.complete_and_close(step.reply)

        self._sessions.send_failure_later(channel, send)

    def _log_failure(self, channel: Channel, reason: str) -> None:
        channel.logger.info(
            "Failed %sauthentication with %s on listener %s (%s)",
            "" if self._established is None else "re-",
            channel.peer_host,
            channel.listener,
            escape_unprintable(reason[:MAX_REASON_LENGTH])[:MAX_REASON_LENGTH],
        )


def _send(context: RequestContext, reply: Message | bytes) -> None:
    if isinstance(reply, bytes):
        context.complete_encoded([len(reply).to_bytes(4, "big") + reply])
    else:
        context.complete(reply)
