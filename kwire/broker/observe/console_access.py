"""The listeners to which the console connects, with and without an authorizer.

Without an authorizer, the console has one set of credentials, or none, for all its users. With an authorizer,
the console logs in as the user of each HTTP request, and has no credentials of its own. It gets the listeners
on which users can log in, and one for requests without credentials, whose principal is User:ANONYMOUS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.config.tls import ListenerCertificates
from kwire.broker.net.listeners import Listener
from kwire.broker.observe.login_listeners import available_listeners, login_listeners
from kwire.broker.observe.ports import RunningNode
from kwire.broker.security.settings import (
    Credentials,
    is_authentication_required,
    peer_credentials,
    requires_certificates,
)
from kwire.wire.mechanisms import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from kwire.wire.named_tuple import NamedTuple

OWN_KEYS: Final = ("ssl.keystore.", "ssl.key.")
TRUST_KEYS: Final = "ssl.truststore."
PROTOCOLS: Final = ("SASL_SSL", "SASL_PLAINTEXT")
"""The protocols of listeners with users, the best one first."""


class ConsoleListener(NamedTuple):
    """A listener, as the console connects to it."""

    servers: str
    """The bootstrap servers."""
    certificates: ListenerCertificates | None = None
    """The certificates of the listener; None without TLS."""
    trust: ListenerCertificates | None = None
    """The certificates whose trust store the console uses for the listener."""
    has_key: bool = False
    """Whether the console needs a certificate to connect to the listener."""

    def tls_settings(self) -> dict[str, str] | None:
        """Return the TLS settings of the console; None without TLS."""
        if self.certificates is None:
            return None
        settings = dict(self.certificates.settings)
        if self.trust is not None and self.trust is not self.certificates:
            settings = {key: value for key, value in settings.items() if not key.startswith(TRUST_KEYS)}
            settings |= {key: v for key, v in self.trust.settings.items() if key.startswith(TRUST_KEYS)}
        if self.has_key:
            return settings
        return {key: value for key, value in settings.items() if not key.startswith(OWN_KEYS)}


class ConsoleLogin(NamedTuple):
    """A way to log in as a user."""

    mechanism: str
    listener: ConsoleListener


class ConsoleAccess(NamedTuple):
    """The listeners for the users of the console if the broker has an authorizer."""

    logins: tuple[ConsoleLogin, ...]
    """The ways to log in, in the order in which the console tries them."""
    anonymous: ConsoleListener | None
    """The listener for requests without credentials; None if they get no pages."""


class ConsoleConnection(NamedTuple):
    """The listener to which the console connects, and how."""

    servers: str
    """The bootstrap servers. With `access`, they are only shown."""
    is_open: bool
    """Whether the listener accepts clients without authentication."""
    certificates: ListenerCertificates | None = None
    """The certificates of the listener; None without TLS."""
    credentials: Credentials | None = None
    """The broker's credentials; None without SASL."""
    access: ConsoleAccess | None = None
    """The listeners for the users of the console; None without an authorizer."""

    def secrets(self) -> str:
        """Return the part of the settings that other users must not see, for the console process."""
        tls = None if self.certificates is None else dict(self.certificates.settings)
        found: dict[str, Any] = {"tls": tls, "credentials": self.credentials, "access": None}
        if self.access is not None:
            found["access"] = {
                "logins": [
                    {"mechanism": one.mechanism, **_as_json(one.listener)} for one in self.access.logins
                ],
                "anonymous": None if self.access.anonymous is None else _as_json(self.access.anonymous),
            }
        return json.dumps(found)


def _as_json(listener: ConsoleListener) -> dict[str, object]:
    return {"servers": listener.servers, "tls": listener.tls_settings()}


def console_connection(running: RunningNode, *, only_local: bool) -> ConsoleConnection:
    """Return how the console connects.

    With `only_local`, only programs on this machine reach the HTTP port.
    """
    if running.node.gate.authorizer is None:
        return _as_broker(running)
    access = ConsoleAccess(
        tuple(_logins(running, only_local=only_local)), _anonymous(running, only_local=only_local)
    )
    shown = [one for one in (access.anonymous, *(login.listener for login in access.logins)) if one]
    return ConsoleConnection(shown[0].servers if shown else "", is_open=True, access=access)


def _as_broker(running: RunningNode) -> ConsoleConnection:
    """Return how the console connects without an authorizer.

    If brokers have no PLAINTEXT listener, the console connects to the inter-broker listener, as other
    brokers do: to the advertised address, which the certificate must have, with the broker's certificate
    and credentials.
    """
    config = running.node.config
    plain = [one for one in _listeners(running) if config.protocol(one.name) == "PLAINTEXT"]
    if plain:
        return ConsoleConnection(",".join(one.address for one in plain), is_open=True)
    name = config.inter_broker_listener_name
    return ConsoleConnection(
        _advertised(running, name),
        is_open=not is_authentication_required(config, name),
        certificates=None if config.tls is None else config.tls.of(name),
        credentials=peer_credentials(config, name),
    )


def _logins(running: RunningNode, *, only_local: bool) -> list[ConsoleLogin]:
    """Return the ways to log in: each SCRAM mechanism once, and each set of PLAIN users once.

    SCRAM users belong to the cluster, so they are the same on each listener.
    """
    config = running.node.config
    bound = {one.name: one for one in _listeners(running)}
    usable = sorted(
        (one for one in login_listeners(running, only_local=only_local) if one[0] in bound),
        # The broker trusts the certificates of the inter-broker listener, so the console does, too.
        key=lambda one: (
            one[0] != config.inter_broker_listener_name,
            PROTOCOLS.index(config.protocol(one[0])),
        ),
    )
    found = []
    for mechanism in (SCRAM_SHA_512, SCRAM_SHA_256):
        name = next((name for name, sasl in usable if mechanism in sasl.mechanisms), None)
        if name is not None:
            found.append(ConsoleLogin(mechanism, _address(running, bound[name])))
    known: list[Mapping[str, str]] = []
    for name, sasl in usable:
        if PLAIN in sasl.mechanisms and sasl.plain_users and sasl.plain_users not in known:
            known.append(sasl.plain_users)
            found.append(ConsoleLogin(PLAIN, _address(running, bound[name])))
    return found


def _anonymous(running: RunningNode, *, only_local: bool) -> ConsoleListener | None:
    """Return a listener whose clients are anonymous; None if there is none."""
    config = running.node.config
    open_ = [
        one
        for one in available_listeners(running, only_local=only_local)
        if one.role is ListenerRole.BROKER and not is_authentication_required(config, one.name)
    ]
    open_.sort(key=lambda one: config.protocol(one.name) != "PLAINTEXT")
    return _address(running, open_[0]) if open_ else None


def _address(running: RunningNode, listener: Listener) -> ConsoleListener:
    config = running.node.config
    certificates = None if config.tls is None else config.tls.of(listener.name)
    if certificates is None:
        return ConsoleListener(listener.address)
    trust = certificates
    if config.tls is not None and not any(key.startswith(TRUST_KEYS) for key in certificates.settings):
        trust = config.tls.of(config.inter_broker_listener_name) or certificates
    return ConsoleListener(
        _advertised(running, listener.name),
        certificates,
        trust,
        has_key=requires_certificates(config, listener.name),
    )


def _listeners(running: RunningNode) -> list[Listener]:
    return [one for one in running.server.listeners if one.role is ListenerRole.BROKER]


def _advertised(running: RunningNode, name: str) -> str:
    """Return the advertised address of a listener, which its certificate must have."""
    node = running.node
    endpoint = node.image.brokers[node.config.node_id].endpoints[name]
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"
