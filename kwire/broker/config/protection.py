"""Settings that ask for a protection that kwire lacks. Kafka restricts clients with them; kwire does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kwire.broker.config.authorizer import STANDARD_AUTHORIZER
from kwire.broker.config.broker_keys import BROKER_KEYS
from kwire.broker.config.definition import ConfigError

PROTECTION_KEYS: Final = frozenset(
    {
        "alter.config.policy.class.name",
        "authorizer.class.name",
        "client.quota.callback.class",
        "create.topic.policy.class.name",
        "principal.builder.class",
    }
)
_LISTENER_PREFIX: Final = re.compile(r"listener\.name\.[^.]+\.")

UNPROTECTED: Final = "kwire does not restrict clients as these settings ask"
"""The start of the error or warning that lists such settings."""


class Unprotected(ConfigError):
    """The configuration asks for a protection that kwire lacks."""


def unprotected_settings(settings: Mapping[str, str]) -> list[str]:
    """Return the names of the settings that ask for such a protection, sorted, except for default values."""
    return sorted(
        name
        for name, value in settings.items()
        if (key := _LISTENER_PREFIX.sub("", name, count=1)) in PROTECTION_KEYS
        and value.strip() not in ("", BROKER_KEYS[key].default, STANDARD_AUTHORIZER)
    )
