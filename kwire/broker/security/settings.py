"""SASL settings of listeners, and the credentials of this node at other nodes. KIP-43, KIP-85.

As in Kafka, the SASL settings of a listener do not change after the listener was created (KIP-226).
"""

from __future__ import annotations

from contextlib import suppress

from kwire.broker.config.authorizer import super_users
from kwire.broker.config.broker import BrokerConfig
from kwire.broker.config.definition import ConfigError
from kwire.broker.config.sasl import SASL_PROTOCOLS, ListenerSasl
from kwire.broker.config.tls import CLIENT_AUTH, tls_settings
from kwire.broker.security.authorizer import NODE_RIGHTS
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.tls_settings import read_setting
from kwire.wire.mechanisms import PLAIN
from kwire.wire.named_tuple import NamedTuple


class Credentials(NamedTuple):
    """The credentials with which a client authenticates."""

    mechanism: str
    username: str
    password: str
    is_token: bool = False
    """Whether user name and password are the id and the HMAC of a delegation token. KIP-48."""

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism}, {self.username}, [hidden])"


def listener_security(config: BrokerConfig, listener: str) -> ListenerSasl | None:
    """Return the SASL settings of a listener; None if its security protocol has no authentication.

    Raises ConfigError if the listener was never created, and KeyError if there is no such listener name.
    """
    sasl = config.listener_sasl(listener)
    if sasl is None and config.protocol(listener) in SASL_PROTOCOLS:
        raise ConfigError(f"listener {listener} was never created, so its SASL settings are unknown")
    return sasl


def requires_authentication(config: BrokerConfig) -> bool:
    """Return whether all broker listeners require authentication."""
    endpoints = config.listener_endpoints()
    return bool(endpoints) and all(is_authentication_required(config, one.name) for one in endpoints)


def is_authentication_required(config: BrokerConfig, listener: str) -> bool:
    """Return whether a listener requires authentication, with SASL or with a client certificate."""
    protocol = config.protocol(listener)
    return protocol in SASL_PROTOCOLS or (protocol == "SSL" and requires_certificates(config, listener))


def requires_certificates(config: BrokerConfig, listener: str) -> bool:
    """Return whether each client of a TLS listener needs a certificate."""
    tls = None if config.tls is None else config.tls.of(listener)
    # The keys of a running listener do not change.
    settings = (
        tls_settings(config.effective.settings, listener, config.protocol(listener))
        if tls is None
        else tls.settings
    )
    return read_setting(settings, CLIENT_AUTH) == "required"


def scram_mechanisms(config: BrokerConfig) -> list[str]:
    """Return the SCRAM mechanisms that any listener has enabled. All of them accept delegation tokens."""
    endpoints = config.running_listeners() + config.controller_endpoints()
    listeners = [sasl for one in endpoints if (sasl := config.listener_sasl(one.name)) is not None]
    found = [name for sasl in listeners for name in sasl.mechanisms if name != PLAIN]
    return list(dict.fromkeys(found))


def password_listeners(config: BrokerConfig) -> list[tuple[str, ListenerSasl]]:
    """Return the SASL listeners on which clients of this node log in with a user name and a password.

    These are the broker listeners or, on a node that is only a controller, the controller listeners.
    """
    endpoints = config.running_listeners() if config.is_broker else config.controller_endpoints()
    found = [(one.name, config.listener_sasl(one.name)) for one in endpoints]
    return [(name, sasl) for name, sasl in found if sasl is not None]


def peer_credentials(config: BrokerConfig, listener: str) -> Credentials | None:
    """Return the credentials for connections to other nodes; None if `listener` has no authentication.

    `listener` is inter.broker.listener.name or one of controller.listener.names. Raises ConfigError if the
    settings have no valid credentials for the listener.
    """
    login = config.peer_login(listener)
    if login is None:
        return None
    mechanism, context = login
    return Credentials(mechanism, context.username, context.password, context.is_token)


def own_principal(config: BrokerConfig) -> Principal:
    """Return the principal as which this node authenticates with controllers.

    The result is ANONYMOUS if it cannot, or if it uses a delegation token, whose owner only controllers know.
    """
    return principal_at_peers(config, config.controller_listener_names[0]) or ANONYMOUS


def principal_at_peers(config: BrokerConfig, listener: str) -> Principal | None:
    """Return the principal with which this node connects to `listener` of other nodes.

    `listener` is inter.broker.listener.name or one of controller.listener.names. The result is None if the
    login is missing, or is a delegation token, whose owner only controllers know.
    """
    protocol = config.protocol(listener)
    if protocol in SASL_PROTOCOLS:
        with suppress(ConfigError):
            credentials = peer_credentials(config, listener)
            if credentials is not None and credentials.username and not credentials.is_token:
                return Principal(USER, credentials.username)
        return None
    name = _own_certificate_name(config, listener) if protocol == "SSL" else None
    return ANONYMOUS if name is None else Principal(USER, name)


def missing_node_rights(config: BrokerConfig) -> str:
    """Return what to do if controllers deny the requests of this node."""
    listener = next(iter(config.controller_listener_names), "")
    principal = principal_at_peers(config, listener) if listener else None
    who = f"the principal of this node (listener {listener})"
    if principal is not None:
        who = f"{principal}, as which this node connects to the listener {listener},"
    return f"{who} {NODE_RIGHTS}"


def authenticates_clients(config: BrokerConfig, listener: str) -> bool:
    """Return whether clients of a listener of this node can have another principal than ANONYMOUS."""
    protocol = config.protocol(listener)
    tls = None if config.tls is None else config.tls.of(listener)
    return protocol in SASL_PROTOCOLS or (protocol == "SSL" and (tls is None or tls.asks_for_certificates))


def is_node(config: BrokerConfig, principal: Principal) -> bool:
    """Return whether nodes of the cluster authenticate as this principal.

    These are the user names with which this node logs in to other nodes, the principal of its certificate on
    listeners without SASL, and the principals in super.users.
    """
    nodes = set(super_users(config.static_settings))
    for listener in (*config.controller_listener_names, config.inter_broker_listener_name):
        with suppress(ConfigError):  # a listener to which this node never connects needs no login
            credentials = peer_credentials(config, listener)
            if credentials is not None and credentials.username and not credentials.is_token:
                nodes.add(f"{USER}:{credentials.username}")
        if (
            config.protocol(listener) == "SSL"
            and (name := _own_certificate_name(config, listener)) is not None
        ):
            nodes.add(f"{USER}:{name}")
    return str(principal) in nodes


def _own_certificate_name(config: BrokerConfig, listener: str) -> str | None:
    """Return the name of this node's principal at other nodes; None if it has no certificate."""
    tls = None if config.tls is None else config.tls.of(listener)
    return None if tls is None else tls.own_name
