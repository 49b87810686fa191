"""Kafka's settings for TLS, with the names that they have without a listener prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.wire.java_strings import BLANKS

ENGINE_FACTORY: Final = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"
ONLY_DEFAULTS: Final = {
    "ssl.engine.factory.class": ("", ENGINE_FACTORY),
    "ssl.provider": ("",),
    "ssl.secure.random.implementation": ("",),
    "ssl.keymanager.algorithm": ("", "SunX509"),
    "ssl.trustmanager.algorithm": ("", "PKIX"),
}
"""Keys that name Java classes or algorithms, and the values with the behavior that kwire has."""


class TlsConfigError(ValueError):
    """An invalid TLS setting or store. The text is one sentence with the key, the file and the cause."""


def read_setting(settings: Mapping[str, str], name: str) -> str | None:
    """Return a value without blanks at both ends; None if the key is not set."""
    text = settings.get(name)
    return None if text is None else text.strip(BLANKS)


def read_list(settings: Mapping[str, str], name: str) -> list[str]:
    """Return the entries of a list; an empty list if the key is not set."""
    entries = (read_setting(settings, name) or "").split(",")
    return [entry for one in entries if (entry := one.strip())]


def check_defaults(settings: Mapping[str, str]) -> None:
    """Raise TlsConfigError if a key that only makes sense with a JVM differs from Kafka's default."""
    for name, accepted in ONLY_DEFAULTS.items():
        value = read_setting(settings, name) or ""
        if value not in accepted:
            raise TlsConfigError(
                f"{name}={value} is not supported: kwire uses OpenSSL for TLS; remove the key"
            )
