"""Values, their sources and synonyms, as Apache Kafka 4.3.1 was seen to describe them."""

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


def test_created_topics_are_told_of_whichever_key_speaks_for_theirs() -> None:
    broker = config(log_retention_hours="2")
    assert inherited_source(broker, "retention.ms") == ConfigSource.STATIC_BROKER_CONFIG
    assert inherited_source(broker, "segment.ms") == ConfigSource.DEFAULT_CONFIG
    assert inherited_source(broker, "flush.ms") == ConfigSource.DEFAULT_CONFIG
    broker.update({"log.roll.hours": "3", "log.retention.ms": "1"}, {"log.roll.ms": "5"})
    assert inherited_source(broker, "retention.ms") == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert inherited_source(broker, "segment.ms") == ConfigSource.DYNAMIC_BROKER_CONFIG
    assert topic(broker, {}, "retention.ms").source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


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
    assert (throttle.value, throttle.read_only, throttle.type, throttle.is_sensitive) == (
        "5",
        False,
        5,
        False,
    )
    assert synonyms(throttle) == [(name, "5", 3)]
    assert (entries["nonsense"].value, entries["nonsense"].type) == (None, 0)
    of_a_listener = entries["listener.name.plaintext.ssl.client.auth"]
    assert (of_a_listener.value, of_a_listener.read_only) == ("required", True)
    assert {entry.name: entry.value for entry in describe_cluster_defaults(broker)} == {
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


def test_settings_of_a_mechanism_are_shown_but_for_passwords() -> None:
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


def test_the_default_broker_has_only_what_was_set_for_all() -> None:
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


def test_a_subscription_is_shown_as_it_was_read() -> None:
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
    (unread,) = (e for e in describe_client_metrics({"interval.ms": "of another"}) if e.name == "interval.ms")
    assert unread.value == "of another"
