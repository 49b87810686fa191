"""`KafkaContainer`, used as test suites use the class of testcontainers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kwire.broker.config import ConfigError
from kwire.testing.broker import Process
from kwire.testing.containers import KafkaContainer
from kwire.wire.messages.metadata import MetadataRequest
from tests.testing.peer import Peer


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by importing kafka-python
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


def test_container_uses_settings_and_cluster_id_but_not_paths_and_listeners(process: Process) -> None:
    cluster_id = "MkU3OEVBNTcwNTJENDM2Qg"
    environment = {"KAFKA_NUM_PARTITIONS": "2"}
    kafka = KafkaContainer("apache/kafka:4.3.1", port=9092, env=environment, process=process)
    kafka.with_env("KAFKA_LISTENERS", "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9094")
    kafka.with_env("KAFKA_LOG_DIRS", "/nowhere/kafka").with_envs(CLUSTER_ID="other").with_env("X", 1)
    kafka.with_cluster_id(cluster_id).with_name("kafka").with_exposed_ports(9092).with_kwargs(hostname="h")
    with kafka, Peer(kafka.broker) as peer:
        assert peer.request(MetadataRequest(topics=[]), 12).cluster_id == cluster_id
        kafka.broker.produce("made", "x")
        assert len(kafka.broker.end_offsets("made")) == 2


def test_settings_are_read_from_an_env_file(tmp_path: Path) -> None:
    path = tmp_path / "kafka.env"
    path.write_text("# of orders\n\nexport KAFKA_NUM_PARTITIONS='3'\nKAFKA_LOG_DIRS=/nowhere\n")
    with KafkaContainer().with_env_file(path) as kafka:
        kafka.reload()
        kafka.broker.produce("made", "x")
        assert len(kafka.broker.end_offsets("made")) == 3


def test_bind_ports_sets_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with KafkaContainer().with_bind_ports("9093/tcp", port) as kafka:
        assert kafka.get_exposed_port(9093) == port
        assert kafka.broker.topics() == []


def test_unsupported_container_features_are_refused_with_a_reason() -> None:
    kafka = KafkaContainer()
    with pytest.raises(NotImplementedError, match="with_network: there is no container"):
        kafka.with_network("of other containers")
    with pytest.raises(NotImplementedError, match="volumes: there is no container"):
        KafkaContainer(volumes=[("/a", "/b", "ro")])
    with pytest.raises(
        NotImplementedError,
        match=r"security_protocol='SSL': this listener is PLAINTEXT; use a kwire\.testing\.Broker: with tls=",
    ):
        KafkaContainer(security_protocol="SSL")
    with pytest.raises(AttributeError, match="with_zebras"):
        _ = kafka.with_zebras
    with pytest.raises(RuntimeError, match="the container is not running"):
        kafka.get_bootstrap_server()
    with pytest.raises(ValueError, match="port 80 is not exposed: use 9093"):
        kafka.get_exposed_port(80)
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        kafka.with_env("KAFKA_NUM_PARTITIONS", "many").start()
    assert kafka.status == "not_started"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "BROKER:PLAINTEXT,PLAINTEXT:SASL_SSL", "protocol SASL_SSL:"),
        (
            "KAFKA_SECURITY_INTER_BROKER_PROTOCOL",
            "SSL",
            "protocol SSL: this listener is PLAINTEXT; use a kwire.testing.Broker: with tls=",
        ),
    ],
)
def test_unsupported_security_settings_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        KafkaContainer().with_env(key, value).start()


def test_engine_arguments_are_refused_as_methods_are() -> None:
    with pytest.raises(NotImplementedError, match="network: there is no container"):
        KafkaContainer().with_kwargs(network="x")
    assert KafkaContainer().with_kwargs(mem_limit="1g").status == "not_started"
