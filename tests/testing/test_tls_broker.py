"""Brokers and clusters with TLS, with unmodified clients."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.client.errors import SecurityMismatch
from kwire.testing import Broker, ClientConfig, Cluster, Kafka, Tls
from kwire.testing.broker import Process
from kwire.testing.plugin import FEW_PARTITIONS
from kwire.testing.tls import Defect
from kwire.wire.java_properties import load
from kwire.wire.mechanisms import MECHANISMS

# Each test imports its clients: importing kafka-python calls deprecated functions of Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

pytest_plugins = ["pytester"]

USERS = {"alice": "alice-secret"}
DEFECTS: list[Defect] = ["expired", "foreign", "wrong-host"]


@pytest.fixture(scope="module", params=["none", "required"])
def broker(request: pytest.FixtureRequest, process: Process) -> Iterator[Broker]:
    with Broker(FEW_PARTITIONS, tls=Tls(request.param), process=process) as running:
        yield running


def values(kafka: Kafka, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in kafka.records(topic, count=count)]


def produce_with_each_client(login: ClientConfig, topic: str) -> None:
    """Produce a record with each of the stock clients and with kwire's own."""
    from aiokafka import AIOKafkaProducer
    from confluent_kafka import Producer
    from kafka import KafkaProducer

    by_kafka_python = KafkaProducer(**login.kafka_python)
    by_kafka_python.send(topic, b"kafka-python").get(10)
    by_kafka_python.close()
    by_confluent = Producer(login.confluent)
    by_confluent.produce(topic, b"confluent")
    assert by_confluent.flush(10) == 0

    async def produce() -> None:
        async with AIOKafkaProducer(**login.kafka_python) as producer:
            await producer.send_and_wait(topic, b"aiokafka")

    asyncio.run(produce())
    with Kafka(login.bootstrap_servers, properties=login.java) as kafka:
        kafka.produce(topic, "java")


PRODUCED = [b"kafka-python", b"confluent", b"aiokafka", b"java"]


def test_stock_clients_connect_over_tls(broker: Broker) -> None:
    topic = broker.new_topic()
    produce_with_each_client(broker.client_config(certificate="alice"), topic)
    assert values(broker, topic, 4) == PRODUCED
    assert broker.client_config().security_protocol == "SSL"


def test_plaintext_client_is_refused(broker: Broker) -> None:
    with Kafka(broker.bootstrap_servers, timeout_s=5) as kafka, pytest.raises((SecurityMismatch, OSError)):
        kafka.topics()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_users_authenticate_over_tls(process: Process, mechanism: str) -> None:
    with Broker(FEW_PARTITIONS, users=USERS, tls=True, process=process) as broker:
        topic, login = broker.new_topic(), broker.client_config("alice", mechanism)
        assert login.security_protocol == "SASL_SSL"
        produce_with_each_client(login, topic)
        assert values(broker, topic, 4) == PRODUCED
        with Kafka(login.bootstrap_servers, properties=broker.create_token().java) as kafka:
            assert values(kafka, topic, 4) == PRODUCED


@pytest.mark.parametrize("defect", DEFECTS)
def test_clients_refuse_a_broker_with_a_defect(process: Process, defect: Defect) -> None:
    from confluent_kafka import Producer

    with Broker(FEW_PARTITIONS, tls=Tls(defect=defect), process=process) as broker:
        topic = broker.new_topic()
        broker.produce(topic, "first")
        assert values(broker, topic, 1) == [b"first"], "the methods of the broker do not need its certificate"
        login = broker.client_config()
        with (
            Kafka(login.bootstrap_servers, properties=login.java) as kafka,
            pytest.raises(SecurityMismatch, match="certificate"),
        ):
            kafka.topics()
        errors: list[Any] = []
        producer = Producer({**login.confluent, "error_cb": errors.append, "log_level": 0})
        while not errors:
            producer.poll(0.1)
        assert "certificate verify failed" in str(errors[0])


