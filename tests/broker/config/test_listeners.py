"""Other listeners for a running broker: what is refused, in the words of Apache Kafka 4.3.1. KIP-226."""

from __future__ import annotations

import logging

import pytest

from kwire.broker.config import BrokerConfig, ConfigError, load

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


def started(**more: str) -> BrokerConfig:
    return load(None, {}, GIVEN | {name.replace("_", "."): text for name, text in more.items()})


def advertising() -> BrokerConfig:
    return load(None, {}, GIVEN | ADVERTISED)


def settings(listeners: str | None = None, protocols: str | None = None, **more: str) -> dict[str, str]:
    named = {"listeners": listeners, "listener.security.protocol.map": protocols}
    return {name: text for name, text in named.items() if text is not None} | more


def refusal(config: BrokerConfig, changed: dict[str, str]) -> str:
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
def test_an_endpoint_that_is_none(entry: str, fault: str) -> None:
    said = refusal(advertising(), settings(f"{NOW},{entry}", THREE))
    wanted = fault.format(entry, shown=SHOWN)
    assert said == f"Error creating broker listeners from '[{SHOWN}, {entry}]': {wanted}"


@pytest.mark.parametrize(
    "entry",
    [
        *("EXTRA://127.0.0.1:9094", "extra://:9094", "EXTRA://0.0.0.0:9094", "EXTRA://[::1]:9094"),
        *("EXTRA://[::1]:9092", "EXTRA://no.such.host:1", "EXTRA://:0", "EXTRA://:-1", "EXTRA://:65536"),
    ],
)
def test_an_endpoint_that_is_taken_whatever_comes_of_it(entry: str) -> None:
    config = advertising()
    changed = settings(f"{NOW},{entry}", THREE)
    config.check_update(changed, per_broker=True)
    config.update({}, changed)
    assert names(config) == ["PLAINTEXT", "EXTRA"]


@pytest.mark.parametrize(
    ("protocols", "said"),
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
def test_a_map_of_protocols_that_does_not_do(protocols: str, said: str) -> None:
    assert refusal(advertising(), settings(protocols=protocols)) == said


def test_listeners_that_others_of_the_settings_name_stay() -> None:
    plaintext, controller = NOW.split(",")
    role = "appearing in the 'listeners' configuration when running the KRaft controller role"
    assert refusal(advertising(), settings(plaintext)) == (
        f"requirement failed: controller.listener.names must contain at least one value {role}"
    )
    assert refusal(advertising(), settings(controller)) == (
        "requirement failed: advertised.listeners listener names must be equal to or a subset of the ones "
        "defined in listeners. Found PLAINTEXT. The valid options based on the current configuration are "
        "CONTROLLER"
    )
    assert refusal(started(), settings(controller)) == (
        "requirement failed: There must be at least one broker advertised listener. "
        "Perhaps all listeners appear in controller.listener.names?"
    )
    assert refusal(started(), settings(f"EXTRA://127.0.0.1:9094,{controller}", THREE)) == (
        "requirement failed: inter.broker.listener.name must be a listener name defined in "
        "advertised.listeners. The valid options based on currently configured listeners are EXTRA"
    )


def test_clients_are_told_no_address_that_is_none() -> None:
    assert refusal(started(), settings(f"{NOW},EXTRA://0.0.0.0:9094", THREE)) == (
        "requirement failed: advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. "
        "Use a routable IP address."
    )
    started().check_update(
        settings(NOW.replace("CONTROLLER://127.0.0.1", "CONTROLLER://0.0.0.0")), per_broker=True
    )


def test_what_is_advertised_is_not_given_up() -> None:
    config = started()
    changed = settings(EXTRA, THREE)
    config.check_update(changed, per_broker=True)
    config.update({}, changed)
    assert refusal(config, {}) == (
        "Invalid value org.apache.kafka.common.config.ConfigException: Advertised listeners "
        "'Set(ListenerName(PLAINTEXT), ListenerName(EXTRA))' must be a subset of listeners "
        "'Set(ListenerName(PLAINTEXT), ListenerName(CONTROLLER))' for configuration "
        "Invalid dynamic configuration"
    )
    # It is not registered all the same.
    assert [listener.name for listener in config.advertised_endpoints()] == ["PLAINTEXT"]


def test_what_is_not_advertised_is_given_up_and_registration_stays() -> None:
    config = advertising()
    config.update({}, settings(EXTRA, THREE))
    config.check_update({}, per_broker=True)
    config.update({}, {})
    assert names(config) == ["PLAINTEXT"]


def test_a_listener_is_not_moved_but_its_address_is_stored() -> None:
    config = advertising()
    config.update({}, settings(NOW.replace("9092", "9095")))
    assert config.value("listeners") == ["PLAINTEXT://127.0.0.1:9095", "CONTROLLER://127.0.0.1:9093"]
    assert config.listener_endpoints() == [("PLAINTEXT", "127.0.0.1", 9092)]


def test_settings_of_a_listener_that_take_a_start_hold_up_changes_of_listeners() -> None:
    config = advertising()
    own = {"listener.name.plaintext.nope": "1"}
    config.check_update(own, per_broker=True)
    config.update({}, own)
    fault = "Configs cannot be updated dynamically for existing listener ListenerName(PLAINTEXT), "
    for changed in (settings(EXTRA, THREE), {"max.connections": "5"}):
        assert fault in refusal(config, own | changed)
    config.check_update(own | {"message.max.bytes": "5"}, per_broker=True)
    config.check_update(
        {"listener.name.extra.nope": "1", "listener.name.plaintext.max.connections": "9"}
        | settings(EXTRA, THREE),
        per_broker=True,
    )


def test_controllers_need_no_protocol_unless_a_map_is_given_or_others_are_secured() -> None:
    said = refusal(started(), settings(f"{NOW},SSL://127.0.0.1:9094"))
    assert said.endswith("No security protocol defined for listener CONTROLLER")
    started().check_update(settings(protocols=TWO), per_broker=True)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_a_protocol_that_is_not_served(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    changed = settings(EXTRA, f"{TWO},EXTRA:{protocol}") | {"message.max.bytes": "12345"}
    config = advertising()
    assert f"with the security protocol {protocol}, which is not supported yet" in refusal(config, changed)
    # Apache Kafka may have stored it: the other settings hold.
    with caplog.at_level(logging.ERROR):
        config.update({}, changed)
    assert "[node 1] listener EXTRA was not added" in caplog.text
    assert names(config) == ["PLAINTEXT"]
    assert config.value("message.max.bytes") == 12345


def test_one_broker_s_listeners_are_not_all_brokers() -> None:
    with pytest.raises(ConfigError, match="Cannot update these configs at default cluster level"):
        advertising().check_update(settings(EXTRA, THREE), per_broker=False)


def test_stored_listeners_that_the_next_start_s_settings_contradict_are_not_applied(
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
    assert "are not applied" in caplog.text
    assert names(config) == ["PLAINTEXT", "EXTRA"]
