"""Users in tests: broker settings for authentication, and client settings for the common libraries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from kwire.testing.acl import USER_PREFIX, Acl
from kwire.testing.lookup_table import describe_choice
from kwire.testing.tls import OWN_NAME, ClientTls, Tls
from kwire.wire.mechanisms import MECHANISMS, PLAIN, SCRAM
from kwire.wire.named_tuple import NamedTuple

V = TypeVar("V")

CLIENT_LISTENER: Final = "SASL_PLAINTEXT"
"""The name of the listener that authenticates clients without TLS; also its security protocol."""
NODE_LISTENER: Final = "PLAINTEXT"
CONTROLLER_LISTENER: Final = "CONTROLLER"
"""The listeners between nodes, which do not authenticate."""
SUPER_USER: Final = OWN_NAME
"""The user, or the common name of the certificate, that may do everything on a broker with ACLs."""
EVERYONE: Final = "*"
"""The user of an ACL for all users."""
TOKEN_SECRET_KEY: Final = "kwire.testing"
LOGIN_MODULES: Final = "org.apache.kafka.common.security"


class ClientConfig(NamedTuple):
    """A bootstrap address, credentials and certificates, as settings of the common client libraries."""

    bootstrap_servers: str
    username: str = ""
    """The name of the user; empty if the client does not authenticate with SASL."""
    password: str = ""
    mechanism: str = PLAIN
    is_token: bool = False
    """Whether `username` and `password` are a delegation token's id and its HMAC in base64."""
    tls: ClientTls | None = None
    """The certificates; None without TLS."""

    def __repr__(self) -> str:
        user = f", {self.username}, [hidden], {self.mechanism}" if self.username else ""
        return f"ClientConfig({self.bootstrap_servers}{user}{'' if self.tls is None else f', {self.tls}'})"

    @property
    def security_protocol(self) -> str:
        """The value of `security.protocol`."""
        return client_protocol(has_users=bool(self.username), has_tls=self.tls is not None)

    @property
    def kafka_python(self) -> dict[str, Any]:
        """Keyword arguments for clients of kafka-python and aiokafka. Raises ValueError for a token."""
        self._check_password("kafka-python and aiokafka")
        settings: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
        }
        if self.username:
            settings["sasl_mechanism"] = self.mechanism
            settings["sasl_plain_username"] = self.username
            settings["sasl_plain_password"] = self.password
        if self.tls is not None:
            from kwire.client.tls import create_context

            settings["ssl_context"] = create_context(self.tls.java())
        return settings

    @property
    def confluent(self) -> dict[str, Any]:
        """Configuration for clients of confluent-kafka. Raises ValueError for a token."""
        self._check_password("librdkafka")
        settings = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
        }
        if self.username:
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.username"] = self.username
            settings["sasl.password"] = self.password
        return settings if self.tls is None else {**settings, **self.tls.confluent()}

    @property
    def java(self) -> dict[str, str]:
        """Properties for Java clients, Kafka's command-line tools and kwire's commands."""
        from kwire.client.security import jaas_config

        settings = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
        }
        if self.username:
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.jaas.config"] = jaas_config(
                self.mechanism, self.username, self.password, is_token=self.is_token
            )
        return settings if self.tls is None else {**settings, **self.tls.java()}

    @property
    def java_properties(self) -> str:
        """The text of a properties file with the settings of `java`."""
        from kwire.wire.java_properties import escaped

        return "".join(f"{key}={escaped(value)}\n" for key, value in self.java.items())

    def _check_password(self, client: str) -> None:
        if self.is_token:
            raise ValueError(f"{client} do not support delegation tokens: use a Java client or Kafka(...)")


def check_listeners(overrides: Mapping[str, object], *, has_users: bool, has_tls: bool) -> None:
    """Raise ValueError if `overrides` set listeners, although users or TLS determine them."""
    if "listeners" in overrides and (has_users or has_tls):
        name = "users" if has_users else "tls"
        raise ValueError(f"pass either {name} or listeners: with {name}, the listeners are set automatically")


def check_users(users: Mapping[str, str]) -> None:
    """Raise ValueError or TypeError for invalid names or passwords."""
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


def check_acl_clients(users: Mapping[str, str] | None, tls: Tls | None) -> None:
    """Raise ValueError if clients can connect without a name, which ACLs need."""
    if users is None and (tls is None or tls.client_auth != "required"):
        raise ValueError(
            "acls need clients with names: pass users={'alice': 'alice-secret'} or "
            "tls=Tls(client_auth='required'), too"
        )


def check_acl_users(acls: Iterable[Acl], users: Collection[str]) -> None:
    """Raise ValueError if an ACL is for a user that does not exist, so that a typo does not go unnoticed."""
    known = [*users, EVERYONE]
    for acl in acls:
        name = user_of(acl)
        if name not in (*known, SUPER_USER):
            raise ValueError(f"{acl!r}: there is no user {name!r}: {describe_choice(known)}")


def user_of(acl: Acl) -> str:
    """Return the name of the user to whom an ACL applies."""
    return acl.principal.removeprefix(USER_PREFIX)


def with_authorizer(overrides: Mapping[str, V]) -> dict[str, V | str]:
    """Return the broker configs with an authorizer, and with super users besides those of `overrides`.

    These are the fixture itself, and the nodes of a cluster, which do not authenticate. Clients cannot
    connect to the listener of the nodes by mistake: `bootstrap_servers` does not have its address.
    """
    from kwire.broker.config.authorizer import STANDARD_AUTHORIZER, SUPER_USERS

    names = [f"User:{SUPER_USER}", f"User:CN={SUPER_USER}", "User:ANONYMOUS"]
    names += filter(None, [str(overrides.get(SUPER_USERS, ""))])
    return {"authorizer.class.name": STANDARD_AUTHORIZER, **overrides, SUPER_USERS: ";".join(names)}


def client_protocol(*, has_users: bool, has_tls: bool) -> str:
    """Return the security protocol of clients, which is also the name of their listener."""
    return ("SASL_" if has_users else "") + ("SSL" if has_tls else "PLAINTEXT")


def listener_settings(users: Mapping[str, str], tls_settings: Mapping[str, str]) -> dict[str, str]:
    """Return the broker configs of the listener for clients, without addresses.

    The result is empty without users and TLS: clients then use the listener between nodes.
    """
    if not users and not tls_settings:
        return {}
    protocol = client_protocol(has_users=bool(users), has_tls=bool(tls_settings))
    return {
        "listener.security.protocol.map": (
            f"{protocol}:{protocol},{NODE_LISTENER}:{NODE_LISTENER},{CONTROLLER_LISTENER}:{NODE_LISTENER}"
        ),
        **(_user_settings(users, protocol) if users else {}),
        **tls_settings,
    }


def _user_settings(users: Mapping[str, str], listener: str) -> dict[str, str]:
    """Return the broker configs for authentication with SASL."""
    from kwire.client.security import quote_jaas

    known = " ".join(
        f"{quote_jaas(f'user_{name}')}={quote_jaas(password)}" for name, password in users.items()
    )
    prefix = f"listener.name.{listener.lower()}"
    scram_module = f"{LOGIN_MODULES}.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{prefix}.plain.sasl.jaas.config": f"{LOGIN_MODULES}.plain.PlainLoginModule required {known};",
        **{f"{prefix}.{mechanism.lower()}.sasl.jaas.config": scram_module for mechanism in SCRAM},
        "delegation.token.secret.key": TOKEN_SECRET_KEY,
    }
