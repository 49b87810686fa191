"""Who asks on a connection, from its first frame to its last, on a listener with SASL.

A `Session` stands before the handlers: until it is known who asks, no request comes by (`authentication`).
Where the session that begins then has an end, its client authenticates again before (KIP-368), over the same
connection and not within a second of the last time; where it does not, its next request is its last. As in
Apache Kafka (Selector, KafkaChannel and SocketServer), who fails is told after a while, so that it takes long
to try many passwords, and nothing is taken from him meanwhile. How long a client may take to begin is bounded
by connections.max.idle.ms alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kwire.broker.api.cluster.api_versions import api_versions, complete_unsupported
from kwire.broker.api.request.context import Channel, RequestContext
from kwire.broker.api.security.authentication import (
    AskVersions,
    Authentication,
    Established,
    Failed,
    Replied,
    Step,
)
from kwire.broker.config.sasl import ListenerSasl
from kwire.broker.security.mechanisms import sasl_server
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import decode_request_header
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BothRoles

MIN_REAUTHENTICATION_MS: Final = 1_000
"""Between one that begins and the next; a handshake that comes sooner is answered that it is not expected."""
LONGEST_REASON: Final = 1_000
"""In the log: a client may name a mechanism of any length."""


class Counts:
    """What has become of the authentications of a listener, under Kafka's names."""

    def __init__(self) -> None:
        self.successful_authentication = 0
        self.successful_authentication_no_reauth = 0
        """Of these, by clients that do not know of sessions that end."""
        self.successful_reauthentication = 0
        self.failed_authentication = 0
        self.failed_reauthentication = 0
        self.expired_connections_killed = 0


class Sessions:
    """Begins the sessions of a node's connections."""

    def __init__(self, node: BothRoles) -> None:
        self.node = node
        self.counts: dict[str, Counts] = {}
        """By listener."""
        self._failing: dict[int, Callable[[], None]] = {}
        """By connection: what tells it that it has failed, when it is time."""

    def begin(self, channel: Channel, security: ListenerSasl) -> None:
        """Have a new connection say who asks before it asks for anything."""
        counts = self.counts.setdefault(channel.listener, Counts())
        channel.authentication = Session(self, channel, security, counts)

    def tell_later(self, channel: Channel, tell: Callable[[], None]) -> None:
        """Call this when a client that has failed may be told."""

        def due() -> None:
            if self._failing.pop(channel.id, None) is not None:
                tell()

        self._failing[channel.id] = tell
        self.node.host.schedule(self.node.config.connection_failed_authentication_delay_ms, due)

    def tell_all(self) -> None:
        """Let nobody wait any longer: the node is about to stop."""
        failing, self._failing = self._failing, {}
        for tell in failing.values():
            tell()


