"""Settings of SASL listeners, and the credentials of a node that connects to its peers."""

from __future__ import annotations

import pytest

from kwire.broker.config.broker import BrokerConfig
from kwire.broker.config.definition import ConfigError
from kwire.broker.config.jaas import PLAIN_MODULE, SCRAM_MODULE
from kwire.broker.config.sasl import JaasFile
from kwire.broker.security.settings import Credentials, listener_security, peer_credentials

PLAIN_TEXT = f'{PLAIN_MODULE} required username="me" password="mine" user_me="mine" user_you="yours";'
SCRAM_TEXT = f'{SCRAM_MODULE} required username="node" password="secret";'
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "CLIENTS://127.0.0.1:0,NODES://127.0.0.1:0,CONTROLLER://127.0.0.1:0,OPEN://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,NODES:SASL_PLAINTEXT,"
    "CONTROLLER:SASL_PLAINTEXT,OPEN:PLAINTEXT",
    "advertised.listeners": "CLIENTS://127.0.0.1:9092,NODES://127.0.0.1:9093",
    "inter.broker.listener.name": "NODES",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "log.dirs": "data",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": PLAIN_TEXT,
    "listener.name.nodes.plain.sasl.jaas.config": PLAIN_TEXT,
    "listener.name.controller.plain.sasl.jaas.config": PLAIN_TEXT,
}
MORE = {
    "listener.security.protocol.map": SETTINGS["listener.security.protocol.map"] + ",MORE:SASL_PLAINTEXT",
    "listener.name.more.plain.sasl.jaas.config": PLAIN_TEXT,
}
MISSING = "Could not find a 'KafkaServer' or 'clients.KafkaServer' entry in the JAAS configuration"


def load_error(changed: dict[str, str | None]) -> str:
    settings = {name: text for name, text in (SETTINGS | changed).items() if text is not None}
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(settings)
    return str(refused.value)


def test_a_listener_inherits_the_general_sasl_settings() -> None:
    config = BrokerConfig(SETTINGS)
    security = listener_security(config, "CLIENTS")
    assert security is not None
    assert security.mechanisms == ("PLAIN",)
    assert security.plain_users == {"me": "mine", "you": "yours"}
    assert (security.max_receive_bytes, security.max_reauth_ms) == (524288, {"PLAIN": 0})
    assert "mine" not in repr(security)
    assert "mine" not in repr(config.listener_sasl("CLIENTS"))
    assert listener_security(config, "OPEN") is None


def test_settings_of_a_listener_override_the_general_ones() -> None:
    config = BrokerConfig(
        SETTINGS
        | {
            "connections.max.reauth.ms": "1000",
            "sasl.server.max.receive.size": "10000",
            "listener.name.clients.connections.max.reauth.ms": "2000",
            "listener.name.clients.plain.connections.max.reauth.ms": "3000",
            "listener.name.clients.sasl.server.max.receive.size": "20000",
            "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
            "listener.name.clients.scram-sha-256.sasl.jaas.config": SCRAM_TEXT,
            "listener.name.clients.scram-sha-512.sasl.jaas.config": SCRAM_TEXT,
        }
    )
    security = listener_security(config, "CLIENTS")
    assert security is not None
    assert security.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    assert security.max_receive_bytes == 20000
    assert security.max_reauth_ms == {"PLAIN": 3000, "SCRAM-SHA-256": 2000, "SCRAM-SHA-512": 2000}
    nodes = listener_security(config, "NODES")
    assert nodes is not None
    assert (nodes.max_receive_bytes, nodes.max_reauth_ms) == (10000, {"PLAIN": 1000})


def test_peer_credentials_come_from_the_jaas_config_of_the_listener() -> None:
    config = BrokerConfig(
        SETTINGS
        | {
            "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
            "listener.name.controller.scram-sha-512.sasl.jaas.config": SCRAM_TEXT.replace(
                " username", " tokenauth=true username"
            ),
        }
    )
    assert peer_credentials(config, "NODES") == Credentials("PLAIN", "me", "mine")
    assert peer_credentials(config, "CONTROLLER") == Credentials("SCRAM-SHA-512", "node", "secret", True)
    assert peer_credentials(config, "OPEN") is None
    assert "secret" not in repr(peer_credentials(config, "CONTROLLER"))


def test_a_broker_has_credentials_for_the_controller_listener() -> None:
    settings = SETTINGS | {
        "process.roles": "broker",
        "node.id": "2",
        "listeners": "CLIENTS://127.0.0.1:0,NODES://127.0.0.1:0",
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
        "listener.name.controller.scram-sha-256.sasl.jaas.config": SCRAM_TEXT,
    }
    assert peer_credentials(BrokerConfig(settings), "CONTROLLER") == Credentials(
        "SCRAM-SHA-256", "node", "secret"
    )
    del settings["listener.name.controller.scram-sha-256.sasl.jaas.config"]
    with pytest.raises(ConfigError, match=r"or 'controller\.KafkaServer' entry"):
        BrokerConfig(settings)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"listener.name.clients.plain.sasl.jaas.config": None}, MISSING),
        ({"listener.name.clients.plain.sasl.jaas.config": "M"}, "control flag not specified"),
        ({"listener.name.clients.plain.sasl.jaas.config": "a.B required;"}, "No LoginModule found for a.B"),
        ({"listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-256"}, MISSING),
        ({"listener.name.clients.sasl.enabled.mechanisms": ""}, "No SASL mechanisms are enabled"),
        ({"listener.name.clients.sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI, which is not supported"),
        ({"sasl.mechanism.controller.protocol": "GSSAPI"}, "GSSAPI, which is not supported"),
        ({"sasl.mechanism.controller.protocol": "SCRAM-SHA-256"}, "or 'controller.KafkaServer' entry"),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
            "requirement failed: sasl.mechanism.inter.broker.protocol must be included in "
            "sasl.enabled.mechanisms when SASL is used for inter-broker communication",
        ),
        ({"listener.name.clients.plain.connections.max.reauth.ms": "x"}, "connections.max.reauth.ms"),
        ({"listener.name.clients.plain.sasl.server.callback.handler.class": "a.B"}, "cannot be loaded"),
        ({"security.inter.broker.protocol": "PLAINTEXT"}, "Only one of inter.broker.listener.name and "),
    ],
)
def test_invalid_sasl_settings_are_refused(changed: dict[str, str | None], error: str) -> None:
    text = load_error(changed)
    assert error in text
    assert "mine" not in text


