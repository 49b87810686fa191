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
    DOWN = "no connection, and nothing to ask"
    CONNECTING = "being connected"
    NEGOTIATING = "connected, and asked for its versions"
    AUTHENTICATING = "being shown who this node is"
    READY = "what is asked is sent at once"
    RESTING = "the connection is gone: not connected again before some time has passed"


TRANSITIONS: Final[dict[LinkState, frozenset[LinkState]]] = {
    LinkState.DOWN: frozenset({LinkState.CONNECTING}),
    LinkState.CONNECTING: frozenset({LinkState.NEGOTIATING, LinkState.RESTING}),
    LinkState.NEGOTIATING: frozenset({LinkState.AUTHENTICATING, LinkState.READY, LinkState.RESTING}),
    LinkState.AUTHENTICATING: frozenset({LinkState.READY, LinkState.RESTING}),
    LinkState.READY: frozenset({LinkState.AUTHENTICATING, LinkState.RESTING, LinkState.DOWN}),
    LinkState.RESTING: frozenset({LinkState.CONNECTING, LinkState.DOWN}),
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
        refusals: AuthenticationFailures,
        on_down: Callable[[], None],
    ) -> None:
        """`setup_timeouts_ms` are the least and the most that it may take until something can be asked.

        `sasl_client` makes the side of this node in one exchange; there is none where nobody asks who it is.
        `refusals` are the last of each node, until it lets this one in: what was told of outlives the link.
        `on_down` is called when nothing is left to remember: the link may be forgotten.
        """
        self.to = to
        self.purpose = purpose
        self.state = LinkState.DOWN
        self._host = host
        self._dial = dial
        self._client_id = client_id
        self._software_version = software_version
        self._max_idle_ms = max_idle_ms
        self._setup_timeouts_ms = setup_timeouts_ms
        self._new_sasl_client = sasl_client
        self._refusals = refusals
        self._login: SaslClientAuthenticator | None = None
        """The exchange that is under way."""
        self._renew_ms: int | None = None
        """When the node is to show anew who it is."""
        self._on_down = on_down
        self._logger = host.logger("kwire.net")
        self._line: PeerTransport | None = None
        self.versions: dict[int, tuple[int, int]] = {}
        """What the other node serves, as it has said last."""
        self._unsent: deque[PeerRequest] = deque()
        self._sent: deque[PeerRequest] = deque()
        self._sent_bytes = 0
        self._last_id = 0
        self._failures = self._timeouts = 0
        """How often in a row connecting has failed; how often in a row since it took too long (KIP-601)."""
        self._last_failure = ""
        self._until_ms = 0
        """When the link rests no longer, or has been connecting for too long."""
        self._active_ms = 0
        self._timer: Timer | None = None
        self._looks_ms = 0

    def __repr__(self) -> str:
        return f"<{self.purpose} to {self.to}>"

    # --- asking

    def ask(self, ask: PeerRequest) -> None:
        """Send it when it may be sent. Its answer is not told inside of this call."""
        waiting = len(self._unsent) + len(self._sent)
        if waiting >= MAX_REQUESTS or self._sent_bytes > MAX_IN_FLIGHT_BYTES:
            self._fail(ask, f"{waiting} requests are not answered yet")
            return
        self._unsent.append(ask)
        self._look_by(ask.deadline_ms)
        if self.state is LinkState.READY:
            self._send_all()
        elif self.state is LinkState.DOWN:
            self._connect()

    def close(self, reason: str) -> None:
        """Give the connection up, and everything that was asked."""
        self._hang_up()
        self._fail_all(reason)
        if self._timer is not None:
            self._timer.cancel()

    def break_off(self, reason: str) -> None:
        """Lose the connection, if there is one."""
        if self._line is not None:
            self._end(reason)

    def _connect(self) -> None:
        self._move(LinkState.CONNECTING)
        self._limit_setup()
        self._line = self._dial(self.to, self)

    def _limit_setup(self) -> None:
        self._until_ms = self._host.internode_clock.monotonic_ms() + self._varied(
            self._setup_timeouts_ms, self._timeouts
        )
        self._look_by(self._until_ms)

    def _send_all(self) -> None:
        if self._renew_ms is not None and self._host.internode_clock.monotonic_ms() >= self._renew_ms:
            if self._unsent and not self._sent:
                self._limit_setup()
                self._log_in()
            return
        while self._unsent:
            ask = self._unsent.popleft()
            reason = self._choose_version(ask)
            if reason is None:
                reason = self._send(ask)
            if reason is not None:
                self._fail(ask, reason, PeerTooOld)

    def _choose_version(self, ask: PeerRequest) -> str | None:
        """The highest that both sides have, or why there is none."""
        request = ask.request
        theirs = self.versions.get(request.API_KEY)
        if theirs is None:
            return f"{ask.name} is not served"
        low, high = type(request).VERSIONS
        if ask.max_version is not None:
            high = min(high, ask.max_version)
        ask.version = min(high, theirs[1])
        if ask.version >= max(low, theirs[0]):
            return None
        return f"{ask.name} is served in versions {theirs[0]} to {theirs[1]}, and asked in {low} to {high}"

    def _send(self, ask: PeerRequest) -> str | None:
        """Send it, or say why that is impossible."""
        assert self._line is not None
        ask.correlation_id = self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        request = ask.request
        try:
            frame = encode_request(request, ask.version, ask.correlation_id, self._client_id)
        except NotInVersion as error:
            return f"version {ask.version} of {ask.name} cannot say this: {error}"
        except Exception:
            self._logger.exception("%r: a request cannot be written: %.2000r", self, request)
            return f"this {ask.name} cannot be written"
        ask.size_bytes = len(frame)
        self._sent_bytes += len(frame)
        self._active_ms = self._host.internode_clock.monotonic_ms()
        self._sent.append(ask)
        self._line.send(frame)
        return None

    # --- what the line tells

    def opened(self) -> None:
        self._move(LinkState.NEGOTIATING)
        self._ask_versions(ApiVersionsRequest.VERSIONS[1])

    def _ask_versions(self, version: int) -> None:
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=self._software_version()
        )
        ask = PeerRequest(request, self._until_ms, lambda answer: None)
        ask.version = version
        assert self._send(ask) is None

    def received(self, frame: memoryview) -> None:
        try:
            if self.state is LinkState.NEGOTIATING:
                self._take_versions(frame)
            elif self.state is LinkState.AUTHENTICATING:
                self._take_challenge(frame)
            else:
                self._take_answer(frame)
        except WireError as error:
            self._logger.warning("%r is closed: %s", self, error)
            self._end(f"the protocol was broken: {error}")

    def _take(self, frame: memoryview) -> tuple[PeerRequest, Message]:
        """An answer, and whose it is: the oldest one's. WireError."""
        if not self._sent:
            raise WireError(f"an answer of {len(frame)} bytes that nothing was asked for")
        ask = self._sent[0]
        response_class = API_VERSIONS[ask.request.API_KEY].response_class
        correlation_id, answer = decode_response(response_class, ask.version, frame)
        if correlation_id != ask.correlation_id:
            raise WireError(f"an answer to request {correlation_id} instead of {ask.correlation_id}")
        self._sent.popleft()
        self._sent_bytes -= ask.size_bytes
        self._active_ms = self._host.internode_clock.monotonic_ms()
        if not self._sent:
            self._look_by(self._idle_ends_ms())
        return ask, answer

    def _take_answer(self, frame: memoryview) -> None:
        ask, answer = self._take(frame)
        self._host.call_soon(partial(ask.on_response, answer))
        if self._unsent:  # which waits for that of before
            self._send_all()

    def _take_versions(self, frame: memoryview) -> None:
        ask, answer = self._take(frame)
        assert isinstance(answer, ApiVersionsResponse)
        served = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and ask.version > 0:
            # It says what it knows, or else knows version 0 alone. KIP-511.
            known = served.get(ApiKey.API_VERSIONS, (0, 0))[1]
            self._ask_versions(max(0, min(known, ask.version - 1)))
        elif answer.error_code:
            raise WireError(f"it does not tell its versions: error {answer.error_code}")
        else:
            self.versions = served
            if self._new_sasl_client is None:
                self._ready()
            else:
                self._log_in()

    def _ready(self) -> None:
        self._failures = self._timeouts = 0
        self._move(LinkState.READY)
        self._send_all()

    # --- showing who this node is

    def _log_in(self) -> None:
        """Begin an exchange, the first over this connection or another one."""
        assert self._new_sasl_client is not None
        self._move(LinkState.AUTHENTICATING)
        self._renew_ms = None
        self._login = login = SaslClientAuthenticator(self._new_sasl_client())
        self._say(login.begin())

    def _say(self, request: Message) -> None:
        ask = PeerRequest(request, self._until_ms, lambda answer: None)
        reason = self._choose_version(ask) or self._send(ask)
        if reason is not None:
            self._refused(reason)

    def _take_challenge(self, frame: memoryview) -> None:
        _, answer = self._take(frame)
        login = self._login
        assert login is not None
        try:
            request = login.take(answer)
        except AuthenticationFailed as error:
            self._refused(str(error))
            return
        if request is not None:
            self._say(request)
            return
        self._login = None
        self._refusals.let_in(self.to)
        if login.session_ms > 0:
            share = self._host.random("peers").uniform(*REAUTHENTICATE_AT_SHARE)
            self._renew_ms = self._host.internode_clock.monotonic_ms() + int(login.session_ms * share)
        self._ready()

    def _refused(self, reason: str) -> None:
        """This node is not let in, or the other is not who it should be. Said once, not at each attempt."""
        if self._refusals.is_news(self.to, reason, self._host.internode_clock.monotonic_ms()):
            self._logger.error("%r failed authentication due to: %s", self, reason)
        self._end(f"authentication failed: {reason}")

    # --- its end

    def closed(self, reason: str) -> None:
        self._line = None
        self._end(reason)

    def _end(self, reason: str) -> None:
        """The connection is over, and with it what was asked."""
        self._hang_up()
        self._login = None
        self._failures += 1
        self._last_failure = reason
        self._until_ms = self._host.internode_clock.monotonic_ms() + self._varied(
            RECONNECT_BACKOFF_MS, self._failures - 1
        )
        self._move(LinkState.RESTING)
        self._look_by(self._until_ms)
        self._fail_all(reason)

    def _varied(self, bounds_ms: tuple[int, int], failures: int) -> int:
        """The first after no failure, doubled with each one up to the second, and varied by chance."""
        least_ms, most_ms = bounds_ms
        middle_ms = min(max(least_ms, most_ms), least_ms << min(failures, 20))
        return round(middle_ms * self._host.random("peers").uniform(1 - JITTER, 1 + JITTER))

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _fail_all(self, reason: str) -> None:
        asked = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        self._sent_bytes = 0
        for ask in asked:
            self._fail(ask, reason)

    def _fail(self, ask: PeerRequest, reason: str, kind: type[PeerUnreachable] = PeerUnreachable) -> None:
        """Tell whoever asked."""
        error = kind(f"{self.to}: {reason}")
        self._host.call_soon(partial(ask.on_response, error))

    def _move(self, state: LinkState) -> None:
        assert state in TRANSITIONS[self.state], f"from {self.state.name} to {state.name}"
        self.state = state

    # --- time

    def _look_by(self, when_ms: int) -> None:
        """Look at the time at this moment, at the latest. Looking too early costs less than being exact."""
        if self._timer is not None:
            if self._looks_ms <= when_ms:
                return
            self._timer.cancel()
        self._looks_ms = when_ms
        self._timer = self._host.internode_clock.schedule(
            max(0, when_ms - self._host.internode_clock.monotonic_ms()), self._look
        )

    def _look(self) -> None:
        self._timer = None
        now_ms = self._host.internode_clock.monotonic_ms()
        for ask in [ask for ask in self._unsent if ask.deadline_ms <= now_ms]:
            self._unsent.remove(ask)
            self._fail(ask, self._why_unsent())
        state = self.state
        if state is LinkState.READY:
            if any(ask.deadline_ms <= now_ms for ask in self._sent):
                self._end("no answer in time")
            elif not self._sent and now_ms >= self._idle_ends_ms():
                self._hang_up()
                self._go_down()
        elif now_ms >= self._until_ms:
            if state is not LinkState.RESTING:
                self._timeouts += 1
                self._end(self._why_unsent())
            elif self._unsent:
                self._connect()
            else:
                self._go_down()
        if self.state is not LinkState.DOWN:
            self._look_by(self._next_ms())

    def _next_ms(self) -> int:
        """When there is something to do if nothing is heard before."""
        deadlines_ms = [ask.deadline_ms for ask in (*self._unsent, *self._sent)]
        if self.state is not LinkState.READY:
            return min(self._until_ms, *deadlines_ms) if deadlines_ms else self._until_ms
        return min(deadlines_ms) if deadlines_ms else self._idle_ends_ms()

    def _why_unsent(self) -> str:
        if self.state is LinkState.CONNECTING:
            return "no connection in time"
        if self.state is LinkState.NEGOTIATING:
            return "no word of its versions in time"
        if self.state in (LinkState.AUTHENTICATING, LinkState.READY):
            return "not authenticated in time"
        return f"nothing is asked again yet: {self._last_failure}"

    def _idle_ends_ms(self) -> int:
        return self._active_ms + self._max_idle_ms

    def _go_down(self) -> None:
        self._move(LinkState.DOWN)
        self._on_down()