@pytest.mark.parametrize("defect", [None, "expired", "foreign"])
def test_broker_refuses_clients_without_a_valid_certificate(process: Process, defect: Defect | None) -> None:
    with Broker(FEW_PARTITIONS, tls=Tls("required"), process=process) as broker:
        login = broker.client_config(certificate=None if defect is None else "alice", defect=defect)
        with (
            Kafka(login.bootstrap_servers, properties=login.java, timeout_s=5) as kafka,
            pytest.raises((SecurityMismatch, OSError)),
        ):
            kafka.topics()
        accepted = broker.client_config(certificate="alice", defect="wrong-host")
        with Kafka(accepted.bootstrap_servers, properties=accepted.java) as kafka:
            assert kafka.topics() == [], "brokers do not check the host names of clients"


def test_broker_keeps_its_certificates_after_a_crash(process: Process) -> None:
    with Broker(FEW_PARTITIONS, tls=True, process=process) as broker:
        topic, login = broker.new_topic(), broker.client_config()
        broker.crash()
        broker.start()
        with Kafka(login.bootstrap_servers, properties=login.java) as kafka:
            kafka.produce(topic, "after the crash")
        assert values(broker, topic, 1) == [b"after the crash"]


@pytest.mark.parametrize("tls", [True, Tls("required"), Tls(defect="foreign")])
@pytest.mark.parametrize("users", [None, USERS])
def test_cluster_serves_clients_over_tls(tls: bool | Tls, users: dict[str, str] | None) -> None:
    with Cluster(tls=tls, users=users) as cluster:
        topic = cluster.new_topic(partitions=3)
        cluster.produce(topic, "first")
        leader = cluster.leader(topic)
        login = leader.client_config(certificate="alice")
        assert login.security_protocol == ("SSL" if users is None else "SASL_SSL")
        with Kafka(cluster.bootstrap_servers, properties=login.java) as kafka:
            if isinstance(tls, Tls) and tls.defect is not None:
                with pytest.raises(SecurityMismatch, match="not trusted"):
                    kafka.topics()
            else:
                kafka.produce(topic, "second")
                assert values(leader, topic, 2) == [b"first", b"second"]
        assert cluster.lag("no-such-group", topic) >= 1


def test_marks_configure_tls(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # an installed kwire would load the plugin twice
    pytester.makepyfile(
        """
        import pytest
        from kwire.testing import Tls

        @pytest.mark.kwire_broker(tls=True)
        def test_broker(kwire_broker):
            assert kwire_broker.client_config().security_protocol == "SSL"
            kwire_broker.produce("orders", "first")

        @pytest.mark.kwire_cluster(tls=Tls("required"), size=1)
        def test_cluster(kwire_cluster):
            assert kwire_cluster.client_config(certificate="a").security_protocol == "SSL"
            kwire_cluster.new_topic("orders")

        @pytest.mark.kwire_broker(tls="required")
        def test_wrong_argument(kwire_broker):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "kwire.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["tls is True, or Tls(client_auth='required'), not 'required'"])


def test_settings_of_kwire_certs_start_a_broker(tmp_path: Path) -> None:
    kwire = [sys.executable, "-m", "kwire"]
    printed = subprocess.run(
        [*kwire, "certs", "tls", "--client", "alice", "--host", "127.0.0.1"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    server, alice = (f"#{text}" for text in printed.split("\n# ")[1:])
    settings = {**load(server), "listeners": "SSL://127.0.0.1:0,CONTROLLER://127.0.0.1:0"}
    command = [*kwire, "serve", "--data", "data"]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            found = re.search(r"serves on (127.0.0.1:\d+)", broker.stdout.readline())
            assert found is not None
            with Kafka(found[1], properties=load(alice)) as kafka:
                kafka.produce("orders", "first")
                assert values(kafka, "orders", 1) == [b"first"]
        finally:
            broker.terminate()
        assert broker.wait(30) == 0