class Session:
    """See the module."""

    __slots__ = (
        "_around",
        "_authentication",
        "_began_again_ms",
        "_counts",
        "_ends_ms",
        "_established",
        "_max_frame_bytes",
        "_security",
    )

    def __init__(self, around: Sessions, channel: Channel, security: ListenerSasl, counts: Counts) -> None:
        self._around = around
        self._counts = counts
        self._security = security
        self._max_frame_bytes = channel.max_frame_bytes
        self._established: Established | None = None
        self._ends_ms: int | None = None  # by the monotonic clock
        self._began_again_ms: int | None = None
        self._authentication: Authentication | None = self._begin(channel)

    @property
    def takes_bare_tokens(self) -> bool:
        """Whether what comes next has none of Kafka's headers."""
        return self._authentication is not None and self._authentication.takes_bare_tokens

    @property
    def may_end(self) -> bool:
        """Whether it has to be asked of each request."""
        return self._ends_ms is not None

    def takes(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        """Whether a frame is not for the handlers; what has to come of it was done. WireError."""
        authentication = self._authentication
        if authentication is None:
            if self._ends_ms is None:
                return False
            if not self._begins_again(frame):
                return self._is_over(channel, frame, now_ms)
            authentication = self._authentication = self._begin(channel)
        self._do(channel, authentication.take(frame, now_ms), now_ms, len(frame))
        return True

    def fails_by_size(self, channel: Channel, reason: str, now_ms: int) -> bool:
        """Whether a frame of a size that cannot be is a failure to authenticate, which is seen to here."""
        if self._authentication is None:
            return False
        self._do(channel, self._authentication.fail(reason), now_ms, 0)
        return True

    def _begin(self, channel: Channel) -> Authentication:
        """A client is asked who it is, for the first time or once more."""
        node, security = self._around.node, self._security
        channel.max_frame_bytes = security.max_receive_bytes
        rng = node.host.random("sasl")
        return Authentication(
            security,
            lambda mechanism: sasl_server(mechanism, security, node.users, rng),
            self._established,
        )

    def _begins_again(self, frame: memoryview) -> bool:
        if int.from_bytes(frame[:2], "big") != ApiKey.SASL_HANDSHAKE:
            return False
        now_ms, began_ms = self._around.node.host.monotonic_ms(), self._began_again_ms
        if began_ms is not None and now_ms - began_ms < MIN_REAUTHENTICATION_MS:
            return False
        self._began_again_ms = now_ms
        return True

    def _is_over(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        assert self._ends_ms is not None
        if self._around.node.host.monotonic_ms() <= self._ends_ms:
            return False
        header, _ = decode_request_header(frame)
        self._counts.expired_connections_killed += 1
        channel.open_slot(header, now_ms, len(frame)).close_connection()
        return True

    def _do(self, channel: Channel, step: Step, now_ms: int, size_bytes: int) -> None:
        context = channel.open_slot(step.header, now_ms, size_bytes)
        if isinstance(step, Replied):
            _answer(context, step.reply)
            authentication = self._authentication
            assert authentication is not None
            if authentication.established is not None:
                self._complete(channel, authentication, authentication.established, now_ms)
        elif isinstance(step, AskVersions):
            self._tell_versions(context, step)
        elif isinstance(step, Failed):
            self._fail(context, step)
        else:
            self._log_failure(channel, step.reason)
            context.close_connection()

    def _complete(
        self, channel: Channel, authentication: Authentication, established: Established, now_ms: int
    ) -> None:
        counts = self._counts
        if self._established is None:
            counts.successful_authentication += 1
            counts.successful_authentication_no_reauth += not authentication.knows_sessions
        else:
            counts.successful_reauthentication += 1
        lifetime_ms = authentication.lifetime_ms(now_ms)
        self._ends_ms = None
        if lifetime_ms is not None:
            # With no time at all it is over within this millisecond, and not with its end, as others are.
            self._ends_ms = self._around.node.host.monotonic_ms() + (lifetime_ms or -1)
        self._authentication = None
        self._established = established
        channel.principal = established.principal
        channel.max_frame_bytes = self._max_frame_bytes

    def _tell_versions(self, context: RequestContext, step: AskVersions) -> None:
        if not step.is_supported:
            complete_unsupported(context)
            return
        response = api_versions(self._around.node, context, step.request)
        context.complete(response)
        if not response.error_code and self._authentication is not None:
            self._authentication.versions_told()

    def _fail(self, context: RequestContext, step: Failed) -> None:
        channel = context.channel
        channel.ending = True
        if self._established is None:
            self._counts.failed_authentication += 1
        else:
            self._counts.failed_reauthentication += 1
        self._log_failure(channel, step.reason)

        def tell() -> None:
            if channel.closed:
                return
            if step.reply is None:
                context.close_connection()
            else:
                context.complete_and_close(step.reply)

        self._around.tell_later(channel, tell)

    def _log_failure(self, channel: Channel, reason: str) -> None:
        channel.logger.info(
            "Failed %sauthentication with %s by %s (%s)",
            "" if self._established is None else "re-",
            channel.peer_host,
            channel.listener,
            _in_one_line(reason[:LONGEST_REASON])[:LONGEST_REASON],
        )


def _in_one_line(text: str) -> str:
    """Strangers have a part in it, and are not to write lines of the log, or to its reader's terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _answer(context: RequestContext, reply: Message | bytes) -> None:
    if isinstance(reply, bytes):
        context.complete_encoded([len(reply).to_bytes(4, "big") + reply])
    else:
        context.complete(reply)
