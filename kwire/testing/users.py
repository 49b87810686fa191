"""Users of brokers in a test: how these are set up for them, and how clients say who they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kwire.wire.mechanisms import MECHANISMS, PLAIN, SCRAM
from kwire.wire.named_tuple import NamedTuple

CLIENT_LISTENER: Final = "SASL_PLAINTEXT"
"""The name of the listener that asks who comes."""
NODE_LISTENER: Final = "PLAINTEXT"
CONTROLLER_LISTENER: Final = "CONTROLLER"
"""Those of nodes among themselves."""
TOKEN_SECRET_KEY: Final = "kwire.testing"
LOGIN_MODULES: Final = "org.apache.kafka.common.security"


class ClientConfig(NamedTuple):
    """As whom a client comes, and where: in the words of each of the stock clients."""

    bootstrap_servers: str
    username: str
    password: str
    mechanism: str = PLAIN
    is_token: bool = False
    """Whether these are a delegation token's id and its HMAC in base64."""

    def __repr__(self) -> str:
        return f"ClientConfig({self.bootstrap_servers}, {self.username}, [hidden], {self.mechanism})"

    @property
    def kafka_python(self) -> dict[str, Any]:
        """Keyword arguments of a client of kafka-python, or of aiokafka. ValueError for a token."""
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
        """What a client of confluent-kafka is configured with. ValueError for a token."""
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
        """Properties of clients in Java, of Kafka's tools and of `kwire`'s commands."""
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
            raise ValueError(f"{client} cannot show delegation tokens: take a client in Java, or Kafka(...)")


def check_users(users: Mapping[str, str], overrides: Mapping[str, object]) -> None:
    """ValueError, TypeError: nobody could come, or not by a listener of his own."""
    if "listeners" in overrides:
        raise ValueError("give users or listeners, and not both: with users there is a listener for them")
    if not isinstance(users, Mapping):
        raise TypeError(f"users are names with passwords, as {{'alice': 'alice-secret'}}, and not {users!r}")
    if not users:
        raise ValueError("users are empty: give one at least, with a password, or leave them out")
    for name, password in users.items():
        if not isinstance(name, str) or not isinstance(password, str):
            raise TypeError(f"users are names with passwords, and not {name!r} with {password!r}")
        if not name or not password:
            raise ValueError(f"user {name!r} has to have a name and a password")
        if not name.isascii():
            raise ValueError(f"user {name!r}: SCRAM has names of ASCII alone")
        if "\0" in name + password:
            raise ValueError(f"user {name!r}: neither names nor passwords can have a NUL")


def user_settings(users: Mapping[str, str]) -> dict[str, str]:
    """Kafka's keys for a broker that has a listener for them, beside those of where its listeners are."""
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
