"""The listeners that the console gets from a broker with an authorizer."""

from __future__ import annotations

import json

from kwire.broker.observe.console_access import (
    ConsoleAccess,
    ConsoleListener,
    console_connection,
)
from kwire.wire.mechanisms import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from tests.broker.observe.authorized import WITH_PLAINTEXT, authorized_settings
from tests.broker.observe.conftest import serve_observed


class Stores:
    """TLS settings of a listener, without files."""

    def __init__(self, **settings: str) -> None:
        self._settings = {f"ssl.{key.replace('_', '.')}": value for key, value in settings.items()}

    @property
    def settings(self) -> dict[str, str]:
        return self._settings

    @property
    def own_name(self) -> str | None:
        return None

    @property
    def asks_for_certificates(self) -> bool:
        return False


async def test_scram_is_preferred_and_each_set_of_plain_users_is_tried_once() -> None:
    settings = authorized_settings(
        "USERS://127.0.0.1:0,SAME://127.0.0.1:0,OTHER://127.0.0.1:0",
        "USERS:SASL_PLAINTEXT,SAME:SASL_PLAINTEXT,OTHER:SASL_PLAINTEXT",
    )
    key = "listener.name.other.plain.sasl.jaas.config"
    settings[key] = settings[key].replace("user_admin", "user_other")
    settings["listener.name.users.sasl.enabled.mechanisms"] = f"{PLAIN},{SCRAM_SHA_256}"
    async with serve_observed(settings) as node:
        ports = {one.name: one.address for one in node.running.server.listeners}
        access = console_connection(node.running, only_local=True).access
    assert access is not None
    assert [(mechanism, listener.servers) for mechanism, listener in access.logins] == [
        (SCRAM_SHA_512, ports["SAME"]),
        (SCRAM_SHA_256, ports["USERS"]),
        (PLAIN, ports["USERS"]),
        (PLAIN, ports["OTHER"]),
    ]
    assert access.anonymous is None


async def test_the_console_gets_no_credentials_of_the_broker() -> None:
    async with serve_observed(WITH_PLAINTEXT) as node:
        connection = console_connection(node.running, only_local=True)
        assert "node-secret" not in connection.secrets()
        assert json.loads(connection.secrets())["credentials"] is None
        assert json.loads(connection.secrets())["access"]["anonymous"] is not None


async def test_listeners_on_loopback_are_not_for_other_machines() -> None:
    async with serve_observed(WITH_PLAINTEXT) as node:
        assert console_connection(node.running, only_local=False).access == ConsoleAccess((), None)
    settings = authorized_settings(
        "USERS://0.0.0.0:0,NODES://127.0.0.1:0", "USERS:SASL_PLAINTEXT,NODES:SASL_PLAINTEXT"
    )
    settings["advertised.listeners"] = "USERS://127.0.0.1:0,NODES://127.0.0.1:0"
    key = "listener.name.nodes.plain.sasl.jaas.config"
    settings[key] = settings[key].replace("user_admin", "user_other")
    async with serve_observed(settings) as node:
        ports = {one.name: one.address for one in node.running.server.listeners}
        for only_local, plain in ((True, ["USERS", "NODES"]), (False, ["USERS"])):
            access = console_connection(node.running, only_local=only_local).access
            assert access is not None
            found = [one.listener.servers for one in access.logins if one.mechanism == PLAIN]
            assert found == [ports[name] for name in plain]


def test_tls_settings_have_a_trust_store_and_no_private_key() -> None:
    listener = Stores(keystore_location="key.pem", key_password="x", enabled_protocols="TLSv1.3")
    inter_broker = Stores(keystore_location="other.pem", truststore_location="ca.pem")
    address = ConsoleListener("localhost:9093", listener, inter_broker)
    assert address.tls_settings() == {
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.truststore.location": "ca.pem",
    }
    required = address._replace(has_key=True).tls_settings()
    assert required is not None
    assert required["ssl.keystore.location"] == "key.pem"
    assert ConsoleListener("localhost:9092").tls_settings() is None
