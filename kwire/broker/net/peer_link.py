"""The requests to one other node for one purpose, sent over at most one connection at a time.

    DISCONNECTED -> CONNECTING -> NEGOTIATING -> AUTHENTICATING <-> READY
          ^             |              |               |              |
          +-- BACKING_OFF <------------+---------------+--------------+

The link connects when there is a request. It first requests the other node's API versions (ApiVersions;
KIP-35, KIP-511), authenticates with SASL if the listener requires it, and then sends all requests in order.
Responses arrive in the same order, so the link closes the connection if a response is overdue. When a
connection ends or cannot be opened, all requests of the link fail with the reason, because only the callers
know whether and where to send their requests again. Then the link backs off. Requests that arrive during the
backoff wait for the next connection attempt. `TRANSITIONS` has every transition.

A backoff is a tenth of the time since the link was last READY, or since its first attempt. So the link
notices the start of the other node after at most a tenth of the time that the node was down. With a backoff
that doubles, this could take as long as the node was down. If the other node sends a request, `end_backoff`
shortens the backoff to its minimum.

If the other node returns a session lifetime (KIP-368), the link authenticates again before the first request
that is to be sent after most of that time. All earlier requests must have their responses first.

The link itself does no I/O. A `Dial` function opens a connection (`PeerTransport`), which reports events to
the link (`TransportEvents`). The same link runs over TCP (`broker.net.peer_connection`) and over the
simulated network (`kwire.testing.network`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from kwire.broker.net.sasl_client_authenticator import SaslClientAuthenticator
from kwire.broker.security.sasl import AuthenticationFailed
from kwire.host.host import InternodeTime, PeerTooOld, PeerUnreachable
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode, NotInVersion, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.plural import plural
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request

if TYPE_CHECKING:
    from kwire.broker.net.authentication_failures import AuthenticationFailures
    from kwire.broker.security.sasl import SaslClient
    from kwire.host.host import Host, OnResponse, PeerAddress, Timer
    from kwire.wire.schema import Message

RECONNECT_BACKOFF_MS = 50, 1_000
"""The shortest and the longest backoff after a lost connection."""
BACKOFF_SHARE = 10
"""The time without a connection divided by the backoff."""
JITTER = 0.2
"""The share by which backoffs and setup timeouts are randomly shortened or lengthened (KIP-144)."""
MAX_REQUESTS = 1_000
MAX_IN_FLIGHT_BYTES = 64 << 20
"""The limit for the total size of the requests of one link that wait for a response."""
SOFTWARE_NAME = "kwire"
REAUTHENTICATE_AT_SHARE = 0.85, 0.95
"""The bounds of the random share of the session lifetime after which to authenticate again (KIP-368)."""


FRAME_SIZE_BYTES: Final = 4
"""The size prefix of a frame, in bytes."""


class PeerTransport(Protocol):
    """A connection to another node, which is open or being opened."""

    def send(self, frame: bytes) -> None:
        """Send a frame that includes its size prefix. The transport must be open. This reports no event."""

    def close(self) -> None:
        """Close the connection. No event is reported after that."""


class TransportEvents(Protocol):
    """The event handlers of a connection."""

    def opened(self) -> None:
        """Handle that the connection has been opened."""

    def received(self, frame: memoryview) -> None:
        """Handle a received frame, without its size prefix. The handler may close the transport."""

    def closed(self, reason: str) -> None:
        """Handle that the connection was lost or could not be opened. No further event follows."""


Dial = Callable[["PeerAddress", TransportEvents, str], PeerTransport]
"""Start to open a connection to a node. The call itself reports no event.

