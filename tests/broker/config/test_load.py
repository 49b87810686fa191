"""Settings from files, the environment and flags, and the errors for invalid ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from kwire.broker.config import BrokerConfig, ConfigError, load
from kwire.broker.config.broker_keys import BROKER_KEYS
from kwire.broker.config.jaas import PLAIN_MODULE
from kwire.broker.config.protection import Unprotected

SERVER_PROPERTIES = """
process.roles=broker,controller
node.id=7
controller.quorum.voters=7@localhost:9093
listeners=PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs=/data/a,/data/b
"""


def from_file(tmp_path: Path, text: str, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return load(str(path), {}, overrides or {})


def load_error(overrides: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as refused:
        load(None, {}, overrides)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_without_settings_one_broker_listens_on_loopback() -> None:
    config = load(None, {}, {})
    assert [(found.name, found.host, found.port) for found in config.listener_endpoints()] == [
        ("PLAINTEXT", "127.0.0.1", 9092)
    ]
    assert config.node_id == 1
    assert config.offsets_topic_replication_factor == 1
    assert config.num_partitions == 1
    assert config.group_initial_rebalance_delay_ms == 0


def test_environment_and_flags_override_the_single_broker_profile() -> None:
    name, environ = "group.initial.rebalance.delay.ms", {"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "7"}
    assert load(None, environ, {}).group_initial_rebalance_delay_ms == 7
    assert load(None, environ, {name: "8"}).group_initial_rebalance_delay_ms == 8


def test_broker_id_replaces_the_default_node_id() -> None:
    assert load(None, {}, {"broker.id": "7"}).node_id == 7
    assert load(None, {"KAFKA_BROKER_ID": "7"}, {}).node_id == 7
    assert load(None, {"KAFKA_BROKER_ID": "7"}, {"node.id": "7"}).node_id == 7


def test_broker_id_must_equal_node_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^node\.id is 7, and broker\.id is 8: "):
        from_file(tmp_path, f"{SERVER_PROPERTIES}broker.id=8\n")
    assert from_file(tmp_path, f"{SERVER_PROPERTIES}broker.id=7\n").node_id == 7


def test_a_server_properties_file_of_kafka_is_accepted_unchanged(tmp_path: Path) -> None:
    config = from_file(tmp_path, SERVER_PROPERTIES)
    assert config.node_id == 7
    assert config.log_dirs == ["/data/a", "/data/b"]
    assert [found.port for found in config.listener_endpoints()] == [19092]
    assert [found.port for found in config.controller_endpoints()] == [9093]
    # With a file, the defaults are Kafka's and not those of the single-broker profile.
    assert config.offsets_topic_replication_factor == 3
    assert config.group_initial_rebalance_delay_ms == 3000


@pytest.mark.parametrize(
    ("line", "directory"),
    [
        (b"log.dirs=/data/\xe9", "/data/\xe9"),
        # Java's Properties.load reads two characters here, and Kafka created a directory with that name.
        ("log.dirs=/data/\xe9".encode(), "/data/\xc3\xa9"),
        (b"log.dirs=/data/\\u00e9", "/data/\xe9"),
        (b"# J\xe4nner\nlog.dirs=/data", "/data"),
    ],
)
def test_a_properties_file_is_read_in_javas_encoding(tmp_path: Path, line: bytes, directory: str) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(SERVER_PROPERTIES.encode() + line + b"\n")
    assert load(str(path), {}, {}).log_dirs == [directory]


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(SERVER_PROPERTIES + "num.partitions=2\ndefault.replication.factor=2\nbroker.rack=a\n")
    environ = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_BROKER_RACK": "b", "PATH": "/bin"}
    config = load(str(path), environ, {"num.partitions": "4"})
    assert (config.num_partitions, config.broker_rack, config.default_replication_factor) == (4, "b", 2)


def test_a_variable_without_a_kafka_key_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    load(None, {"KAFKA_NONSENSE": "1", "KAFKA_HEAP_OPTS": "-Xmx1g"}, {})
    assert [record.getMessage() for record in caplog.records] == [
        "[node 1] KAFKA_NONSENSE is ignored: Kafka has no configuration key nonsense"
    ]


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("num.partitions", "many", "Not a number of type INT"),
        ("num.partitions", "0", "Value must be at least 1"),
        ("num.partitions", "2147483648", "Not a number of type INT"),
        ("auto.create.topics.enable", "yes", "Expected value to be either true or false"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "Value must be no more than 1"),
        ("compression.type", "brotli", "String must be one of: uncompressed, zstd, lz4, snappy, gzip"),
        ("log.cleanup.policy", "compact,shred", "String must be one of: compact, delete"),
        ("listeners", "PLAINTEXT:9092", "expected NAME://host:port"),
        ("listeners", "PLAINTEXT://:99999", "the port must be a number from 0 to 65535"),
        ("listeners", "SSL://127.0.0.1:9092", "SSL"),
        ("listener.security.protocol.map", "PLAINTEXT", "expected NAME:PROTOCOL"),
        ("max.connections.per.ip.overrides", "here", "Error parsing configuration property"),
    ],
)
def test_the_error_for_an_invalid_value_contains_the_key_and_the_valid_values(
    key: str, value: str, error: str
) -> None:
    text = load_error({key: value})
    assert error in text
    assert key in text or value in text


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"process.roles": "broker"}, "If using process.roles, either"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable meta-address"),
        ({"advertised.listeners": "OTHER://h:9092"}, "which is not in listeners"),
        ({"controller.listener.names": "CONTROLLER"}, "CONTROLLER, which is not in listeners"),
        ({"inter.broker.listener.name": "INTERNAL"}, "set inter.broker.listener.name to one of PLAINTEXT"),
        ({"log.retention.ms": "0"}, "log.retention.ms must be unlimited (-1)"),
        ({"max.connections.per.ip": "0"}, "can be set to zero only if"),
        (
            {"group.consumer.assignors": "uniform,com.example.Best"},
            "com.example.Best, which is not supported",
        ),
        ({"replica.selector.class": "com.example.Best"}, "com.example.Best, which is not supported"),
        ({"group.consumer.assignors": ""}, "group.consumer.assignors is empty"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: dict[str, str], error: str) -> None:
    assert error in load_error(overrides)


def test_the_error_for_an_unknown_key_suggests_a_similar_key() -> None:
    assert load_error({"num.partition": "3"}) == (
        "num.partition is not a configuration key of Kafka; did you mean num.partitions?"
    )


def test_an_unknown_key_in_a_file_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = from_file(tmp_path, SERVER_PROPERTIES + "my.plugin.key=1\nnum.partition=3\n")
    assert config.num_partitions == 1
    assert caplog.messages == [
        "[node 7] File server.properties: my.plugin.key is not a configuration key of Kafka",
        "[node 7] File server.properties: num.partition is not a configuration key of Kafka; "
        "did you mean num.partitions?",
    ]


@pytest.mark.parametrize("missing", ["process.roles", "node.id"])
def test_a_file_without_a_required_key_is_refused(tmp_path: Path, missing: str) -> None:
    lines = [line for line in SERVER_PROPERTIES.splitlines() if not line.startswith(missing)]
    with pytest.raises(ConfigError, match=f'Missing required configuration "{missing}"'):
        from_file(tmp_path, "\n".join(lines))


def test_removed_keys_and_keys_without_effect_cause_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    text = SERVER_PROPERTIES + "zookeeper.connect=zk:2181\nnum.io.threads=4\nnum.partitions=2\n"
    from_file(tmp_path, text)
    assert [record.getMessage() for record in caplog.records] == [
        "[node 7] Configuration key num.io.threads is ignored: kwire does not support it",
        "[node 7] Configuration key zookeeper.connect is ignored: Kafka 4 removed this key",
    ]


def test_bootstrap_servers_of_a_dynamic_quorum_cause_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    text = SERVER_PROPERTIES.replace("quorum.voters=7@", "quorum.bootstrap.servers=")
    config = from_file(tmp_path, text)
    assert config.value("controller.quorum.bootstrap.servers") == ["localhost:9093"]
    assert not caplog.records
    for wrong in ("localhost", "localhost:", ":9093", "a:1,b"):
        assert "expected host:port" in load_error({"controller.quorum.bootstrap.servers": wrong})


def test_a_jaas_file_is_found_through_kafka_opts(tmp_path: Path) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'KafkaServer {{ {PLAIN_MODULE} required username="me" password="mine"; }};')
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }
    environ = {"KAFKA_OPTS": f"-Xlog:gc -Djava.security.auth.login.config={jaas} -Dx=y"}
    mechanism, context = load(None, environ, settings).peer_login("SASL_PLAINTEXT") or ("", None)
    assert context is not None
    assert (mechanism, context.username, context.password) == ("PLAIN", "me", "mine")
    assert "mine" not in repr(context)
    jaas.unlink()
    with pytest.raises(ConfigError, match="No such file or directory"):
        load(None, environ, settings)
    assert load(None, environ, {}).listener_sasl("PLAINTEXT") is None


PROTECTIONS = {
    "alter.config.policy.class.name": "com.example.Policy",
    "authorizer.class.name": "com.example.Authorizer",
    "client.quota.callback.class": "com.example.Quotas",
    "create.topic.policy.class.name": "com.example.Policy",
    "listener.name.plaintext.principal.builder.class": "com.example.Principals",
    "principal.builder.class": "com.example.Principals",
}


@pytest.mark.parametrize("name", PROTECTIONS)
def test_a_setting_that_asks_for_a_missing_protection_is_refused(name: str) -> None:
    with pytest.raises(
        Unprotected, match=f"does not restrict clients as these settings ask: {re.escape(name)}$"
    ):
        load(None, {}, {name: PROTECTIONS[name]})
    if not name.startswith("listener"):
        with pytest.raises(Unprotected, match=re.escape(name)):
            load(None, {f"KAFKA_{name.upper().replace('.', '_')}": PROTECTIONS[name]}, {})


def test_accepted_missing_protections_cause_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = load(None, {}, PROTECTIONS, accept_unprotected=True)
    assert not config.value("authorizer.class.name"), "DescribeConfigs would show a protection"
    assert caplog.messages == [
        f"[node 1] kwire does not restrict clients as these settings ask: {', '.join(PROTECTIONS)}"
    ]


def test_default_values_and_the_keys_of_an_authorizer_ask_for_no_protection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    defaults = {name: BROKER_KEYS[name].default or "" for name in PROTECTIONS if name in BROKER_KEYS}
    load(None, {}, {**defaults, "super.users": "User:admin", "allow.everyone.if.no.acl.found": "true"})
    from_file(tmp_path, SERVER_PROPERTIES + "super.users=User:admin\nauthorizer.class.name=\n")
    load(None, {"KAFKA_SUPER_USERS": "User:admin"}, {})
    assert caplog.messages == []
