"""Users in tests: broker settings for authentication, and client settings for the common libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kwire.wire.mechanisms import MECHANISMS, PLAIN, SCRAM
from kwire.wire.named_tuple import NamedTuple

CLIENT_LISTENER: Final = "SASL_PLAINTEXT"
"""The name of the listener that authenticates clients; also its security protocol."""
NODE_LISTENER: Final = "PLAINTEXT"
CONTROLLER_LISTENER: Final = "CONTROLLER"
"""The listeners between nodes, which do not authenticate."""
TOKEN_SECRET_KEY: Final = "kwire.testing"
LOGIN_MODULES: Final = "org.apache.kafka.common.security"


class ClientConfig(NamedTuple):
    """A bootstrap address and credentials, as settings of the common client libraries."""

    bootstrap_servers: str
    username: str
    password: str
    mechanism: str = PLAIN
    is_token: bool = False
    """Whether `username` and `password` are a delegation token's id and its HMAC in base64."""

    def __repr__(self) -> str:
        return f"ClientConfig({self.bootstrap_servers}, {self.username}, [hidden], {self.mechanism})"

    @property
    def kafka_python(self) -> dict[str, Any]:
        """Keyword arguments for clients of kafka-python and aiokafka. Raises ValueError for a token."""
        self._check_password("kafka-python and aiokafka")
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": CLIENT_LISTENER,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }

    @property
    def confluent(self) -> dict[str, Any]:
        """Configuration for clients of confluent-kafka. Raises ValueError for a token."""
        self._check_password("librdkafka")
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": CLIENT_LISTENER,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }

    @property
    def java(self) -> dict[str, str]:
        """Properties for Java clients, Kafka's command-line tools and kwire's commands."""
        from kwire.client.security import jaas_config

        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": CLIENT_LISTENER,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": jaas_config(
                self.mechanism, self.username, self.password, is_token=self.is_token
            ),
        }

    def _check_password(self, client: str) -> None:
        if self.is_token:
            raise ValueError(f"{client} do not support delegation tokens: use a Java client or Kafka(...)")


def check_users(users: Mapping[str, str], overrides: Mapping[str, object]) -> None:
    """Raise ValueError or TypeError for invalid names or passwords, or if `overrides` set listeners."""
    if "listeners" in overrides:
        raise ValueError("pass either users or listeners: with users, the listeners are set automatically")
    if not isinstance(users, Mapping):
        raise TypeError(f"users map names to passwords, such as {{'alice': 'alice-secret'}}, not {users!r}")
    if not users:
        raise ValueError("users are empty: pass at least one name and password, or no users")
    for name, password in users.items():
        if not isinstance(name, str) or not isinstance(password, str):
            raise TypeError(f"users map names to passwords, not {name!r} to {password!r}")
        if not name or not password:
            raise ValueError(f"user {name!r} needs a name and a password")
        if not name.isascii():
            raise ValueError(f"user {name!r}: SCRAM supports only ASCII names")
        if "\0" in name + password:
            raise ValueError(f"user {name!r}: names and passwords cannot contain NUL")


def user_settings(users: Mapping[str, str]) -> dict[str, str]:
    """Return the broker configs for authentication, without the addresses of the listeners."""
    from kwire.client.security import quote_jaas

    known = " ".join(
        f"{quote_jaas(f'user_{name}')}={quote_jaas(password)}" for name, password in users.items()
    )
    prefix = f"listener.name.{CLIENT_LISTENER.lower()}"
    scram_module = f"{LOGIN_MODULES}.scram.ScramLoginModule required;"
    return {
        "listener.security.protocol.map": (
            f"{CLIENT_LISTENER}:{CLIENT_LISTENER},{NODE_LISTENER}:{NODE_LISTENER},"
            f"{CONTROLLER_LISTENER}:{NODE_LISTENER}"
        ),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{prefix}.plain.sasl.jaas.config": f"{LOGIN_MODULES}.plain.PlainLoginModule required {known};",
        **{f"{prefix}.{mechanism.lower()}.sasl.jaas.config": scram_module for mechanism in SCRAM},
        "delegation.token.secret.key": TOKEN_SECRET_KEY,
    }