The last argument is the name of the node's listener, which determines the transport layer.
"""


class LinkState(Enum):
    """The state of a `PeerLink`."""

    DISCONNECTED = "no connection and no requests"
    CONNECTING = "the connection is being opened"
    NEGOTIATING = "ApiVersions was sent"
    AUTHENTICATING = "SASL authentication is in progress"
    READY = "requests are sent at once"
    BACKING_OFF = "the connection was lost; waiting before the next attempt"


TRANSITIONS: Final[dict[LinkState, frozenset[LinkState]]] = {
    LinkState.DISCONNECTED: frozenset({LinkState.CONNECTING}),
    LinkState.CONNECTING: frozenset({LinkState.NEGOTIATING, LinkState.BACKING_OFF}),
    LinkState.NEGOTIATING: frozenset({LinkState.AUTHENTICATING, LinkState.READY, LinkState.BACKING_OFF}),
    LinkState.AUTHENTICATING: frozenset({LinkState.READY, LinkState.BACKING_OFF}),
    LinkState.READY: frozenset({LinkState.AUTHENTICATING, LinkState.BACKING_OFF, LinkState.DISCONNECTED}),
    LinkState.BACKING_OFF: frozenset({LinkState.CONNECTING, LinkState.DISCONNECTED}),
}


class PeerRequest:
    """A request and the callback for its response, with the arguments of `Peers.send`."""

    __slots__ = (
        "correlation_id",
        "deadline_ms",
        "max_version",
        "on_response",
        "request",
        "size_bytes",
        "version",
    )

    def __init__(
        self,
        request: Message,
        deadline_ms: InternodeTime,
        on_response: OnResponse,
        max_version: int | None = None,
    ) -> None:
        self.request = request
        self.deadline_ms = deadline_ms
        self.on_response = on_response
        self.max_version = max_version
        self.version = self.correlation_id = -1
        self.size_bytes = 0

    @property
    def name(self) -> str:
        return type(self.request).__name__.removesuffix("Request")


class PeerTraffic:
    """The bytes that were exchanged with other nodes for one purpose, with the size prefixes of frames."""

    __slots__ = ("bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = 0


class PeerLink:
    """The requests to one other node for one purpose, and their connection."""

    def __init__(
        self,
        host: Host,
        dial: Dial,
        to: PeerAddress,
        purpose: str,
        *,
        client_id: str,
        software_version: str,
        max_idle_ms: int,
        setup_timeouts_ms: tuple[int, int],
        listener: str,
        sasl_client: Callable[[], SaslClient] | None,
        authentication_failures: AuthenticationFailures,
        on_disconnected: Callable[[], None],
        traffic: PeerTraffic | None = None,
    ) -> None:
        """`setup_timeouts_ms` are the first and the longest timeout until the link is READY.

        `listener` is the name of the other node's listener. `sasl_client` creates the client of one
        authentication; None means that no authentication is needed. All links share
        `authentication_failures`, so that each failure is logged once. `traffic` counts the bytes of the
        link. `on_disconnected` is called when the link has neither a connection nor requests and may be
        dropped.
        """
        self.to = to
        self.purpose = purpose
        self._traffic = PeerTraffic() if traffic is None else traffic
        self.state = LinkState.DISCONNECTED
        self._host = host
        self._dial = dial
        self._client_id = client_id
        self._software_version = software_version
        self._max_idle_ms = max_idle_ms
        self._setup_timeouts_ms = setup_timeouts_ms
        self._listener = listener
        self._new_sasl_client = sasl_client
        self._authentication_failures = authentication_failures
        self._authenticator: SaslClientAuthenticator | None = None
        """The authentication in progress, or None."""
        self._reauthenticate_ms: InternodeTime | None = None
        """The time (monotonic) after which the link must authenticate again; None for no limit."""
        self._on_disconnected = on_disconnected
        self._logger = host.logger("kwire.net")
        self._transport: PeerTransport | None = None
        self.versions: dict[int, tuple[int, int]] = {}
        """The API versions in the other node's last ApiVersions response."""
        self._unsent: deque[PeerRequest] = deque()
        self._sent: deque[PeerRequest] = deque()
        self._sent_bytes = 0
        self._last_id = 0
        self._timeouts = 0
        """The setup timeouts (KIP-601) since the link was last READY."""
        self._down_since_ms: InternodeTime | None = None
        """The time (monotonic) since which the link has not been READY; None while it is, or is not used."""
        self._failed_ms = InternodeTime(0)
        """The time (monotonic) of the last failure."""
        self._last_failure = ""
        self._state_ends_ms = InternodeTime(0)
        """The time (monotonic) at which the current backoff or setup timeout ends."""
        self._active_ms = InternodeTime(0)
        self._timer: Timer | None = None
        self._check_ms = InternodeTime(0)

    def __repr__(self) -> str:
        return f"<{self.purpose} to {self.to}>"

    # --- requests

    def send(self, pending: PeerRequest) -> None:
        """Send a request as soon as possible. Its callback is called later, never within this call.

        The request fails if too many requests are pending (`MAX_REQUESTS`, `MAX_IN_FLIGHT_BYTES`).
        """
        waiting = len(self._unsent) + len(self._sent)
        if waiting >= MAX_REQUESTS or self._sent_bytes > MAX_IN_FLIGHT_BYTES:
            self._fail(pending, f"already pending: {plural(waiting, 'request')}")
            return
        self._unsent.append(pending)
        self._schedule_check(pending.deadline_ms)
        if self.state is LinkState.READY:
            self._send_all()
        elif self.state is LinkState.DISCONNECTED:
            self._connect()

    def close(self, reason: str) -> None:
        """Close the connection and fail all requests."""
        self._close_transport()
        self._fail_all(reason)
        if self._timer is not None:
            self._timer.cancel()

    def disconnect(self, reason: str) -> None:
        """Close the connection if it exists, and fail all requests. The link backs off, then reconnects."""
        if self._transport is not None:
            self._connection_lost(reason)

    def _connect(self) -> None:
        self._transition(LinkState.CONNECTING)
        if self._down_since_ms is None:
            self._down_since_ms = self._host.internode_clock.monotonic_ms()
        self._start_setup_timeout()
        self._transport = self._dial(self.to, self, self._listener)

    def _start_setup_timeout(self) -> None:
        now_ms = self._host.internode_clock.monotonic_ms()
        least_ms, most_ms = self._setup_timeouts_ms
        middle_ms = min(max(least_ms, most_ms), least_ms << min(self._timeouts, 20))
        self._state_ends_ms = now_ms + self._vary(middle_ms)
        self._schedule_check(self._state_ends_ms)

    def _send_all(self) -> None:
        if (
            self._reauthenticate_ms is not None
            and self._host.internode_clock.monotonic_ms() >= self._reauthenticate_ms
        ):
            if self._unsent and not self._sent:
                self._start_setup_timeout()
                self._authenticate()
            return
        while self._unsent:
            pending = self._unsent.popleft()
            reason = self._choose_version(pending)
            if reason is None:
                reason = self._send(pending)
            if reason is not None:
                self._fail(pending, reason, PeerTooOld)

    def _choose_version(self, pending: PeerRequest) -> str | None:
        """Set the request's version to the highest that both nodes support.

        Return None, or the reason if there is no such version.
        """
        request = pending.request
        theirs = self.versions.get(request.API_KEY)
        if theirs is None:
            return f"{pending.name} is not supported"
        low, high = type(request).VERSIONS
        if pending.max_version is not None:
            high = min(high, pending.max_version)
        pending.version = min(high, theirs[1])
        if pending.version >= max(low, theirs[0]):
            return None
        supported = f"{pending.name} is supported in versions {theirs[0]} to {theirs[1]}"
        return f"{supported}, but this node sends {low} to {high}"

    def _send(self, pending: PeerRequest) -> str | None:
        """Send a request. Return why the request cannot be encoded, or None if it was sent."""
        assert self._transport is not None
        pending.correlation_id = self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        request = pending.request
        try:
            frame = encode_request(request, pending.version, pending.correlation_id, self._client_id)
        except NotInVersion as error:
            return f"version {pending.version} of {pending.name} cannot represent the request: {error}"
        except Exception:
            self._logger.exception(
                "Cannot encode %s for %s (%s), the request fails: %.2000r",
                *(pending.name, self.to, self.purpose, request),
            )
            return f"{pending.name} cannot be encoded"
        pending.size_bytes = len(frame)
        self._sent_bytes += len(frame)
        self._active_ms = self._host.internode_clock.monotonic_ms()
        self._sent.append(pending)
        self._traffic.bytes_out += len(frame)
        self._transport.send(frame)
        return None

    # --- events of the transport

    def opened(self) -> None:
        self._transition(LinkState.NEGOTIATING)
        self._request_api_versions(ApiVersionsRequest.VERSIONS[1])

    def _request_api_versions(self, version: int) -> None:
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=self._software_version
        )
        pending = PeerRequest(request, self._state_ends_ms, lambda response: None)
        pending.version = version
        assert self._send(pending) is None

    def received(self, frame: memoryview) -> None:
        self._traffic.bytes_in += FRAME_SIZE_BYTES + len(frame)
        try:
            if self.state is LinkState.NEGOTIATING:
                self._handle_api_versions(frame)
            elif self.state is LinkState.AUTHENTICATING:
                self._handle_sasl(frame)
            else:
                self._handle_response(frame)
        except WireError as error:
            self._logger.warning("Closing connection to %s (%s): %s", self.to, self.purpose, error)
            self._connection_lost(f"protocol error: {error}")

    def _decode(self, frame: memoryview) -> tuple[PeerRequest, Message]:
        """Remove the oldest sent request, and return it with its response.

        Raises WireError if the frame is not the response to that request.
        """
        if not self._sent:
            raise WireError(f"response of {plural(len(frame), 'byte')} without a request")
        pending = self._sent[0]
        response_class = API_VERSIONS[pending.request.API_KEY].response_class
        correlation_id, response = decode_response(response_class, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise WireError(f"response to request {correlation_id} instead of {pending.correlation_id}")
        self._sent.popleft()
        self._sent_bytes -= pending.size_bytes
        self._active_ms = self._host.internode_clock.monotonic_ms()
        if not self._sent:
            self._schedule_check(self._idle_deadline_ms())
        return pending, response

    def _handle_response(self, frame: memoryview) -> None:
        pending, response = self._decode(frame)
        self._host.call_soon(partial(pending.on_response, response))
        if self._unsent:  # before reauthentication, requests wait for the responses to earlier requests
            self._send_all()

    def _handle_api_versions(self, frame: memoryview) -> None:
        pending, response = self._decode(frame)
        assert isinstance(response, ApiVersionsResponse)
        served = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and pending.version > 0:
            # KIP-511: the response has the supported versions. If it has none, the node knows only version 0.
            known = served.get(ApiKey.API_VERSIONS, (0, 0))[1]
            self._request_api_versions(max(0, min(known, pending.version - 1)))
        elif response.error_code:
            raise WireError(f"ApiVersions returned error {response.error_code}")
        else:
            self.versions = served
            if self._new_sasl_client is None:
                self._ready()
            else:
                self._authenticate()

    def _ready(self) -> None:
        self._timeouts, self._down_since_ms = 0, None
        self._transition(LinkState.READY)
        self._send_all()

    # --- authentication

    def _authenticate(self) -> None:
        """Start to authenticate, after connecting or again on the same connection."""
        assert self._new_sasl_client is not None
        self._transition(LinkState.AUTHENTICATING)
        self._reauthenticate_ms = None
        self._authenticator = authenticator = SaslClientAuthenticator(self._new_sasl_client())
        self._send_sasl(authenticator.first_request())

    def _send_sasl(self, request: Message) -> None:
        pending = PeerRequest(request, self._state_ends_ms, lambda response: None)
        reason = self._choose_version(pending) or self._send(pending)
        if reason is not None:
            self._authentication_failed(reason)

    def _handle_sasl(self, frame: memoryview) -> None:
        _, response = self._decode(frame)
        authenticator = self._authenticator
        assert authenticator is not None
        try:
            request = authenticator.next_request(response)
        except AuthenticationFailed as error:
            self._authentication_failed(str(error))
            return
        if request is not None:
            self._send_sasl(request)
            return
        self._authenticator = None
        self._authentication_failures.clear(self.to)
        if authenticator.session_lifetime_ms > 0:
            share = self._host.random("peers").uniform(*REAUTHENTICATE_AT_SHARE)
            self._reauthenticate_ms = self._host.internode_clock.monotonic_ms() + int(
                authenticator.session_lifetime_ms * share
            )
        self._ready()

    def _authentication_failed(self, reason: str) -> None:
        """Close the connection, and log the failure unless `AuthenticationFailures` suppresses it."""
        now_ms = self._host.internode_clock.monotonic_ms()
        if self._authentication_failures.should_log(self.to, reason, now_ms):
            self._logger.error(
                "Connection to %s (%s) failed authentication due to: %s", self.to, self.purpose, reason
            )
        self._connection_lost(f"authentication failed: {reason}")

    # --- connection end

    def closed(self, reason: str) -> None:
        self._transport = None
        self._connection_lost(reason)

    def _connection_lost(self, reason: str) -> None:
        """Fail all requests and back off."""
        self._close_transport()
        self._authenticator = None
        self._last_failure = reason
        self._failed_ms = now_ms = self._host.internode_clock.monotonic_ms()
        if self._down_since_ms is None:
            self._down_since_ms = now_ms
        least_ms, most_ms = RECONNECT_BACKOFF_MS
        middle_ms = min(max(least_ms, (now_ms - self._down_since_ms) // BACKOFF_SHARE), most_ms)
        self._state_ends_ms = now_ms + self._vary(middle_ms)
        self._transition(LinkState.BACKING_OFF)
        self._schedule_check(self._state_ends_ms)
        self._fail_all(reason)

    def end_backoff(self) -> None:
        """Shorten the current backoff to its minimum, because the other node has started to respond."""
        if self.state is LinkState.BACKING_OFF:
            self._down_since_ms = self._failed_ms
            self._state_ends_ms = min(self._state_ends_ms, self._failed_ms + RECONNECT_BACKOFF_MS[0])
            self._schedule_check(self._state_ends_ms)

    def _vary(self, duration_ms: int) -> int:
        return round(duration_ms * self._host.random("peers").uniform(1 - JITTER, 1 + JITTER))

    def _close_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _fail_all(self, reason: str) -> None:
        pending_requests = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        self._sent_bytes = 0
        for pending in pending_requests:
            self._fail(pending, reason)

    def _fail(self, pending: PeerRequest, reason: str, kind: type[PeerUnreachable] = PeerUnreachable) -> None:
        """Pass an error of class `kind` to the request's callback, after the current call."""
        error = kind(f"{self.to}: {reason}")
        self._host.call_soon(partial(pending.on_response, error))

    def _transition(self, state: LinkState) -> None:
        assert state in TRANSITIONS[self.state], f"from {self.state.name} to {state.name}"
        self.state = state

    # --- timeouts

    def _schedule_check(self, when_ms: InternodeTime) -> None:
        """Schedule `_check` for `when_ms` or earlier. An early check costs less than an exact timer."""
        if self._timer is not None:
            if self._check_ms <= when_ms:
                return
            self._timer.cancel()
        self._check_ms = when_ms
        self._timer = self._host.internode_clock.schedule(
            max(0, when_ms - self._host.internode_clock.monotonic_ms()), self._check
        )

    def _check(self) -> None:
        self._timer = None
        now_ms = self._host.internode_clock.monotonic_ms()
        for pending in [pending for pending in self._unsent if pending.deadline_ms <= now_ms]:
            self._unsent.remove(pending)
            self._fail(pending, self._timeout_reason())
        state = self.state
        if state is LinkState.READY:
            if any(pending.deadline_ms <= now_ms for pending in self._sent):
                self._connection_lost("request timed out")
            elif not self._sent and now_ms >= self._idle_deadline_ms():
                self._close_transport()
                self._set_disconnected()
        elif now_ms >= self._state_ends_ms:
            if state is not LinkState.BACKING_OFF:
                self._timeouts += 1
                self._connection_lost(self._timeout_reason())
            elif self._unsent:
                self._connect()
            else:
                self._set_disconnected()
        if self.state is not LinkState.DISCONNECTED:
            self._schedule_check(self._next_check_ms())

    def _next_check_ms(self) -> InternodeTime:
        """Return the time at which the next check is due if no event happens before."""
        deadlines_ms = [pending.deadline_ms for pending in (*self._unsent, *self._sent)]
        if self.state is not LinkState.READY:
            return min(self._state_ends_ms, *deadlines_ms) if deadlines_ms else self._state_ends_ms
        return min(deadlines_ms) if deadlines_ms else self._idle_deadline_ms()

    def _timeout_reason(self) -> str:
        if self.state is LinkState.CONNECTING:
            return "connection setup timed out"
        if self.state is LinkState.NEGOTIATING:
            return "ApiVersions timed out"
        if self.state in (LinkState.AUTHENTICATING, LinkState.READY):
            return "authentication timed out"
        return f"reconnect backoff after failure: {self._last_failure}"

    def _idle_deadline_ms(self) -> InternodeTime:
        return self._active_ms + self._max_idle_ms

    def _set_disconnected(self) -> None:
        self._transition(LinkState.DISCONNECTED)
        self._on_disconnected()
