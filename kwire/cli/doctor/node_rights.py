"""Checks whether the principals with which nodes connect to each other have the rights of a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from kwire.broker.config import BrokerConfig, ConfigError
from kwire.broker.config.authorizer import ALLOW_EVERYONE, SUPER_USERS, AuthorizerSettings
from kwire.broker.config.tls import CLIENT_AUTH, tls_settings
from kwire.broker.net.store_files import RealStoreFiles
from kwire.broker.raft.endpoints import quorum_addresses
from kwire.broker.security.acl import Acl
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from kwire.broker.security.node_tls import load_listener
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.settings import principal_at_peers
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.broker.security.tls_settings import read_setting
from kwire.cli.doctor.finding import Finding, problem, warning

AREA: Final = "ACLs"
_ANY_HOST: Final = ""
"""The address of a node that no ACL names."""


def findings(config: BrokerConfig, settings: AuthorizerSettings, acls: Sequence[Acl]) -> Iterator[Finding]:
    """Check the inter-broker listener and the first controller listener, to which the node connects.

    Other nodes probably connect with the same principal, or with the principal of their own certificates.
    """
    if _is_alone(config):
        return
    authorizer = StandardAuthorizer(
        settings.super_users, allows_without_acls=settings.allows_without_acls
    ).changed(added=acls)
    for listener in dict.fromkeys(config.peer_listeners()):
        principal = _node_principal(config, listener)
        if principal is None or str(principal) in settings.super_users:
            continue
        decision = authorizer.decide(
            principal, _ANY_HOST, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )
        who = f"nodes connect to the listener {listener} as {principal}, which is not in {SUPER_USERS}"
        fix = f"add {principal} to {SUPER_USERS} on all nodes"
        if principal == ANONYMOUS:
            fix = (
                f"authenticate nodes at {listener}, with their principal in {SUPER_USERS}; or add "
                f"{ANONYMOUS} to {SUPER_USERS}, which gives each anonymous client full access"
            )
        if not decision.is_allowed:
            yield problem(AREA, f"{who} and has no CLUSTER_ACTION: their requests are denied", fix)
        elif decision.acl is None:
            yield warning(
                AREA,
                f"{who}: the first ACL for the cluster denies its requests ({ALLOW_EVERYONE} is true)",
                fix,
            )
        elif listener in config.controller_listener_names:
            yield warning(
                AREA,
                f"{who}: ACLs give it CLUSTER_ACTION, but controllers cannot elect a leader before they have "
                f"loaded the ACLs",
                fix,
            )


def _is_alone(config: BrokerConfig) -> bool:
    """Return whether the node is the only known node. It then sends no requests to a controller or broker."""
    servers = quorum_addresses(config).servers
    own = {endpoint.port for endpoint in config.controller_endpoints()}
    return config.is_broker and len(servers) <= 1 and all(server.port in own for server in servers)


def _node_principal(config: BrokerConfig, listener: str) -> Principal | None:
    """Return the principal of nodes at a listener; None if the configuration does not show it."""
    protocol = config.protocol(listener)
    if protocol != "SSL":
        return principal_at_peers(config, listener)
    settings = tls_settings(config.effective.settings, listener, protocol)
    if (read_setting(settings, CLIENT_AUTH) or "none") == "none":
        return ANONYMOUS
    with suppress(ConfigError):  # reported with the other findings about TLS
        name = load_listener(config, RealStoreFiles(), listener, config.effective).own_name
        return ANONYMOUS if name is None else Principal(USER, name)
    return None
