"""The other nodes of a cluster, each asked over one connection for each purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kwire.broker.config.definition import ConfigError
from kwire.broker.net.authentication_failures import AuthenticationFailures
from kwire.host.host import PeerUnreachable

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig
    from kwire.broker.net.peer_link import Dial, PeerLink
    from kwire.broker.security.sasl import SaslClient
    from kwire.host.host import Host, OnResponse, PeerAddress
    from kwire.wire.schema import Message

MAX_LINKS: Final = 1_000
"""How many connections there may be: a cluster needs a few for each of its nodes."""
NEVER_MS: Final = 1 << 60

PeerAuthentication = Callable[[bool], "Callable[[], SaslClient] | None"]
"""Of a controllers' listener, or else of the brokers': what makes the side of this node in an exchange.

ConfigError where the settings do not tell it: those of a running node may be wrong for a while.
"""


def peer_authentication(config: BrokerConfig, host: Host) -> PeerAuthentication:
    """As whom a node with these properties shows itself to others. ConfigError, once that is asked for."""

    def login(to_controller: bool) -> Callable[[], SaslClient] | None:
        names = config.controller_listener_names if to_controller else [config.inter_broker_listener_name]
        # Imported here: a node that is alone starts without it.
        from kwire.broker.security.settings import peer_credentials

        credentials = peer_credentials(config, names[0])
        if credentials is None:
            return None
        from kwire.broker.security.mechanisms import sasl_client

        return lambda: sasl_client(credentials, host.random("sasl"))

    return login


class PeerLinks:
    """`broker.host.Peers` over the connections that a `Dial` makes."""

    def __init__(
        self,
        host: Host,
        dial: Dial,
        *,
        client_id: str = "kwire",
        software_version: Callable[[], str] = lambda: "unknown",
        max_idle_ms: int = 600_000,
        setup_timeouts_ms: tuple[int, int] = (10_000, 30_000),
        peer_authentication: PeerAuthentication = lambda to_controller: None,
    ) -> None:
        """`client_id` is what other nodes know this one by, with the purpose after it.

        Connections on which nothing was asked for `max_idle_ms` are closed, unless that is negative.
        `setup_timeouts_ms` are how long connecting may take at first, and where it failed again and again.
        """
        self._host = host
        self._logger = host.logger("kwire.net")
        self.dial = dial
        """Who wants to stand between this node and others puts another one here."""
        self._client_id = client_id
        self._software_version = software_version
        self._max_idle_ms = max_idle_ms if max_idle_ms >= 0 else NEVER_MS
        self._setup_timeouts_ms = setup_timeouts_ms
        self._logins = peer_authentication
        self._links: dict[tuple[PeerAddress, str], PeerLink] = {}
        self._authentication_failures = AuthenticationFailures()
        self._credential_errors: dict[bool, str] = {}
        """Why this node did not know as whom to go to controllers, or to brokers, when it last wanted to."""
        self._is_closed = False

    def __len__(self) -> int:
        """How many links there are, connected or not."""
        return len(self._links)

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: int,
        on_response: OnResponse,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        key = (to, purpose)
        link = self._links.get(key)
        refusal = ""
        if self._is_closed:
            refusal = "this node stops"
        elif deadline_ms <= self._host.internode_clock.monotonic_ms():
            refusal = "it is too late"
        elif link is None and len(self._links) >= MAX_LINKS:
            refusal = "there are too many connections"
        if link is None and not refusal:
            try:
                link = self._links[key] = self._new_link(to, purpose, self._logins(to_controller))
                self._credential_errors.pop(to_controller, None)
            except ConfigError as error:
                refusal = str(error)
                if self._credential_errors.get(to_controller) != refusal:  # told once, not at each attempt
                    self._credential_errors[to_controller] = refusal
                    self._logger.error("%s: nothing is asked of such nodes: %s", to, refusal)
        if link is None or refusal:
            unreachable = PeerUnreachable(f"{to}: nothing is asked: {refusal}")
            self._host.call_soon(lambda: on_response(unreachable))
            return
        # Imported here: a node that is alone starts without it.
        from kwire.broker.net.peer_link import PeerRequest

        link.send(PeerRequest(request, deadline_ms, on_response, max_version))

    def _new_link(
        self, to: PeerAddress, purpose: str, sasl_client: Callable[[], SaslClient] | None
    ) -> PeerLink:
        from kwire.broker.net.peer_link import PeerLink

        return PeerLink(
            self._host,
            lambda to, events: self.dial(to, events),
            to,
            purpose,
            client_id=f"{self._client_id}-{purpose}",
            software_version=self._software_version,
            max_idle_ms=self._max_idle_ms,
            setup_timeouts_ms=self._setup_timeouts_ms,
            sasl_client=sasl_client,
            authentication_failures=self._authentication_failures,
            on_disconnected=lambda: self._forget((to, purpose)),
        )

    def api_versions(self, peer: PeerAddress) -> Mapping[int, tuple[int, int]]:
        return next((link.versions for link in self._links.values() if link.to == peer and link.versions), {})

    def _forget(self, key: tuple[PeerAddress, str]) -> None:
        self._links.pop(key, None)

    def disconnect(self, to: Callable[[PeerAddress], bool], reason: str) -> None:
        """Lose the connections to some nodes, as when their machines end: they are made anew by and by."""
        for link in [link for link in self._links.values() if to(link.to)]:
            link.disconnect(reason)

    def close(self) -> None:
        """Close every connection: who waits for an answer is told so, and nothing more is sent."""
        self._is_closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close("this node stops")
