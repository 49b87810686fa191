"""The settings of the authorizer. Kafka passes the unknown keys of the configuration to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.broker.config.definition import ConfigError
from kwire.wire.named_tuple import NamedTuple

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
AUTHORIZER_KEYS: Final = frozenset({SUPER_USERS, ALLOW_EVERYONE})


class AuthorizerSettings(NamedTuple):
    """The settings of the StandardAuthorizer."""

    super_users: frozenset[str]
    """The principals that may do everything, in the form `User:name`."""
    allows_without_acls: bool
    """Whether everyone may use a resource that has no ACL."""


def super_users(settings: Mapping[str, str]) -> frozenset[str]:
    """Return the principals in super.users. Raises ConfigError for one without a type."""
    names = [one.strip() for one in settings.get(SUPER_USERS, "").split(";")]
    for name in names:
        kind, colon, _ = name.partition(":")
        if name and not (kind and colon):
            raise ConfigError(f"{SUPER_USERS}: {name} must have the form User:name")
    return frozenset(filter(None, names))


def authorizer_settings(settings: Mapping[str, str]) -> AuthorizerSettings | None:
    """Return the settings of the authorizer; None without one.

    Raises ConfigError for an invalid principal.
    """
    if settings.get("authorizer.class.name", "").strip() != STANDARD_AUTHORIZER:
        return None
    allows = settings.get(ALLOW_EVERYONE, "").strip().lower() == "true"
    return AuthorizerSettings(super_users(settings), allows)
