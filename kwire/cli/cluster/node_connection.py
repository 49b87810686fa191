"""Connections to the nodes of a cluster on this machine, which authenticate like the nodes themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from kwire.broker.config import BrokerConfig, ConfigError
from kwire.broker.config.listeners import META_ADDRESS, ListenerEndpoint
from kwire.broker.config.tls import TLS_PROTOCOLS, tls_settings
from kwire.broker.net.listeners import own_host_name
from kwire.broker.net.store_files import RealStoreFiles
from kwire.broker.security.settings import peer_credentials, principal_at_peers
from kwire.cli.cluster.directory import ClusterNode
from kwire.client.connection import Connection
from kwire.client.errors import Disconnected, SecurityMismatch
from kwire.client.security import Security
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    import ssl

CLIENT_ID: Final = "kwire-cluster"
REFUSALS: Final = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_EXPIRED,
    ErrorCode.SASL_AUTHENTICATION_FAILED,
)
"""Errors with which a running node refuses a request: authentication or authorization has failed."""

T = TypeVar("T")


class Target(NamedTuple):
    """A listener of a node, and the time limit of requests to it."""

    node: ClusterNode
    endpoint: ListenerEndpoint
    seconds: float

    def connect(self) -> Connection:
        """Connect with the credentials and certificates of the node.

        Raises ApiError, ConfigError, Disconnected, WireError.
        """
        config, listener = self.node.config, self.endpoint.name
        security = Security(_tls_context(config, listener), peer_credentials(config, listener))
        host = self.endpoint.host
        if security.tls is not None:  # the certificate has the advertised name
            advertised = {one.name: one.host for one in config.advertised_endpoints()}
            host = advertised.get(listener, host)
        if host in ("", META_ADDRESS):
            host = "127.0.0.1" if security.tls is None else own_host_name()
        return Connection(host, self.endpoint.port, CLIENT_ID, self.seconds, security)

    @property
    def principal(self) -> str:
        """The principal of the connection, as the properties of the node show it."""
        config, listener = self.node.config, self.endpoint.name
        if config.protocol(listener) == "SSL":
            return "its own certificate"
        principal = principal_at_peers(config, listener)
        return "this user" if principal is None else str(principal)

    def refused(self, reason: Exception) -> str:
        """Describe a request that the node has refused."""
        return (
            f"node {self.node.node_id} rejects requests of {self.principal} on the listener "
            f"{self.endpoint.name} ({reason}): check the listener and super.users in {self.node.properties}"
        )


def broker_targets(node: ClusterNode, seconds: float) -> list[Target]:
    """Return the listeners of a broker to which this program can connect.

    These are the inter-broker listener, and those without security. A running node may have older properties,
    in which it does not have the inter-broker listener yet.
    """
    config = node.config
    endpoints = config.listener_endpoints()
    own = [one for one in endpoints if one.name == config.inter_broker_listener_name]
    others = [one for one in endpoints if one not in own and config.protocol(one.name) == "PLAINTEXT"]
    return [Target(node, one, seconds) for one in own + others]


def controller_targets(node: ClusterNode, seconds: float) -> list[Target]:
    """Return the controller listeners of a node in the order of controller.listener.names."""
    found = {one.name: one for one in node.config.controller_endpoints()}
    names = node.config.controller_listener_names
    return [Target(node, found[name], seconds) for name in names if name in found]


def query(
    nodes: Iterable[Sequence[Target]], ask: Callable[[Connection, Target], T | None]
) -> tuple[T | None, str | None]:
    """Query one node after the other until `ask` returns a response instead of None.

    Each item of `nodes` has the listeners of one node. The next listener of a node is used if the node cannot
    be reached at the first one, or refuses the query there. Return the response, and without one why a node
    has refused the query, if any node has.
    """
    refusal: str | None = None
    for targets in nodes:
        for target in targets:
            try:
                with target.connect() as connection:
                    response = ask(connection, target)
            except (ApiError, ConfigError, Disconnected, WireError) as error:
                if refusal is None and _is_refusal(error):
                    refusal = target.refused(error)
                continue
            if response is not None:
                return response, None
            break
    return None, refusal


def _is_refusal(error: Exception) -> bool:
    """Return whether a node runs but refuses a query, or its properties have no valid credentials."""
    if isinstance(error, ApiError):
        return error.code in REFUSALS
    return isinstance(error, ConfigError | SecurityMismatch)


def _tls_context(config: BrokerConfig, listener: str) -> ssl.SSLContext | None:
    """Return the context for connections to a listener; None without TLS. Raises ConfigError."""
    protocol = config.protocol(listener)
    if protocol not in TLS_PROTOCOLS:
        return None
    # Imported here to shorten the start of commands for a cluster without TLS.
    from kwire.broker.security.tls_context import client_context
    from kwire.broker.security.tls_settings import TlsConfigError
    from kwire.broker.security.tls_stores import load_key_store, load_trust_store

    settings = tls_settings(config.effective.settings, listener, protocol)
    read = RealStoreFiles().read
    try:
        return client_context(settings, load_key_store(settings, read), load_trust_store(settings, read))
    except TlsConfigError as error:
        raise ConfigError(f"listener {listener}: {error}") from error
