"""SASL users for clusters whose listeners are SASL_PLAINTEXT.

The listeners of brokers and of controllers have different users. So a node that uses the credentials of the
wrong listener cannot authenticate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from interop.raw_client import RawClient

PLAIN: Final = "PLAIN"
SCRAM: Final = "SCRAM-SHA-256"
BROKERS_LISTENER: Final = "BROKERS"
MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM: "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

REFUSED: Final = {
    PLAIN: "Authentication failed: Invalid username or password",
    SCRAM: "Authentication failed during authentication due to invalid credentials with SASL mechanism "
    + SCRAM,
}
"""By mechanism, the error message for a wrong password."""


class Login(NamedTuple):
    """A user with their password and SASL mechanism."""

    username: str
    password: str
    mechanism: str = PLAIN

    def jaas(self, users: Mapping[str, str] = {}) -> str:
        """Return the JAAS configuration of a client, or of a server that accepts `users` with PLAIN."""
        known = "".join(f' user_{name}="{password}"' for name, password in users.items())
        who = f'username="{self.username}" password="{self.password}"'
        return f"{MODULES[self.mechanism]} required {who}{known};"

    def of_java(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": self.jaas(),
        }

    def of_librdkafka(self) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }

    def of_python(self) -> dict[str, Any]:
        """Return the arguments of kafka-python's and aiokafka's clients."""
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }


class Logins(NamedTuple):
    """The users that the nodes and clients of a cluster authenticate as."""

    between_brokers: Login
    to_controllers: Login
    client: Login

    def properties(self) -> dict[str, str]:
        """Return the SASL properties, which are the same for every node."""
        mechanism, controllers = self.between_brokers.mechanism, self.to_controllers.mechanism
        users_by_listener = {
            BROKERS_LISTENER: [self.between_brokers, self.client],
            "CONTROLLER": [self.to_controllers, self.client],
        }
        found = {
            "inter.broker.listener.name": BROKERS_LISTENER,
            "listener.security.protocol.map": f"{BROKERS_LISTENER}:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM}",
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.mechanism.controller.protocol": controllers,
        }
        for listener, users in users_by_listener.items():
            prefix = f"listener.name.{listener.lower()}"
            own = users[0]
            plain = {user.username: user.password for user in users if user.mechanism == PLAIN}
            shown = own if own.mechanism == PLAIN else Login("nobody", "nothing")
            found[f"{prefix}.plain.sasl.jaas.config"] = shown.jaas(plain)
            scram = own if own.mechanism == SCRAM else Login("nobody", "nothing", SCRAM)
            found[f"{prefix}.scram-sha-256.sasl.jaas.config"] = scram.jaas()
        return found

    def formatting(self) -> tuple[str, ...]:
        """Return the arguments of the storage tool that create the SCRAM users."""
        found: list[str] = []
        for login in dict.fromkeys(self):
            if login.mechanism == SCRAM:
                found += ["--add-scram", f"{SCRAM}=[name={login.username},password={login.password}]"]
        return tuple(found)


def logins(between_brokers: str, to_controllers: str) -> Logins:
    """Return users. The arguments are the mechanisms of two kinds of connections. Clients use PLAIN."""
    return Logins(
        Login("broker", "broker-secret", between_brokers),
        Login("quorum", "quorum-secret", to_controllers),
        Login("alice", "alice-secret"),
    )


def log_in(client: RawClient, login: Login) -> None:
    """Authenticate with PLAIN. Raises AssertionError with the response if this fails."""
    response = client.call("SaslHandshake", 1, Mechanism=PLAIN)
    assert response["ErrorCode"] == 0, response
    said = f"\0{login.username}\0{login.password}".encode()
    response = client.call("SaslAuthenticate", 2, AuthBytes=said)
    assert response["ErrorCode"] == 0, response