def test_sasl_settings_of_a_running_listener_do_not_change() -> None:
    config = BrokerConfig(SETTINGS | {"listener.name.clients.sasl.enabled.mechanisms": "PLAIN"})
    added = {
        "listeners": SETTINGS["listeners"] + ",MORE://127.0.0.1:0",
        "listener.security.protocol.map": SETTINGS["listener.security.protocol.map"] + ",MORE:SASL_PLAINTEXT",
        "listener.name.more.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.more.scram-sha-256.sasl.jaas.config": SCRAM_TEXT,
    }
    config.check_update(added, per_broker=True)
    config.update({}, added)
    assert "MORE" in [listener.name for listener in config.running_listeners()]
    more = listener_security(config, "MORE")
    assert more is not None
    assert more.mechanisms == ("SCRAM-SHA-256",)
    without = {name: text for name, text in added.items() if not name.endswith("jaas.config")}
    config.check_update(without, per_broker=True)
    config.update({}, without)
    assert listener_security(config, "MORE") == more
    config.update({}, {})
    assert "MORE" not in [listener.name for listener in config.running_listeners()]
    with pytest.raises(ConfigError, match=r"Could not find a 'KafkaServer' or 'more\.KafkaServer' entry"):
        config.check_update(without, per_broker=True)
    config.update({}, {"listener.name.clients.sasl.enabled.mechanisms": "GSSAPI"})
    clients = listener_security(config, "CLIENTS")
    assert clients is not None
    assert clients.mechanisms == ("PLAIN",)


def test_an_unknown_listener_is_an_error_and_not_an_open_listener() -> None:
    config = BrokerConfig(SETTINGS | {"listeners": SETTINGS["listeners"] + ",MORE://127.0.0.1:0"} | MORE)
    assert listener_security(config, "MORE") is listener_security(config, "MORE") is not None
    config.update({}, {"listeners": SETTINGS["listeners"]})
    config.update({}, {"listener.name.more.sasl.enabled.mechanisms": "GSSAPI"})
    with pytest.raises(ConfigError, match="MORE was never created"):
        listener_security(config, "MORE")
    with pytest.raises(KeyError):
        listener_security(config, "more")


def test_a_jaas_file_applies_where_no_setting_does() -> None:
    text = f"""
        KafkaServer {{ {PLAIN_MODULE} required username="me" password="of-all" user_me="of-all"; }};
        nodes.KafkaServer {{ {PLAIN_MODULE} required username="me" password="of-nodes" user_me="of-nodes"; }};
    """
    settings = {name: text for name, text in SETTINGS.items() if not name.endswith("jaas.config")}
    settings["listener.name.clients.plain.sasl.jaas.config"] = PLAIN_TEXT
    config = BrokerConfig(settings, JaasFile("jaas.conf", text))
    assert peer_credentials(config, "CONTROLLER") == Credentials("PLAIN", "me", "of-all")
    assert peer_credentials(config, "NODES") == Credentials("PLAIN", "me", "of-nodes")
    clients = listener_security(config, "CLIENTS")
    assert clients is not None
    assert clients.plain_users == {"me": "mine", "you": "yours"}


@pytest.mark.parametrize(
    ("file", "error"),
    [
        (
            JaasFile("jaas.conf", "KafkaClient { };"),
            "'java.security.auth.login.config' is jaas.conf",
        ),
        (JaasFile("jaas.conf", "KafkaServer {"), "jaas.conf: Login module control flag not specified"),
        (
            JaasFile("jaas.conf", "KafkaServer { a.B required; };"),
            "KafkaServer: No LoginModule found",
        ),
        (JaasFile("jaas.conf", fault="No such file or directory"), "jaas.conf: No such file or directory"),
    ],
)
def test_an_invalid_jaas_file_is_refused(file: JaasFile, error: str) -> None:
    settings = {name: text for name, text in SETTINGS.items() if not name.endswith("jaas.config")}
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(settings, file)
    assert error in str(refused.value)


def test_a_listener_without_credentials_is_added_once_they_are_set() -> None:
    config = BrokerConfig(SETTINGS)
    added = {
        "listeners": SETTINGS["listeners"] + ",MORE://127.0.0.1:0",
        "listener.security.protocol.map": SETTINGS["listener.security.protocol.map"] + ",MORE:SASL_PLAINTEXT",
    }
    config.update({}, added)
    assert "MORE" not in [listener.name for listener in config.running_listeners()]
    with pytest.raises(KeyError):
        listener_security(config, "MORE")
    config.update({}, added | {"listener.name.more.plain.sasl.jaas.config": PLAIN_TEXT})
    assert "MORE" in [listener.name for listener in config.running_listeners()]
    more = listener_security(config, "MORE")
    config.update({}, {})
    # Losing its credentials does not make an existing listener open to unauthenticated clients.
    assert listener_security(config, "MORE") == more is not None
    config.update({}, added)
    assert "MORE" not in [listener.name for listener in config.running_listeners()]
