"""Links to the other nodes of a cluster, one per node and purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kwire.broker.config.definition import ConfigError
from kwire.broker.config.listeners import check_protocol
from kwire.broker.net.authentication_failures import AuthenticationFailures
from kwire.host.host import InternodeTime, PeerUnreachable

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig
    from kwire.broker.net.peer_link import Dial, PeerLink, PeerTraffic
    from kwire.broker.security.sasl import SaslClient
    from kwire.host.host import Host, OnResponse, PeerAddress
    from kwire.wire.schema import Message

MAX_LINKS: Final = 1_000
"""The limit for links. A cluster needs only a few links per node."""
NEVER_MS: Final = 1 << 60

PeerSecurity = Callable[[bool], "tuple[str, Callable[[], SaslClient] | None]"]
"""Return the name of the controller listener (True) or inter-broker listener (False), and its SASL factory.

The factory is None if the listener needs no authentication. Raises ConfigError if the settings are wrong, as
they can be while dynamic settings are being changed.
"""


def peer_security(config: BrokerConfig, host: Host) -> PeerSecurity:
    """Return a `PeerSecurity` that reads the configuration at each call."""

    def read(to_controller: bool) -> tuple[str, Callable[[], SaslClient] | None]:
        names = config.controller_listener_names if to_controller else [config.inter_broker_listener_name]
        check_protocol(names[0], {names[0]: config.protocol(names[0])})
        # Imported here to shorten the start of a single node, which has no other nodes to connect to.
        from kwire.broker.security.settings import peer_credentials

        credentials = peer_credentials(config, names[0])
        if credentials is None:
            return names[0], None
        from kwire.broker.security.mechanisms import sasl_client

        return names[0], lambda: sasl_client(credentials, host.random("sasl"))

    return read


class PeerLinks:
    """The implementation of `Peers`: one `PeerLink` per node and purpose."""

    def __init__(
        self,
        host: Host,
        dial: Dial,
        *,
        client_id: str = "kwire",
        software_version: str = "unknown",
        max_idle_ms: int = 600_000,
        setup_timeouts_ms: tuple[int, int] = (10_000, 30_000),
        peer_security: PeerSecurity = lambda to_controller: ("", None),
    ) -> None:
        """`dial` opens a connection. The client id of a link is `client_id` plus the purpose of the link.

        A connection is closed after `max_idle_ms` without a request; a negative value means never.
        `setup_timeouts_ms` are the first and the longest timeout for setting up a connection.
        """
        self._host = host
        self._logger = host.logger("kwire.net")
        self.dial = dial
        """The function that opens connections. Tests replace it to intercept connections."""
        self._client_id = client_id
        self._software_version = software_version
        self._max_idle_ms = max_idle_ms if max_idle_ms >= 0 else NEVER_MS
        self._setup_timeouts_ms = setup_timeouts_ms
        self._peer_security = peer_security
        self._links: dict[tuple[PeerAddress, str], PeerLink] = {}
        self.traffic: dict[str, PeerTraffic] = {}
        """The exchanged bytes by the purpose of the links."""
        self._authentication_failures = AuthenticationFailures()
        self._credential_errors: dict[bool, str] = {}
        """The last logged configuration error for connections to controllers (True) and brokers (False)."""
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of links, connected or not."""
        return len(self._links)

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: InternodeTime,
        on_response: OnResponse,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        key = (to, purpose)
        link = self._links.get(key)
        refusal = ""
        if self._is_closed:
            refusal = "this node is stopping"
        elif deadline_ms <= self._host.internode_clock.monotonic_ms():
            refusal = "its deadline has passed"
        elif link is None and len(self._links) >= MAX_LINKS:
            refusal = "too many connections"
        if link is None and not refusal:
            try:
                link = self._links[key] = self._new_link(to, purpose, *self._peer_security(to_controller))
                self._credential_errors.pop(to_controller, None)
            except ConfigError as error:
                refusal = str(error)
                if self._credential_errors.get(to_controller) != refusal:  # the same error is logged once
                    self._credential_errors[to_controller] = refusal
                    nodes = "controllers" if to_controller else "brokers"
                    self._logger.error(
                        "Cannot connect to %s such as %s: the configuration of this node is invalid: %s",
                        *(nodes, to, refusal),
                    )
        if link is None or refusal:
            unreachable = PeerUnreachable(f"{to}: request not sent: {refusal}")
            self._host.call_soon(lambda: on_response(unreachable))
            return
        # Imported here to shorten the start of a single node, which has no other nodes to connect to.
        from kwire.broker.net.peer_link import PeerRequest

        link.send(PeerRequest(request, deadline_ms, on_response, max_version))

    def _new_link(
        self, to: PeerAddress, purpose: str, listener: str, sasl_client: Callable[[], SaslClient] | None
    ) -> PeerLink:
        from kwire.broker.net.peer_link import PeerLink, PeerTraffic

        return PeerLink(
            self._host,
            lambda *arguments: self.dial(*arguments),
            to,
            purpose,
            client_id=f"{self._client_id}-{purpose}",
            software_version=self._software_version,
            max_idle_ms=self._max_idle_ms,
            setup_timeouts_ms=self._setup_timeouts_ms,
            listener=listener,
            sasl_client=sasl_client,
            authentication_failures=self._authentication_failures,
            on_disconnected=lambda: self._forget((to, purpose)),
            traffic=self.traffic.setdefault(purpose, PeerTraffic()),
        )

    def end_backoff(self, to: PeerAddress) -> None:
        for (address, _), link in self._links.items():
            if address == to:
                link.end_backoff()

    def api_versions(self, peer: PeerAddress) -> Mapping[int, tuple[int, int]]:
        return next((link.versions for link in self._links.values() if link.to == peer and link.versions), {})

    def _forget(self, key: tuple[PeerAddress, str]) -> None:
        self._links.pop(key, None)

    def disconnect(self, to: Callable[[PeerAddress], bool], reason: str) -> None:
        """Close the connections to each node for which `to` returns True, as `PeerLink.disconnect` does."""
        for link in [link for link in self._links.values() if to(link.to)]:
            link.disconnect(reason)

    def close(self) -> None:
        """Close every connection and fail its requests. Requests sent after that fail at once."""
        self._is_closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close("this node is stopping")
