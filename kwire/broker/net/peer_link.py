"""What is asked of one other node for one purpose, over one connection at a time.

    DOWN -> CONNECTING -> NEGOTIATING -> AUTHENTICATING <-> READY
      ^                        |               |              |
      +-------- RESTING <------+---------------+--------------+

The link connects when something is asked, learns which versions the node serves (ApiVersions; KIP-35,
KIP-511), shows who this node is (SASL: `peer_login`; not where nobody wants to know), and then sends
everything in its order. Answers come in that order too, so one that is overdue ends the connection. With a
connection ends what was asked over it: whoever asked is told why, and knows best whether to ask again, and
whom. Then the link rests, longer each time it fails to connect, and what is asked meanwhile waits for the
next attempt.

Where the other node says how long a login holds (KIP-368), the next one comes before that is over, as soon as
there is something to ask and all before it is answered.

It touches no socket: a `Dial` makes the connection, a `PeerTransport`, and the link gets its
`TransportEvents`. The same
link runs over TCP (`broker.net.peer_connection`) and over the simulated network (`kwire.testing.network`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from kwire.broker.net.sasl_client_authenticator import SaslClientAuthenticator
from kwire.broker.security.sasl import AuthenticationFailed
from kwire.host.host import PeerTooOld, PeerUnreachable
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode, NotInVersion, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request

if TYPE_CHECKING:
    from kwire.broker.net.authentication_failures import AuthenticationFailures
    from kwire.broker.security.sasl import SaslClient
    from kwire.host.host import Host, OnResponse, PeerAddress, Timer
    from kwire.wire.schema import Message

RECONNECT_BACKOFF_MS = 50, 1_000
"""How long it rests after a failure, and after many of them."""
JITTER = 0.2
"""How much shorter or longer a rest is at most, as chance has it (KIP-144); and what connecting may take."""
MAX_REQUESTS = 1_000
MAX_IN_FLIGHT_BYTES = 64 << 20
"""How much may be asked for one purpose and not be answered."""
SOFTWARE_NAME = "kwire"
REAUTHENTICATE_AT_SHARE = 0.85, 0.95
"""How much of a session is used before the node shows anew who it is, as chance has it (KIP-368)."""


class PeerTransport(Protocol):
    """A connection to another node, or one that is being made."""

    def send(self, frame: bytes) -> None:
        """Send a frame, its size in front, once it is open. Nothing is heard from inside of this call."""

    def close(self) -> None:
        """Give it up: nothing is heard of it any more."""


class TransportEvents(Protocol):
    """Who made a connection, as the connection sees it."""

    def opened(self) -> None:
        """The other node has accepted."""

    def received(self, frame: memoryview) -> None:
        """A frame has come, without its size. May close the line."""

    def closed(self, reason: str) -> None:
        """The connection is gone, or could not be made: nothing more comes."""


Dial = Callable[["PeerAddress", TransportEvents], PeerTransport]
"""Begin to connect. Nothing is heard from inside of this call."""


class LinkState(Enum):
    DISCONNECTED = "no connection, and nothing to ask"
    CONNECTING = "being connected"
    NEGOTIATING = "connected, and asked for its versions"
    AUTHENTICATING = "being shown who this node is"
    READY = "what is asked is sent at once"
    BACKING_OFF = "the connection is gone: not connected again before some time has passed"


TRANSITIONS: Final[dict[LinkState, frozenset[LinkState]]] = {
    LinkState.DISCONNECTED: frozenset({LinkState.CONNECTING}),
    LinkState.CONNECTING: frozenset({LinkState.NEGOTIATING, LinkState.BACKING_OFF}),
    LinkState.NEGOTIATING: frozenset({LinkState.AUTHENTICATING, LinkState.READY, LinkState.BACKING_OFF}),
    LinkState.AUTHENTICATING: frozenset({LinkState.READY, LinkState.BACKING_OFF}),
    LinkState.READY: frozenset({LinkState.AUTHENTICATING, LinkState.BACKING_OFF, LinkState.DISCONNECTED}),
    LinkState.BACKING_OFF: frozenset({LinkState.CONNECTING, LinkState.DISCONNECTED}),
}


class PeerRequest:
    """A request, and who waits for its answer."""

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
        self, request: Message, deadline_ms: int, on_response: OnResponse, max_version: int | None = None
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


class PeerLink:
    """See the module."""

    def __init__(
        self,
        host: Host,
        dial: Dial,
        to: PeerAddress,
        purpose: str,
        *,
        client_id: str,
        software_version: Callable[[], str],
        max_idle_ms: int,
        setup_timeouts_ms: tuple[int, int],
        sasl_client: Callable[[], SaslClient] | None = None,
        authentication_failures: AuthenticationFailures,
        on_disconnected: Callable[[], None],
    ) -> None:
        """`setup_timeouts_ms` are the least and the most that it may take until something can be asked.

        `sasl_client` makes the side of this node in one exchange; there is none where nobody asks who it is.
        `refusals` are the last of each node, until it lets this one in: what was told of outlives the link.
        `on_down` is called when nothing is left to remember: the link may be forgotten.
        """
        self.to = to
        self.purpose = purpose
        self.state = LinkState.DISCONNECTED
        self._host = host
        self._dial = dial
        self._client_id = client_id
        self._software_version = software_version
        self._max_idle_ms = max_idle_ms
        self._setup_timeouts_ms = setup_timeouts_ms
        self._new_sasl_client = sasl_client
        self._authentication_failures = authentication_failures
        self._authenticator: SaslClientAuthenticator | None = None
        """The exchange that is under way."""
        self._reauthenticate_ms: int | None = None
        """When the node is to show anew who it is."""
        self._on_disconnected = on_disconnected
        self._logger = host.logger("kwire.net")
        self._transport: PeerTransport | None = None
        self.versions: dict[int, tuple[int, int]] = {}
        """What the other node serves, as it has said last."""
        self._unsent: deque[PeerRequest] = deque()
        self._sent: deque[PeerRequest] = deque()
        self._sent_bytes = 0
        self._last_id = 0
        self._failures = self._timeouts = 0
        """How often in a row connecting has failed; how often in a row since it took too long (KIP-601)."""
        self._last_failure = ""
        self._state_ends_ms = 0
        """When the link rests no longer, or has been connecting for too long."""
        self._active_ms = 0
        self._timer: Timer | None = None
        self._check_ms = 0

    def __repr__(self) -> str:
        return f"<{self.purpose} to {self.to}>"

    # --- asking

    def send(self, pending: PeerRequest) -> None:
        """Send it when it may be sent. Its answer is not told inside of this call."""
        waiting = len(self._unsent) + len(self._sent)
        if waiting >= MAX_REQUESTS or self._sent_bytes > MAX_IN_FLIGHT_BYTES:
            self._fail(pending, f"{waiting} requests are not answered yet")
            return
        self._unsent.append(pending)
        self._schedule_check(pending.deadline_ms)
        if self.state is LinkState.READY:
            self._send_all()
        elif self.state is LinkState.DISCONNECTED:
            self._connect()

    def close(self, reason: str) -> None:
        """Give the connection up, and everything that was asked."""
        self._close_transport()
        self._fail_all(reason)
        if self._timer is not None:
            self._timer.cancel()

    def disconnect(self, reason: str) -> None:
        """Lose the connection, if there is one."""
        if self._transport is not None:
            self._connection_lost(reason)

    def _connect(self) -> None:
        self._transition(LinkState.CONNECTING)
        self._start_setup_timeout()
        self._transport = self._dial(self.to, self)

    def _start_setup_timeout(self) -> None:
        self._state_ends_ms = self._host.internode_clock.monotonic_ms() + self._exponential_ms(
            self._setup_timeouts_ms, self._timeouts
        )
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
        """The highest that both sides have, or why there is none."""
        request = pending.request
        theirs = self.versions.get(request.API_KEY)
        if theirs is None:
            return f"{pending.name} is not served"
        low, high = type(request).VERSIONS
        if pending.max_version is not None:
            high = min(high, pending.max_version)
        pending.version = min(high, theirs[1])
        if pending.version >= max(low, theirs[0]):
            return None
        return (
            f"{pending.name} is served in versions {theirs[0]} to {theirs[1]}, and asked in {low} to {high}"
        )

    def _send(self, pending: PeerRequest) -> str | None:
        """Send it, or say why that is impossible."""
        assert self._transport is not None
        pending.correlation_id = self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        request = pending.request
        try:
            frame = encode_request(request, pending.version, pending.correlation_id, self._client_id)
        except NotInVersion as error:
            return f"version {pending.version} of {pending.name} cannot say this: {error}"
        except Exception:
            self._logger.exception("%r: a request cannot be written: %.2000r", self, request)
            return f"this {pending.name} cannot be written"
        pending.size_bytes = len(frame)
        self._sent_bytes += len(frame)
        self._active_ms = self._host.internode_clock.monotonic_ms()
        self._sent.append(pending)
        self._transport.send(frame)
        return None

    # --- what the line tells

    def opened(self) -> None:
        self._transition(LinkState.NEGOTIATING)
        self._request_api_versions(ApiVersionsRequest.VERSIONS[1])

    def _request_api_versions(self, version: int) -> None:
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=self._software_version()
        )
        pending = PeerRequest(request, self._state_ends_ms, lambda answer: None)
        pending.version = version
        assert self._send(pending) is None

    def received(self, frame: memoryview) -> None:
        try:
            if self.state is LinkState.NEGOTIATING:
                self._handle_api_versions(frame)
            elif self.state is LinkState.AUTHENTICATING:
                self._handle_sasl(frame)
            else:
                self._handle_response(frame)
        except WireError as error:
            self._logger.warning("%r is closed: %s", self, error)
            self._connection_lost(f"the protocol was broken: {error}")

    def _decode(self, frame: memoryview) -> tuple[PeerRequest, Message]:
        """An answer, and whose it is: the oldest one's. WireError."""
        if not self._sent:
            raise WireError(f"an answer of {len(frame)} bytes that nothing was asked for")
        pending = self._sent[0]
        response_class = API_VERSIONS[pending.request.API_KEY].response_class
        correlation_id, answer = decode_response(response_class, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise WireError(f"an answer to request {correlation_id} instead of {pending.correlation_id}")
        self._sent.popleft()
        self._sent_bytes -= pending.size_bytes
        self._active_ms = self._host.internode_clock.monotonic_ms()
        if not self._sent:
            self._schedule_check(self._idle_deadline_ms())
        return pending, answer

    def _handle_response(self, frame: memoryview) -> None:
        pending, answer = self._decode(frame)
        self._host.call_soon(partial(pending.on_response, answer))
        if self._unsent:  # which waits for that of before
            self._send_all()

    def _handle_api_versions(self, frame: memoryview) -> None:
        pending, answer = self._decode(frame)
        assert isinstance(answer, ApiVersionsResponse)
        served = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and pending.version > 0:
            # It says what it knows, or else knows version 0 alone. KIP-511.
            known = served.get(ApiKey.API_VERSIONS, (0, 0))[1]
            self._request_api_versions(max(0, min(known, pending.version - 1)))
        elif answer.error_code:
            raise WireError(f"it does not tell its versions: error {answer.error_code}")
        else:
            self.versions = served
            if self._new_sasl_client is None:
                self._ready()
            else:
                self._authenticate()

    def _ready(self) -> None:
        self._failures = self._timeouts = 0
        self._transition(LinkState.READY)
        self._send_all()

    # --- showing who this node is

    def _authenticate(self) -> None:
        """Begin an exchange, the first over this connection or another one."""
        assert self._new_sasl_client is not None
        self._transition(LinkState.AUTHENTICATING)
        self._reauthenticate_ms = None
        self._authenticator = login = SaslClientAuthenticator(self._new_sasl_client())
        self._send_sasl(login.first_request())

    def _send_sasl(self, request: Message) -> None:
        pending = PeerRequest(request, self._state_ends_ms, lambda answer: None)
        reason = self._choose_version(pending) or self._send(pending)
        if reason is not None:
            self._authentication_failed(reason)

    def _handle_sasl(self, frame: memoryview) -> None:
        _, answer = self._decode(frame)
        login = self._authenticator
        assert login is not None
        try:
            request = login.next_request(answer)
        except AuthenticationFailed as error:
            self._authentication_failed(str(error))
            return
        if request is not None:
            self._send_sasl(request)
            return
        self._authenticator = None
        self._authentication_failures.clear(self.to)
        if login.session_lifetime_ms > 0:
            share = self._host.random("peers").uniform(*REAUTHENTICATE_AT_SHARE)
            self._reauthenticate_ms = self._host.internode_clock.monotonic_ms() + int(
                login.session_lifetime_ms * share
            )
        self._ready()

    def _authentication_failed(self, reason: str) -> None:
        """This node is not let in, or the other is not who it should be. Said once, not at each attempt."""
        if self._authentication_failures.should_log(
            self.to, reason, self._host.internode_clock.monotonic_ms()
        ):
            self._logger.error("%r failed authentication due to: %s", self, reason)
        self._connection_lost(f"authentication failed: {reason}")

    # --- its end

    def closed(self, reason: str) -> None:
        self._transport = None
        self._connection_lost(reason)

    def _connection_lost(self, reason: str) -> None:
        """The connection is over, and with it what was asked."""
        self._close_transport()
        self._authenticator = None
        self._failures += 1
        self._last_failure = reason
        self._state_ends_ms = self._host.internode_clock.monotonic_ms() + self._exponential_ms(
            RECONNECT_BACKOFF_MS, self._failures - 1
        )
        self._transition(LinkState.BACKING_OFF)
        self._schedule_check(self._state_ends_ms)
        self._fail_all(reason)

    def _exponential_ms(self, bounds_ms: tuple[int, int], failures: int) -> int:
        """The first after no failure, doubled with each one up to the second, and varied by chance."""
        least_ms, most_ms = bounds_ms
        middle_ms = min(max(least_ms, most_ms), least_ms << min(failures, 20))
        return round(middle_ms * self._host.random("peers").uniform(1 - JITTER, 1 + JITTER))

    def _close_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _fail_all(self, reason: str) -> None:
        asked = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        self._sent_bytes = 0
        for pending in asked:
            self._fail(pending, reason)

    def _fail(self, pending: PeerRequest, reason: str, kind: type[PeerUnreachable] = PeerUnreachable) -> None:
        """Tell whoever asked."""
        error = kind(f"{self.to}: {reason}")
        self._host.call_soon(partial(pending.on_response, error))

    def _transition(self, state: LinkState) -> None:
        assert state in TRANSITIONS[self.state], f"from {self.state.name} to {state.name}"
        self.state = state

    # --- time

    def _schedule_check(self, when_ms: int) -> None:
        """Look at the time at this moment, at the latest. Looking too early costs less than being exact."""
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
                self._connection_lost("no answer in time")
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

    def _next_check_ms(self) -> int:
        """When there is something to do if nothing is heard before."""
        deadlines_ms = [pending.deadline_ms for pending in (*self._unsent, *self._sent)]
        if self.state is not LinkState.READY:
            return min(self._state_ends_ms, *deadlines_ms) if deadlines_ms else self._state_ends_ms
        return min(deadlines_ms) if deadlines_ms else self._idle_deadline_ms()

    def _timeout_reason(self) -> str:
        if self.state is LinkState.CONNECTING:
            return "no connection in time"
        if self.state is LinkState.NEGOTIATING:
            return "no word of its versions in time"
        if self.state in (LinkState.AUTHENTICATING, LinkState.READY):
            return "not authenticated in time"
        return f"nothing is asked again yet: {self._last_failure}"

    def _idle_deadline_ms(self) -> int:
        return self._active_ms + self._max_idle_ms

    def _set_disconnected(self) -> None:
        self._transition(LinkState.DISCONNECTED)
        self._on_disconnected()
