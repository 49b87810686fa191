"""Settings that each process role requires, with Apache Kafka's error messages."""

from __future__ import annotations

import pytest

from kwire.broker.config import BrokerConfig, ConfigError, load

BROKER = {
    "process.roles": "broker",
    "node.id": "4",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@one:9093,2@[::1]:9094",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "1",
    "listeners": "CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@one:9093",
}


def load_settings(settings: dict[str, str | None]) -> BrokerConfig:
    return load(None, {}, {key: value for key, value in settings.items() if value is not None})


def test_a_broker_has_no_controller_listener() -> None:
    config = load_settings({**BROKER, "controller.quorum.bootstrap.servers": "three:9095"})
    assert (config.is_broker, config.is_controller) == (True, False)
    assert config.controller_endpoints() == []
    assert [listener.name for listener in config.listener_endpoints()] == ["PLAINTEXT"]


def test_a_controller_has_no_client_listener() -> None:
    config = load_settings({**CONTROLLER})
    assert (config.is_broker, config.is_controller) == (False, True)
    assert (config.listener_endpoints(), config.advertised_endpoints()) == ([], [])
    assert [listener.name for listener in config.controller_endpoints()] == ["CONTROLLER"]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"controller.quorum.voters": None}, "either controller.quorum.bootstrap.servers must contain"),
        ({"controller.quorum.voters": "1@one"}, "'1@one': expected id@host:port"),
        ({"controller.quorum.bootstrap.servers": "one"}, "'one': expected host:port"),
        ({"node.id": "2"}, "the node id 2 must not be included in the set of voters"),
        ({"controller.listener.names": ""}, "must contain at least one value when running KRaft with just"),
        ({"controller.listener.names": "PLAINTEXT"}, "must not contain a value appearing in the 'listeners'"),
        ({"controller.listener.names": "OTHER"}, "Controller listener with name OTHER defined in"),
    ],
)
def test_invalid_broker_settings_are_refused(changed: dict[str, str | None], error: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_settings({**BROKER, **changed})
    assert error in str(refusal.value)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"controller.quorum.voters": None}, "either controller.quorum.bootstrap.servers must contain"),
        ({"controller.quorum.voters": "2@two:1"}, "the node id 1 must be included in the set of voters"),
        ({"listeners": "CONTROLLER://h:1,PLAINTEXT://h:2"}, "must only contain KRaft controller listeners"),
        ({"process.roles": ""}, "process.roles is empty"),
    ],
)
def test_invalid_controller_settings_are_refused(changed: dict[str, str | None], error: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_settings({**CONTROLLER, **changed})
    assert error in str(refusal.value)
