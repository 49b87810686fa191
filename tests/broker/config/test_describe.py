"""Values, their sources and synonyms, as Apache Kafka 4.3.1 was seen to describe them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kwire.broker.config import BrokerConfig, ConfigError, load, log_config
from kwire.broker.config.describe import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_brokers_default,
    describe_group,
    describe_topic,
)
from kwire.broker.config.group import GroupConfigs, check_group
from kwire.broker.config.topic import check_topic


def config(**settings: str) -> BrokerConfig:
    return load(None, {}, {name.replace("_", "."): value for name, value in settings.items()})


def topic(broker: BrokerConfig, overrides: Mapping[str, str], name: str) -> ConfigEntry:
    return next(entry for entry in describe_topic(broker, overrides) if entry.name == name)


def synonyms(entry: ConfigEntry) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, int(synonym.source)) for synonym in entry.synonyms]


def test_a_plain_topic_has_33_keys_with_their_brokers_synonyms() -> None:
    entries = {entry.name: entry for entry in describe_topic(config(), {})}
    assert len(entries) == 33
    assert synonyms(entries["segment.bytes"]) == [("log.segment.bytes", "1073741824", 5)]
    # The defaults of these come from keys in other units: Kafka shows none.
    for name in ("retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms"):
        assert synonyms(entries[name]) == [], name
    assert entries["retention.ms"].value == "604800000"
    assert entries["min.cleanable.dirty.ratio"].value == "0.5"


def test_what_the_topic_says_comes_first() -> None:
    entry = topic(config(), {"retention.ms": "1000"}, "retention.ms")
    assert (entry.value, entry.source) == ("1000", ConfigSource.TOPIC_CONFIG)
    assert synonyms(entry) == [("retention.ms", "1000", 1)]


def test_hours_and_minutes_become_milliseconds() -> None:
    assert topic(config(log_retention_hours="2"), {}, "retention.ms").value == "7200000"
    assert (
        topic(config(log_retention_hours="2", log_retention_minutes="5"), {}, "retention.ms").value
        == "300000"
    )
    assert topic(config(log_retention_hours="-1"), {}, "retention.ms").value == "-1"
    assert topic(config(log_retention_ms="-5"), {}, "retention.ms").value == "-1"


def test_an_internal_key_is_shown_where_it_is_set() -> None:
    name = "log.initial.task.delay.ms"
    assert name not in {entry.name for entry in describe_broker(config())}
    shown = {entry.name: entry for entry in describe_broker(config(log_initial_task_delay_ms="100"))}
    assert synonyms(shown[name]) == [(name, "100", 4), (name, "30000", 5)]


def test_a_running_cluster_s_setting_stands_before_that_of_the_start() -> None:
    broker = config(message_max_bytes="1000")
    broker.update({"message.max.bytes": "2000"}, {})
    entry = topic(broker, {}, "max.message.bytes")
    assert (entry.value, entry.source) == ("2000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    assert synonyms(entry) == [
        ("message.max.bytes", "2000", 3),
        ("message.max.bytes", "1000", 4),
        ("message.max.bytes", "1048588", 5),
    ]
    assert log_config(broker, {}).max_message_bytes == 2000


def test_a_broker_hides_what_is_secret_and_what_is_unknown() -> None:
    broker = load(
        None, {}, {"listener.name.plaintext.ssl.keystore.password": "hush", "ssl.key.password": "hush"}
    )
    entries = {entry.name: entry for entry in describe_broker(broker)}
    for name in ("ssl.key.password", "listener.name.plaintext.ssl.keystore.password"):
        assert entries[name].is_sensitive
        assert entries[name].value is None
        assert all(synonym.value is None for synonym in entries[name].synonyms)
    assert entries["num.partitions"].read_only
    assert not entries["log.cleaner.threads"].read_only
    assert entries["log.cleaner.io.max.bytes.per.second"].value == "1.7976931348623157E308"


def test_what_only_a_running_broker_can_be_told_is_shown_where_it_is_set() -> None:
    broker = config()
    name = "leader.replication.throttled.rate"
    assert name not in {entry.name for entry in describe_broker(broker)}
    broker.update({name: "5", "nonsense": "1"}, {"listener.name.plaintext.ssl.client.auth": "required"})
    entries = {entry.name: entry for entry in describe_broker(broker)}
    throttle = entries[name]
    assert (throttle.value, throttle.read_only, throttle.kind, throttle.is_sensitive) == (
        "5",
        False,
        5,
        False,
    )
    assert synonyms(throttle) == [(name, "5", 3)]
    assert (entries["nonsense"].value, entries["nonsense"].kind) == (None, 0)
    of_a_listener = entries["listener.name.plaintext.ssl.client.auth"]
    assert (of_a_listener.value, of_a_listener.read_only) == ("required", True)
    assert {entry.name: entry.value for entry in describe_brokers_default(broker)} == {
        name: "5",
        "nonsense": None,
    }


def test_a_setting_in_milliseconds_puts_the_coarser_ones_back_to_their_defaults() -> None:
    broker = config(log_retention_hours="5", log_retention_minutes="77", log_roll_hours="9")

    def shown(name: str) -> str | None:
        return {entry.name: entry.value for entry in describe_broker(broker)}[name]

    assert (shown("log.retention.hours"), shown("log.roll.hours")) == ("5", "9")
    broker.update({"log.retention.ms": "60000"}, {"log.roll.ms": "60000"})
    assert (shown("log.retention.hours"), shown("log.retention.minutes")) == ("168", None)
    assert shown("log.roll.hours") == "168"


def test_the_default_broker_has_only_what_was_set_for_all() -> None:
    broker = config()
    assert list(describe_brokers_default(broker)) == []
    broker.update({"log.cleaner.threads": "2"}, {"log.cleaner.threads": "3"})
    (entry,) = describe_brokers_default(broker)
    assert synonyms(entry) == [("log.cleaner.threads", "2", 3)]


def test_a_group_takes_its_defaults_from_the_broker() -> None:
    entries = {
        entry.name: entry for entry in describe_group(config(), {"share.isolation.level": "read_committed"})
    }
    assert len(entries) == 17
    assert synonyms(entries["consumer.session.timeout.ms"]) == [
        ("group.consumer.session.timeout.ms", "45000", 5)
    ]
    assert entries["share.isolation.level"].source is ConfigSource.GROUP_CONFIG


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"no.such": "1"}, "Unknown topic config name: no.such"),
        (
            {"retention.ms": "soon"},
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        ({"segment.bytes": "200"}, "Value must be at least 1048576"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "conflict topic config setting"),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled"),
    ],
)
def test_what_a_topic_cannot_be_told(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_topic(config(), overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"no.such": "1"}, "Unknown group config name"),
        ({"consumer.session.timeout.ms": "1"}, "must be greater than or equal to"),
        ({"consumer.session.timeout.ms": "99999999"}, "must be less than or equal to"),
        (
            {"consumer.session.timeout.ms": "1", "consumer.heartbeat.interval.ms": "x"},
            "Invalid value x for configuration consumer.heartbeat.interval.ms",
        ),
        (
            {"consumer.session.timeout.ms": "1", "consumer.heartbeat.interval.ms": "1"},
            "consumer.heartbeat.interval.ms must be greater",
        ),
        ({"streams.num.standby.replicas": "3"}, "group.streams.max.standby.replicas"),
        ({"share.auto.offset.reset": "by_duration:PT"}, "must be either 'earliest', 'latest' or"),
        ({"share.auto.offset.reset": "by_duration:-PT1S"}, "must be either 'earliest', 'latest' or"),
    ],
)
def test_what_a_group_cannot_be_told(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_group(config(), overrides)


@pytest.mark.parametrize(
    "text", ["earliest", "by_duration:P1D", "by_duration:pt1h-30m", "by_duration:-PT-1.5S"]
)
def test_where_a_share_group_may_start(text: str) -> None:
    check_group(config(), {"share.auto.offset.reset": text})


def test_a_group_goes_by_its_own_settings_within_the_brokers_bounds() -> None:
    broker = config(
        group_consumer_max_session_timeout_ms="58000", group_consumer_heartbeat_interval_ms="6000"
    )
    set_for = {"a": {"consumer.session.timeout.ms": "50000"}, "b": {"consumer.session.timeout.ms": "59000"}}
    groups = GroupConfigs(broker, lambda group_id: set_for.get(group_id, {}))
    assert [groups.session_timeout_ms(group_id) for group_id in "abc"] == [50_000, 58_000, 45_000]
    assert groups.heartbeat_interval_ms("a") == 6_000
    assert groups.assignment_interval_ms("a") == 1_000
