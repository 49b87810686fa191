"""Dynamic changes of listeners, with the error messages of Apache Kafka 4.3.1. KIP-226."""

from __future__ import annotations

import logging

import pytest

from kwire.broker.config import BrokerConfig, ConfigError, load
from kwire.broker.net.store_files import RealStoreFiles
from kwire.broker.security.node_tls import NodeTls

NOW = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
SHOWN = "PLAINTEXT://127.0.0.1:9092, CONTROLLER://127.0.0.1:9093"
TWO = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
THREE = f"{TWO},EXTRA:PLAINTEXT"
EXTRA = f"{NOW},EXTRA://127.0.0.1:9094"

GIVEN = {
    "listeners": NOW,
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:9093",
}
ADVERTISED = {"advertised.listeners": "PLAINTEXT://127.0.0.1:9092", "listener.security.protocol.map": TWO}


@pytest.mark.parametrize("names", ["", "CONTROLLER", "CONTROLLER,PLAINTEXT"])
def test_early_start_listeners_can_be_any_listeners(names: str) -> None:
    assert load(None, {}, GIVEN | {"early.start.listeners": names}).is_controller


@pytest.mark.parametrize("name", ["OTHER", "controller"])
def test_an_unknown_early_start_listener_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"early.start.listeners has {name}, which is not in listeners"):
        load(None, {}, GIVEN | {"early.start.listeners": f"PLAINTEXT,{name}"})


def started(**more: str) -> BrokerConfig:
    return load(None, {}, GIVEN | {name.replace("_", "."): text for name, text in more.items()})


def advertising() -> BrokerConfig:
    return load(None, {}, GIVEN | ADVERTISED)


def settings(listeners: str | None = None, protocols: str | None = None, **more: str) -> dict[str, str]:
    named = {"listeners": listeners, "listener.security.protocol.map": protocols}
    return {name: text for name, text in named.items() if text is not None} | more


def update_error(config: BrokerConfig, changed: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        config.check_update(changed, per_broker=True)
    return str(caught.value)


def names(config: BrokerConfig) -> list[str]:
    return [listener.name for listener in config.running_listeners()]


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("x", "Unable to parse {} to a broker endpoint"),
        ("EXTRA://127.0.0.1:x", "Unable to parse {} to a broker endpoint"),
        ("EXTRA://a b:1", "Unable to parse {} to a broker endpoint"),
        ("EXTRA://127.0.0.1:2147483648", 'For input string: "2147483648"'),
        ("NONE://127.0.0.1:9094", "No security protocol defined for listener NONE"),
        ("://127.0.0.1:9094", "The provided listener name is null or empty string"),
        ("plaintext://:9094", "Each listener must have a different name, listeners: [{shown}, {}]"),
        (
            "EXTRA://127.0.0.1:9092",
            "If you have two listeners on the same port then one needs to be IPv4 and the other IPv6, "
            "listeners: [{shown}, {}], port: 9092",
        ),
        (
            "EXTRA://localhost:9092",
            "Each listener must have a different port unless exactly one listener has an IPv4 address and "
            "the other IPv6 address, listeners: [{shown}, {}], port: 9092",
        ),
    ],
)
def test_an_invalid_listener_is_refused(entry: str, fault: str) -> None:
    error = update_error(advertising(), settings(f"{NOW},{entry}", THREE))
    wanted = fault.format(entry, shown=SHOWN)
    assert error == f"Error creating broker listeners from '[{SHOWN}, {entry}]': {wanted}"


@pytest.mark.parametrize(
    "entry",
    [
        *("EXTRA://127.0.0.1:9094", "extra://:9094", "EXTRA://0.0.0.0:9094", "EXTRA://[::1]:9094"),
        *("EXTRA://[::1]:9092", "EXTRA://no.such.host:1", "EXTRA://:0", "EXTRA://:-1", "EXTRA://:65536"),
    ],
)
def test_a_listener_that_may_fail_to_bind_is_accepted(entry: str) -> None:
    config = advertising()
    changed = settings(f"{NOW},{entry}", THREE)
    config.check_update(changed, per_broker=True)
    config.update({}, changed)
    assert names(config) == ["PLAINTEXT", "EXTRA"]


@pytest.mark.parametrize(
    ("protocols", "error"),
    [
        (
            "x",
            "Error parsing configuration property 'listener.security.protocol.map': "
            "begin 0, end -1, length 1",
        ),
        (
            "A:B,x",
            "Error parsing configuration property 'listener.security.protocol.map': "
            "begin 0, end -1, length 1",
        ),
        (":x", "The provided listener name is null or empty string"),
        (f"{TWO},A:NOPE", "Invalid security protocol `NOPE` defined in listener.security.protocol.map"),
        (
            "CONTROLLER:PLAINTEXT",
            f"Error creating broker listeners from '[{SHOWN}]': "
            "No security protocol defined for listener PLAINTEXT",
        ),
        (
            "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
            "Invalid value org.apache.kafka.common.config.ConfigException: Security protocol cannot be "
            "updated for existing listener ListenerName(PLAINTEXT) "
            "for configuration Invalid dynamic configuration",
        ),
    ],
)
def test_an_invalid_security_protocol_map_is_refused(protocols: str, error: str) -> None:
    assert update_error(advertising(), settings(protocols=protocols)) == error


