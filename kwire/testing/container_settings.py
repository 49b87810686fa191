"""The environment variables of Kafka's container images as configs, users and TLS settings of a `Broker`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, get_args

from kwire.testing.tls import ClientAuth, Tls, parse_tls
from kwire.wire.mechanisms import PLAIN
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from kwire.testing.acl import Acl

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
IGNORED: Final = {
    "advertised.listeners",
    "control.plane.listener.name",
    "controller.listener.names",
    "controller.quorum.voters",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "log.dirs",
    "metadata.log.dir",
    "process.roles",
    "sasl.mechanism.inter.broker.protocol",
    "security.inter.broker.protocol",
    "zookeeper.connect",
}
"""Configs of listeners, directories and roles in a container. They have no effect on the broker."""
CERTIFICATE: Final = re.compile(r"(?:.+\.)?ssl\.(?:keystore|truststore|key)\..+")
"""Matches the configs of certificates, also those of Confluent's images."""
AUTHORIZER: Final = "authorizer.class.name"
AUTHORIZERS: Final = {
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
}
MECHANISMS_KEY: Final = "sasl.enabled.mechanisms"


class Security(NamedTuple):
    """Arguments of `Broker`."""

    users: Mapping[str, str] | None
    tls: Tls | bool
    acls: Sequence[Acl] | None


def broker_settings(env: Mapping[str, str], *, has_users: bool) -> dict[str, str]:
    """Return the broker configs that have an effect on a `Broker`."""
    from kwire.broker.config.authorizer import AUTHORIZER_KEYS
    from kwire.broker.config.broker_keys import BROKER_KEYS

    names = (BROKER_KEYS.keys() | AUTHORIZER_KEYS) - IGNORED
    settings = {name: value for name, value in _configs(env).items() if name in names}
    if settings.get(AUTHORIZER) in AUTHORIZERS and has_users:
        del settings[AUTHORIZER]  # the argument `acls` of `Broker` sets it
    if PLAIN not in _split(settings.get(MECHANISMS_KEY, "")):
        settings.pop(MECHANISMS_KEY, None)  # the methods of `Broker` authenticate with PLAIN
    return settings


def security_of(
    env: Mapping[str, str],
    port: int,
    listener: str,
    protocol: str,
    *,
    users: Mapping[str, str] | None,
    tls: bool | Tls,
    acls: Sequence[Acl] | None,
) -> Security:
    """Return the users, TLS settings and ACLs of a broker, from its arguments and environment variables.

    `listener` and `protocol` are those of `port`, unless the variables set others. Raises ValueError for an
    unknown protocol, SASL without users or an invalid JAAS configuration, and NotImplementedError for
    certificates.
    """
    configs = _configs(env)
    for address in _split(configs.get("listeners", "")):
        if address.endswith(f":{port}"):
            listener = address.partition("://")[0]
            if listener.upper() in PROTOCOLS:
                protocol = listener  # as in the default of listener.security.protocol.map
    for entry in _split(configs.get("listener.security.protocol.map", "")):
        name, _, mapped = entry.partition(":")
        if name.upper() == listener.upper():
            protocol = mapped
    if protocol.upper() not in PROTOCOLS:
        raise ValueError(f"security_protocol={protocol!r}: use one of {', '.join(PROTOCOLS)}")
    if protocol.upper().startswith("SASL_") and users is None:
        users = _users(configs, listener, protocol)
    if protocol.upper().endswith("SSL") and not parse_tls(tls):
        tls = Tls(client_auth=_client_auth(configs, listener))
    if tls:
        for name in filter(CERTIFICATE.fullmatch, configs):
            raise NotImplementedError(
                f"{name}: the broker makes its own certificates: remove this setting, and pass "
                "`broker.client_config()` to the clients"
            )
    if configs.get(AUTHORIZER) in AUTHORIZERS and users is not None and acls is None:
        acls = []
    return Security(users, tls, acls)


def _users(configs: Mapping[str, str], listener: str, protocol: str) -> dict[str, str]:
    """Return the users of PLAIN in the listener's JAAS configuration."""
    from kwire.broker.config.jaas import parse_jaas

    key = f"listener.name.{listener.lower()}.plain.sasl.jaas.config"
    users = parse_jaas(configs[key]).users if key in configs else {}
    if not users:
        variable = f"KAFKA_LISTENER_NAME_{listener.upper().replace('_', '__')}_PLAIN_SASL_JAAS_CONFIG"
        raise ValueError(
            f"security protocol {protocol} needs users: pass users={{'alice': 'alice-secret'}}, or set "
            f'{variable} with user_alice="alice-secret"'
        )
    return users


def _client_auth(configs: Mapping[str, str], listener: str) -> ClientAuth:
    key = "ssl.client.auth"
    given = configs.get(f"listener.name.{listener.lower()}.{key}", configs.get(key, "none"))
    choices: tuple[ClientAuth, ...] = get_args(ClientAuth)
    for choice in choices:
        if given == choice:
            return choice
    raise ValueError(f"{key}={given!r}: use one of {', '.join(choices)}")


def _configs(env: Mapping[str, str]) -> dict[str, str]:
    from kwire.broker.config.properties import environment_settings

    return {name: value for name, (_, value) in environment_settings(env).items()}


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
