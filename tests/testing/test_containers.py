"""`KafkaContainer` and `RedpandaContainer`, used as test suites use the classes of testcontainers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any, assert_type

import pytest

from kwire.broker.config import ConfigError
from kwire.testing.acl import Acl
from kwire.testing.broker import Broker, Process
from kwire.testing.containers import CLUSTER_ID, KafkaContainer, RedpandaContainer
from kwire.testing.embedded_container import EmbeddedContainer
from kwire.testing.kafka import Kafka
from kwire.testing.tls import Tls
from kwire.testing.users import ClientConfig
from kwire.wire.messages.metadata import MetadataRequest
from tests.testing.peer import Peer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by importing kafka-python
PASSWORDS = "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice='alice-secret';"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def produce_with(config: ClientConfig) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(**config.kafka_python)
    producer.send("orders", b"first").get(10)
    producer.close()


def produce_or_fail(config: ClientConfig) -> None:
    with Kafka(config.bootstrap_servers, timeout_s=5, properties=config.java) as program:
        program.produce("orders", "first")


def cluster_id_of(kafka: EmbeddedContainer) -> str | None:
    with Peer(kafka.broker) as peer:
        cluster_id: str | None = peer.request(MetadataRequest(topics=[]), 12).cluster_id
        return cluster_id


def test_client_connects_to_the_bootstrap_server() -> None:
    from kafka import KafkaConsumer, KafkaProducer

    with KafkaContainer().with_kraft() as kafka:
        address = kafka.get_bootstrap_server()
        assert address == f"{kafka.get_container_host_ip()}:{kafka.get_exposed_port(9093)}"
        producer = KafkaProducer(bootstrap_servers=address)
        producer.send("test", b"hello").get(10)
        producer.close()
        consumer = KafkaConsumer("test", bootstrap_servers=address, auto_offset_reset="earliest")
        assert next(consumer).value == b"hello"
        consumer.close()
        assert kafka.status == "running"
        assert kafka.broker.topics() == ["test"]
    assert kafka.status == "not_started"


def test_group_member_in_a_thread_receives_json_of_several_topics() -> None:
    from kafka import KafkaConsumer, KafkaProducer

    received: list[tuple[str, Any]] = []
    with KafkaContainer(port=9888) as kafka:
        assert kafka.port == 9888
        address = kafka.get_bootstrap_server()
        producer = KafkaProducer(bootstrap_servers=address, value_serializer=lambda v: json.dumps(v).encode())
        consumer = KafkaConsumer(
            bootstrap_servers=address,
            value_deserializer=lambda value: json.loads(value or b"null"),
            auto_offset_reset="earliest",
            group_id="billing",
        )
        consumer.subscribe(["payments", "refunds"])

        def consume() -> None:
            received.extend((message.topic, message.value) for message in islice(consumer, 2))

        thread = Thread(target=consume)
        thread.start()
        for topic in ("payments", "refunds"):
            producer.send(topic, {"id": topic}).get(10)
        thread.join(30)
        assert sorted(received) == [("payments", {"id": "payments"}), ("refunds", {"id": "refunds"})]
        assert consumer.partitions_for_topic("payments") == {0}
        producer.close()
        consumer.close()


def test_redpanda_creates_topics_and_reads_from_the_beginning() -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

    with RedpandaContainer(image="docker.redpanda.com/redpandadata/redpanda:v25.3.6") as redpanda:
        address = redpanda.get_bootstrap_server()
        assert address == f"127.0.0.1:{redpanda.get_exposed_port(redpanda.redpanda_port)}"
        admin = KafkaAdminClient(bootstrap_servers=[address])
        admin.create_topics([NewTopic("orders", 1, 1)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=[address])
        producer.send("orders", b"first").get(10)
        producer.close()
        consumer = KafkaConsumer(bootstrap_servers=[address])
        partition = TopicPartition("orders", 0)
        consumer.assign([partition])
        consumer.seek_to_beginning()
        assert next(consumer).value == b"first"
        assert consumer.end_offsets([partition]) == {partition: 1}
        consumer.close()


def test_container_starts_and_stops_in_a_running_event_loop() -> None:
    from aiokafka import AIOKafkaProducer

    async def produce() -> None:
        with KafkaContainer() as kafka:
            async with AIOKafkaProducer(bootstrap_servers=kafka.get_bootstrap_server()) as producer:
                await producer.send_and_wait("orders", b"first")
            assert [one.value for one in await kafka.broker.aio.records("orders", count=1)] == [b"first"]
        redpanda = RedpandaContainer()
        redpanda.start()
        redpanda.stop()
        assert redpanda.status == "not_started"

    asyncio.run(produce())


def test_container_uses_settings_and_cluster_id_but_not_paths_and_listeners(process: Process) -> None:
    cluster_id = "MkU3OEVBNTcwNTJENDM2Qg"
    environment = {"KAFKA_NUM_PARTITIONS": "2"}
    kafka = KafkaContainer("apache/kafka:4.3.1", port=9092, env=environment, process=process)
    kafka.with_env("KAFKA_LISTENERS", "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9094")
    kafka.with_env("KAFKA_LOG_DIRS", "/nowhere/kafka").with_envs(CLUSTER_ID="other").with_env("X", 1)
    kafka.with_cluster_id(cluster_id).with_name("kafka").with_exposed_ports(9092).with_kwargs(hostname="h")
    kafka.with_tmpfs_mount("/var/lib/kafka/data")
    with kafka:
        assert cluster_id_of(kafka) == cluster_id == kafka.cluster_id
        kafka.broker.produce("made", "x")
        assert len(kafka.broker.end_offsets("made")) == 2


@pytest.mark.parametrize("variable", ["KAFKA_NODE_ID", "KAFKA_BROKER_ID"])
def test_container_uses_the_node_id(variable: str) -> None:
    with KafkaContainer().with_env(variable, 0) as kafka, Peer(kafka.broker) as peer:
        assert [one.node_id for one in peer.request(MetadataRequest(topics=[]), 12).brokers] == [0]


def test_with_kraft_sets_the_cluster_id_of_testcontainers() -> None:
    with KafkaContainer().with_kraft() as kafka:
        assert cluster_id_of(kafka) == CLUSTER_ID == kafka.cluster_id
    with KafkaContainer() as kafka:
        assert cluster_id_of(kafka) != CLUSTER_ID


def test_settings_are_read_from_an_env_file(tmp_path: Path) -> None:
    path = tmp_path / "kafka.env"
    path.write_text("# of orders\n\nexport KAFKA_NUM_PARTITIONS='3'\nKAFKA_LOG_DIRS=/nowhere\n")
    with KafkaContainer().with_env_file(path) as kafka:
        kafka.reload()
        kafka.broker.produce("made", "x")
        assert len(kafka.broker.end_offsets("made")) == 3


def test_subclass_sets_configs_when_the_container_starts() -> None:
    class OrdersContainer(KafkaContainer):
        def configure(self) -> None:
            super().configure()
            self.with_env("KAFKA_NUM_PARTITIONS", "4")

    with OrdersContainer() as kafka:
        kafka.broker.produce("made", "x")
        assert len(kafka.broker.end_offsets("made")) == 4


def test_started_container_can_be_entered() -> None:
    with KafkaContainer().start() as kafka:
        broker = kafka.broker
        assert kafka.start().broker is broker, "the running broker stays"
    assert not broker.is_running


@pytest.mark.parametrize("users", [None, {"alice": "alice-secret"}], ids=["plaintext", "users"])
def test_bind_ports_sets_the_port(process: Process, users: dict[str, str] | None) -> None:
    port = free_port()
    with KafkaContainer(users=users, process=process).with_bind_ports("9093/tcp", port) as kafka:
        assert kafka.get_exposed_port(9093) == port
        assert kafka.get_bootstrap_server() == f"127.0.0.1:{port}"
        assert kafka.broker.topics() == []


@pytest.mark.parametrize(
    "configure",
    [
        lambda: KafkaContainer(security_protocol="SASL_PLAINTEXT", users={"alice": "alice-secret"}),
        lambda: KafkaContainer(security_protocol="SASL_PLAINTEXT").with_env(
            "KAFKA_LISTENER_NAME_PLAINTEXT_PLAIN_SASL_JAAS_CONFIG", PASSWORDS
        ),
        lambda: (
            KafkaContainer(listener_name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT")
            .with_env("KAFKA_LISTENER_NAME_SASL__PLAINTEXT_PLAIN_SASL_JAAS_CONFIG", PASSWORDS)
            .with_env("KAFKA_SASL_ENABLED_MECHANISMS", "PLAIN")
            .with_env("KAFKA_SASL_MECHANISM_INTER_BROKER_PROTOCOL", "PLAIN")
        ),
        lambda: (
            KafkaContainer()
            .with_env("KAFKA_LISTENERS", "EXTERNAL://0.0.0.0:9093,BROKER://0.0.0.0:9092")
            .with_env("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "BROKER:PLAINTEXT,EXTERNAL:SASL_PLAINTEXT")
            .with_env("KAFKA_LISTENER_NAME_EXTERNAL_PLAIN_SASL_JAAS_CONFIG", PASSWORDS)
            .with_env("KAFKA_SASL_ENABLED_MECHANISMS", "SCRAM-SHA-512")
        ),
        lambda: RedpandaContainer(users={"alice": "alice-secret"}),
    ],
    ids=["argument", "variable", "listener-name", "listeners", "redpanda"],
)
def test_clients_authenticate_with_the_users_of_the_container(
    configure: Callable[[], EmbeddedContainer],
) -> None:
    with configure() as kafka:
        config = kafka.broker.client_config("alice")
        assert (config.security_protocol, config.password) == ("SASL_PLAINTEXT", "alice-secret")
        assert config.bootstrap_servers == kafka.get_bootstrap_server()
        produce_with(config)
        assert kafka.broker.end_offsets("orders") == {0: 1}


def test_only_the_enabled_mechanism_authenticates() -> None:
    kafka = KafkaContainer(users={"alice": "alice-secret"}).with_env("KAFKA_SASL_ENABLED_MECHANISMS", "PLAIN")
    with kafka, pytest.raises(Exception, match=r"does not support sasl\.mechanism=SCRAM-SHA-256, but PLAIN"):
        produce_or_fail(kafka.broker.client_config("alice", "SCRAM-SHA-256"))


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_clients_connect_over_tls(protocol: str) -> None:
    users = {"alice": "alice-secret"} if protocol == "SASL_SSL" else None
    with KafkaContainer(security_protocol=protocol, users=users) as kafka:
        config = kafka.broker.client_config()
        assert config.security_protocol == protocol
        produce_with(config)
        assert kafka.broker.end_offsets("orders") == {0: 1}


def test_client_auth_requires_certificates_of_clients() -> None:
    kafka = KafkaContainer(security_protocol="SSL").with_env("KAFKA_SSL_CLIENT_AUTH", "required")
    with kafka:
        produce_with(kafka.broker.client_config(certificate="alice"))
        with pytest.raises(Exception, match="certificate"):
            produce_or_fail(kafka.broker.client_config())
    with RedpandaContainer(tls=Tls(client_auth="required")) as redpanda:
        produce_with(redpanda.broker.client_config(certificate="alice"))


@pytest.mark.parametrize(
    "authorizer",
    [
        "kafka.security.authorizer.AclAuthorizer",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    ],
)
def test_authorizer_permits_only_super_users(authorizer: str) -> None:
    kafka = KafkaContainer(users={"admin": "admin-secret", "bob": "bob-secret"})
    kafka.with_env("KAFKA_AUTHORIZER_CLASS_NAME", authorizer).with_env("KAFKA_SUPER_USERS", "User:admin")
    with kafka:
        produce_with(kafka.broker.client_config("admin"))
        with pytest.raises(Exception, match="AUTHORIZATION_FAILED"):
            produce_or_fail(kafka.broker.client_config("bob"))
        assert {denial.missing.principal for denial in kafka.broker.denials()} == {"User:bob"}


def test_acls_permit_what_they_name() -> None:
    acls = [Acl.allow("bob", "WRITE", topic="orders"), Acl.allow("bob", "CREATE", topic="orders")]
    with RedpandaContainer(users={"bob": "bob-secret"}, acls=acls) as redpanda:
        produce_with(redpanda.broker.client_config("bob"))
        assert redpanda.broker.end_offsets("orders") == {0: 1}


@pytest.mark.parametrize(
    ("variable", "value", "error", "message"),
    [
        ("KAFKA_NUM_PARTITIONS", "many", ConfigError, r"num\.partitions"),
        (
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
            "BROKER:PLAINTEXT,PLAINTEXT:SASL_SSL",
            ValueError,
            r"protocol SASL_SSL needs users: pass users=\{'alice': 'alice-secret'\}, or set "
            r"KAFKA_LISTENER_NAME_PLAINTEXT_PLAIN_SASL_JAAS_CONFIG",
        ),
        (
            "KAFKA_LISTENERS",
            "SASL_PLAINTEXT://0.0.0.0:9093",
            ValueError,
            "KAFKA_LISTENER_NAME_SASL__PLAINTEXT_PLAIN_SASL_JAAS_CONFIG",
        ),
        (
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
            "PLAINTEXT:KERBEROS",
            ValueError,
            "'KERBEROS': use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
    ],
)
def test_invalid_settings_fail_at_the_start(
    variable: str, value: str, error: type[Exception], message: str
) -> None:
    kafka = KafkaContainer().with_env(variable, value)
    with pytest.raises(error, match=message):
        kafka.start()
    assert kafka.status == "not_started"


@pytest.mark.parametrize(
    "variable",
    [
        "KAFKA_SSL_KEYSTORE_FILENAME",
        "KAFKA_SSL_KEY_PASSWORD",
        "KAFKA_LISTENER_NAME_SSL_SSL_TRUSTSTORE_LOCATION",
    ],
)
def test_certificates_of_the_suite_are_refused(variable: str) -> None:
    kafka = KafkaContainer(security_protocol="SSL").with_env(variable, "kafka.jks")
    with pytest.raises(NotImplementedError, match=r"makes its own certificates.*`broker\.client_config\(\)`"):
        kafka.start()


CONTAINER_METHODS: dict[str, tuple[Callable[[KafkaContainer], object], str]] = {
    "copy_from_container": (lambda kafka: kafka.copy_from_container("/a", Path("b")), "log_dir"),
    "copy_into_container": (lambda kafka: kafka.copy_into_container(b"", "/a"), "broker.produce"),
    "create_file": (lambda kafka: kafka.create_file(b"", "/a"), "with_env"),
    "exec": (lambda kafka: kafka.exec("kafka-topics --list"), "broker.create_topic"),
    "get_container_id": (lambda kafka: kafka.get_container_id(), "`broker`"),
    "get_container_info": (lambda kafka: kafka.get_container_info(), "status"),
    "get_docker_client": (lambda kafka: kafka.get_docker_client(), "`broker`"),
    "get_logs": (lambda kafka: kafka.get_logs(), "caplog"),
    "get_wrapped_container": (lambda kafka: kafka.get_wrapped_container(), "broker.crash"),
    "tc_start": (lambda kafka: kafka.tc_start(), "configure"),
    "wait": (lambda kafka: kafka.wait(), "broker.is_running"),
    "with_command": (lambda kafka: kafka.with_command("run"), "with_env"),
    "with_copy_into_container": (lambda kafka: kafka.with_copy_into_container(b"", "/a"), "with_env"),
    "with_network": (lambda kafka: kafka.with_network("of others"), "image of kwire"),
    "with_network_aliases": (lambda kafka: kafka.with_network_aliases("kafka"), "image of kwire"),
    "with_tmpfs_mount": (lambda kafka: kafka.with_tmpfs_mount("/a", "1m"), "broker.fill_disk"),
    "with_volume_mapping": (lambda kafka: kafka.with_volume_mapping("/a", "/b"), "log_dir"),
}


@pytest.mark.parametrize("name", CONTAINER_METHODS)
def test_methods_of_containers_name_their_replacement(name: str) -> None:
    call, replacement = CONTAINER_METHODS[name]
    with pytest.raises(NotImplementedError, match=rf"{name}.*: there is no container: .*{replacement}"):
        call(KafkaContainer())


def test_engine_arguments_are_refused_as_methods_are() -> None:
    with pytest.raises(NotImplementedError, match="network: there is no container"):
        KafkaContainer().with_kwargs(network="x")
    with pytest.raises(NotImplementedError, match=r"volumes: there is no container: .*log_dir"):
        KafkaContainer(volumes=[("/a", "/b", "ro")])
    with pytest.raises(NotImplementedError, match="command: there is no container"):
        RedpandaContainer(command="start")
    with pytest.raises(ValueError, match="Use `port` instead of `port_to_expose`"):
        KafkaContainer(port_to_expose=9092)
    assert (
        KafkaContainer(hostname="kafka", mem_limit="1g").with_kwargs(mem_limit="1g").status == "not_started"
    )


def test_only_the_port_for_clients_is_exposed() -> None:
    kafka = KafkaContainer(ports=[9101])
    with pytest.raises(RuntimeError, match="the container is not running"):
        kafka.get_bootstrap_server()
    with pytest.raises(ValueError, match="port 9101 is not exposed: use 9093"):
        kafka.get_exposed_port(9101)
    with pytest.raises(ValueError, match="a port is a number"):
        kafka.with_bind_ports("kafka", 9092)


def test_schema_registry_is_refused_with_its_replacement() -> None:
    redpanda = RedpandaContainer()
    refused = r'kwire has no schema registry: .*SchemaRegistryClient\.new_client\({"url": "mock://"}\)'
    with pytest.raises(NotImplementedError, match=refused):
        redpanda.get_schema_registry_address()
    with pytest.raises(NotImplementedError, match=refused):
        redpanda.get_exposed_port(redpanda.schema_registry_port)

    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    registry.register_schema("orders-value", Schema('{"type": "string"}', "AVRO"))
    assert registry.get_subjects() == ["orders-value"]


def test_types_are_those_of_testcontainers() -> None:
    kafka = KafkaContainer().with_kraft().with_env("KAFKA_NUM_PARTITIONS", "1").with_bind_ports(9093, None)
    assert_type(kafka, KafkaContainer)
    with kafka as started:
        assert_type(started, KafkaContainer)
        assert_type(started.get_bootstrap_server(), str)
        assert_type(started.get_exposed_port(9093), int)
        assert_type(started.broker, Broker)
    redpanda = RedpandaContainer().with_name("redpanda")
    assert_type(redpanda, RedpandaContainer)
    with pytest.raises(NotImplementedError):
        assert_type(redpanda.get_schema_registry_address(), str)
    with pytest.raises(NotImplementedError):
        assert_type(kafka.exec("kafka-topics --list").output, bytes)
    with pytest.raises(NotImplementedError):
        assert_type(kafka.get_logs(), tuple[bytes, bytes])
    with pytest.raises(NotImplementedError):
        assert_type(kafka.with_network("of others").with_network_aliases("kafka"), KafkaContainer)
