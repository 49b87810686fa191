"""Values, sources and synonyms, as Apache Kafka 4.3.1 describes them."""

from __future__ import annotations

from collections.abc import Mapping

from kwire.broker.config import BrokerConfig, load, log_config
from kwire.broker.config.describe import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
    inherited_source,
)


def config(**settings: str) -> BrokerConfig:
    return load(None, {}, {name.replace("_", "."): value for name, value in settings.items()})


def topic(broker: BrokerConfig, overrides: Mapping[str, str], name: str) -> ConfigEntry:
    return next(entry for entry in describe_topic(broker, overrides) if entry.name == name)


def synonyms(entry: ConfigEntry) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, int(synonym.source)) for synonym in entry.synonyms]


def test_a_topic_has_33_keys_with_synonyms_from_its_broker() -> None:
    entries = {entry.name: entry for entry in describe_topic(config(), {})}
    assert len(entries) == 33
    assert synonyms(entries["segment.bytes"]) == [("log.segment.bytes", "1073741824", 5)]
    # Kafka shows no synonyms for these keys: their defaults come from keys in other units.
    for name in ("retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms"):
        assert synonyms(entries[name]) == [], name
    assert entries["retention.ms"].value == "604800000"
    assert entries["min.cleanable.dirty.ratio"].value == "0.5"


def test_a_topic_setting_comes_before_the_broker_default() -> None:
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


def test_inherited_source_is_that_of_the_broker_key_in_effect() -> None:
    broker = config(log_retention_hours="2")
    assert inherited_source(broker, "retention.ms") == ConfigSource.STATIC_BROKER_CONFIG
    assert inherited_source(broker, "segment.ms") == ConfigSource.DEFAULT_CONFIG
    assert inherited_source(broker, "flush.ms") == ConfigSource.DEFAULT_CONFIG
    broker.update({"log.roll.hours": "3", "log.retention.ms": "1"}, {"log.roll.ms": "5"})
    assert inherited_source(broker, "retention.ms") == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert inherited_source(broker, "segment.ms") == ConfigSource.DYNAMIC_BROKER_CONFIG
    assert topic(broker, {}, "retention.ms").source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


def test_an_internal_key_is_described_only_if_it_is_set() -> None:
    name = "log.initial.task.delay.ms"
    assert name not in {entry.name for entry in describe_broker(config())}
    shown = {entry.name: entry for entry in describe_broker(config(log_initial_task_delay_ms="100"))}
    assert synonyms(shown[name]) == [(name, "100", 4), (name, "30000", 5)]


def test_a_dynamic_cluster_setting_comes_before_the_static_one() -> None:
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


def test_a_broker_hides_sensitive_values() -> None:
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


def test_a_dynamic_only_key_is_described_only_if_it_is_set() -> None:
    broker = config()
    name = "leader.replication.throttled.rate"
    assert name not in {entry.name for entry in describe_broker(broker)}
    broker.update({name: "5", "nonsense": "1"}, {"listener.name.plaintext.ssl.client.auth": "required"})
    entries = {entry.name: entry for entry in describe_broker(broker)}
    throttle = entries[name]
    assert (throttle.value, throttle.read_only, throttle.type, throttle.is_sensitive) == (
        "5",
        False,
        5,
        False,
    )
    assert synonyms(throttle) == [(name, "5", 3)]
    assert (entries["nonsense"].value, entries["nonsense"].type) == (None, 0)
    listener_entry = entries["listener.name.plaintext.ssl.client.auth"]
    assert (listener_entry.value, listener_entry.read_only) == ("required", True)
    assert {entry.name: entry.value for entry in describe_cluster_defaults(broker)} == {
        name: "5",
        "nonsense": None,
    }


def test_a_dynamic_setting_in_ms_resets_the_keys_in_hours_and_minutes() -> None:
    broker = config(log_retention_hours="5", log_retention_minutes="77", log_roll_hours="9")

    def shown(name: str) -> str | None:
        return {entry.name: entry.value for entry in describe_broker(broker)}[name]

    assert (shown("log.retention.hours"), shown("log.roll.hours")) == ("5", "9")
    broker.update({"log.retention.ms": "60000"}, {"log.roll.ms": "60000"})
    assert (shown("log.retention.hours"), shown("log.retention.minutes")) == ("168", None)
    assert shown("log.roll.hours") == "168"


def test_settings_of_a_mechanism_are_described_without_passwords() -> None:
    own = "listener.name.plaintext.plain."
    broker = config()
    broker.update({}, {f"{own}sasl.jaas.config": "secret", f"{own}connections.max.reauth.ms": "5"})
    entries = {entry.name: entry for entry in describe_broker(broker)}
    jaas, reauth = entries[f"{own}sasl.jaas.config"], entries[f"{own}connections.max.reauth.ms"]
    assert (jaas.value, jaas.is_sensitive, jaas.type) == (None, True, 9)
    assert synonyms(jaas) == [(f"{own}sasl.jaas.config", None, 2)]
    assert (reauth.value, reauth.is_sensitive, reauth.type) == ("5", False, 5)
    assert synonyms(reauth) == [
        (f"{own}connections.max.reauth.ms", "5", 2),
        ("connections.max.reauth.ms", "0", 5),
    ]


def test_cluster_defaults_contain_only_dynamic_cluster_settings() -> None:
    broker = config()
    assert list(describe_cluster_defaults(broker)) == []
    broker.update({"log.cleaner.threads": "2"}, {"log.cleaner.threads": "3"})
    (entry,) = describe_cluster_defaults(broker)
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


def test_a_metrics_subscription_is_described_as_parsed() -> None:
    stored = {"metrics": " a , b,a", "interval.ms": " +00500 "}
    entries = {entry.name: entry for entry in describe_client_metrics(stored)}
    assert {name: entry.value for name, entry in entries.items()} == {
        "interval.ms": "500",
        "match": "",
        "metrics": "a,b",
    }
    assert entries["interval.ms"].source is ConfigSource.CLIENT_METRICS_CONFIG
    assert synonyms(entries["metrics"]) == [("metrics", "a,b", 7)]
    assert (entries["match"].source, entries["match"].synonyms) == (ConfigSource.DEFAULT_CONFIG, [])
    (unparsable,) = (
        e for e in describe_client_metrics({"interval.ms": "of another"}) if e.name == "interval.ms"
    )
    assert unparsable.value == "of another"