def test_a_listener_that_another_setting_names_cannot_be_removed() -> None:
    plaintext, controller = NOW.split(",")
    role = "appearing in the 'listeners' configuration when running the KRaft controller role"
    assert update_error(advertising(), settings(plaintext)) == (
        f"requirement failed: controller.listener.names must contain at least one value {role}"
    )
    assert update_error(advertising(), settings(controller)) == (
        "requirement failed: advertised.listeners listener names must be equal to or a subset of the ones "
        "defined in listeners. Found PLAINTEXT. The valid options based on the current configuration are "
        "CONTROLLER"
    )
    assert update_error(started(), settings(controller)) == (
        "requirement failed: There must be at least one broker advertised listener. "
        "Perhaps all listeners appear in controller.listener.names?"
    )
    assert update_error(started(), settings(f"EXTRA://127.0.0.1:9094,{controller}", THREE)) == (
        "requirement failed: inter.broker.listener.name must be a listener name defined in "
        "advertised.listeners. The valid options based on currently configured listeners are EXTRA"
    )


def test_a_meta_address_is_not_advertised_to_clients() -> None:
    assert update_error(started(), settings(f"{NOW},EXTRA://0.0.0.0:9094", THREE)) == (
        "requirement failed: advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. "
        "Use a routable IP address."
    )
    started().check_update(
        settings(NOW.replace("CONTROLLER://127.0.0.1", "CONTROLLER://0.0.0.0")), per_broker=True
    )


def test_an_advertised_listener_cannot_be_removed() -> None:
    config = started()
    changed = settings(EXTRA, THREE)
    config.check_update(changed, per_broker=True)
    config.update({}, changed)
    assert update_error(config, {}) == (
        "Invalid value org.apache.kafka.common.config.ConfigException: Advertised listeners "
        "'Set(ListenerName(PLAINTEXT), ListenerName(EXTRA))' must be a subset of listeners "
        "'Set(ListenerName(PLAINTEXT), ListenerName(CONTROLLER))' for configuration "
        "Invalid dynamic configuration"
    )
    # The broker does not register the new listener.
    assert [listener.name for listener in config.advertised_endpoints()] == ["PLAINTEXT"]


def test_a_listener_that_is_not_advertised_can_be_removed() -> None:
    config = advertising()
    config.update({}, settings(EXTRA, THREE))
    config.check_update({}, per_broker=True)
    config.update({}, {})
    assert names(config) == ["PLAINTEXT"]


def test_a_changed_listener_address_is_stored_but_not_applied() -> None:
    config = advertising()
    config.update({}, settings(NOW.replace("9092", "9095")))
    assert config.value("listeners") == ["PLAINTEXT://127.0.0.1:9095", "CONTROLLER://127.0.0.1:9093"]
    assert config.listener_endpoints() == [("PLAINTEXT", "127.0.0.1", 9092)]


def test_static_listener_settings_set_dynamically_block_listener_changes() -> None:
    config = advertising()
    own = {"listener.name.plaintext.nope": "1"}
    config.check_update(own, per_broker=True)
    config.update({}, own)
    fault = "Configs cannot be updated dynamically for existing listener ListenerName(PLAINTEXT), "
    for changed in (settings(EXTRA, THREE), {"max.connections": "5"}):
        assert fault in update_error(config, own | changed)
    config.check_update(own | {"message.max.bytes": "5"}, per_broker=True)
    config.check_update(
        {"listener.name.extra.nope": "1", "listener.name.plaintext.max.connections": "9"}
        | settings(EXTRA, THREE),
        per_broker=True,
    )


def test_controller_listener_needs_a_protocol_if_another_listener_is_secured() -> None:
    error = update_error(started(), settings(f"{NOW},SSL://127.0.0.1:9094"))
    assert error.endswith("No security protocol defined for listener CONTROLLER")
    started().check_update(settings(protocols=TWO), per_broker=True)


def test_a_stored_listener_without_its_certificate_is_not_added(caplog: pytest.LogCaptureFixture) -> None:
    changed = settings(EXTRA, f"{TWO},EXTRA:SSL") | {"message.max.bytes": "12345"}
    config = advertising()
    config.tls = NodeTls(config, RealStoreFiles())
    assert "listener EXTRA: ssl.keystore.location is not set" in update_error(config, changed)
    # Apache Kafka may have stored this listener. The other settings apply.
    with caplog.at_level(logging.ERROR):
        config.update({}, changed)
    assert "[node 1] Cannot add listener EXTRA" in caplog.text
    assert names(config) == ["PLAINTEXT"]
    assert config.value("message.max.bytes") == 12345


def test_listeners_cannot_be_set_as_a_cluster_default() -> None:
    with pytest.raises(ConfigError, match="Cannot update these configs at default cluster level"):
        advertising().check_update(settings(EXTRA, THREE), per_broker=False)


def test_stored_listeners_that_contradict_the_static_settings_are_not_applied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = load(
        None,
        {},
        GIVEN
        | {
            "listeners": EXTRA,
            "listener.security.protocol.map": THREE,
            "advertised.listeners": "PLAINTEXT://127.0.0.1:9092,EXTRA://127.0.0.1:9094",
        },
    )
    with caplog.at_level(logging.ERROR):
        config.update({}, settings(NOW))
    assert "Ignoring all changed dynamic configs of the" in caplog.text
    assert names(config) == ["PLAINTEXT", "EXTRA"]
