"""Brokers that require SASL authentication, with unmodified clients and advanced time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.client.errors import SecurityMismatch
from kwire.testing import Broker, ClientConfig, Kafka
from kwire.testing.broker import Process
from kwire.testing.cluster import Cluster
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.mechanisms import MECHANISMS

# Each test imports its clients: importing kafka-python calls deprecated functions of Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

USERS = {"alice": "alice-secret", 'bo "b\\': "'\\n; ü\""}
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@pytest.fixture(scope="module")
def shared(process: Process) -> Iterator[Broker]:
    with Broker({"offsets.topic.num.partitions": 1}, users=USERS, process=process) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    shared.requests.clear()
    yield shared
    shared.faults.clear()


def as_client(login: ClientConfig, timeout_s: float = 10) -> Kafka:
    return Kafka(login.bootstrap_servers, timeout_s=timeout_s, properties=login.java)


def values(broker: Kafka, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in broker.records(topic, count=count)]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_stock_clients_authenticate_with_each_mechanism(broker: Broker, mechanism: str, user: str) -> None:
    from aiokafka import AIOKafkaProducer
    from confluent_kafka import Producer
    from kafka import KafkaProducer

    topic, login = broker.new_topic(), broker.client_config(user, mechanism)
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
    with as_client(login) as kafka:
        assert values(kafka, topic, 3) == [b"kafka-python", b"confluent", b"aiokafka"]


def test_clients_without_valid_credentials_are_refused(broker: Broker) -> None:
    with (
        Kafka(broker.bootstrap_servers) as nobody,
        pytest.raises(SecurityMismatch, match="requires authentication with"),
    ):
        nobody.topics()
    for mechanism in MECHANISMS:
        login = broker.client_config("alice", mechanism)._replace(password="guessed")
        with as_client(login) as kafka, pytest.raises(ApiError, match="SASL_AUTHENTICATION_FAILED"):
            kafka.topics()


def test_recorded_requests_hide_passwords(broker: Broker) -> None:
    from confluent_kafka import Producer

    for mechanism in MECHANISMS:
        producer = Producer(broker.client_config(mechanism=mechanism).confluent)
        producer.produce("orders", b"x")
        assert producer.flush(10) == 0
    exchanges = broker.requests.find("SaslAuthenticate")
    assert len(exchanges) >= len(MECHANISMS)
    output = f"{broker.requests} {[one.request for one in exchanges]} {[one.response for one in exchanges]}"
    assert "[hidden]" in output
    assert "alice-secret" not in output


def test_injected_authentication_failure_is_retried_by_the_client(broker: Broker) -> None:
    from confluent_kafka import Producer

    fault = broker.faults.return_error("SaslAuthenticate", "SASL_AUTHENTICATION_FAILED")
    producer = Producer(broker.client_config(mechanism="SCRAM-SHA-512").confluent)
    producer.produce("orders", b"x")
    assert producer.flush(10) == 0
    assert fault.hits == 1, "the client has retried"


def test_delegation_token_expires(process: Process) -> None:
    with Broker(users=USERS, process=process) as broker:
        topic = broker.new_topic()
        login = broker.create_token(max_lifetime_ms=MINUTE_MS)
        with as_client(login) as kafka:
            kafka.produce(topic, "in time")
            [token] = broker.tokens()
            assert (token.id, token.password, token.owner) == (login.username, login.password, "alice")
            broker.advance(MINUTE_MS + 1)
            with pytest.raises(ApiError, match="DELEGATION_TOKEN_EXPIRED"):
                kafka.produce(topic, "too late")
        assert broker.tokens() == [token], "the controller removes expired tokens once an hour"
        broker.advance(HOUR_MS)
        assert broker.tokens() == []
        with as_client(login) as kafka, pytest.raises(ApiError, match="SASL_AUTHENTICATION_FAILED"):
            kafka.produce(topic, "much too late")
        assert values(broker, topic, 1) == [b"in time"]


def test_client_reauthenticates_after_max_reauth_ms(process: Process) -> None:
    from confluent_kafka import Producer

    config = {"connections.max.reauth.ms": MINUTE_MS}
    with Broker(config, users=USERS, process=process) as broker:
        producer = Producer({**broker.client_config().confluent, "enable.idempotence": True})

        def produce() -> int:
            producer.produce("orders", b"x")
            assert producer.flush(10) == 0
            return len(broker.requests.find("SaslAuthenticate"))

        before = produce()
        assert produce() == before
        broker.advance(MINUTE_MS + 1)
        assert produce() > before
        assert len(values(broker, "orders", 3)) == 3


def test_users_survive_a_crash_and_accept_new_passwords(tmp_path: Path, process: Process) -> None:
    with Broker(users=USERS, log_dir=tmp_path, process=process) as broker:
        broker.produce("orders", "one")
        broker.crash()
        broker.start()
        with as_client(broker.client_config("alice", "SCRAM-SHA-256")) as kafka:
            kafka.produce("orders", "two")
    with Broker(users={"alice": "changed"}, log_dir=tmp_path, process=process) as broker:
        login = broker.client_config("alice", "SCRAM-SHA-256")
        with as_client(login) as kafka:
            assert values(kafka, "orders", 2) == [b"one", b"two"]
        with as_client(login._replace(password="alice-secret")) as kafka, pytest.raises(ApiError) as raised:
            kafka.topics()
        assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        for mechanism in MECHANISMS:
            removed_user = login._replace(username=list(USERS)[1], password=list(USERS.values())[1])
            with (
                as_client(removed_user._replace(mechanism=mechanism)) as kafka,
                pytest.raises(ApiError) as raised,
            ):
                kafka.topics()
            assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED, mechanism


def test_users_of_a_cluster_authenticate_with_every_broker() -> None:
    with Cluster(users=USERS, timeout_s=60) as cluster:
        topic = cluster.new_topic()
        token = cluster.create_token("alice")
        logins = [*(cluster.client_config(mechanism=one) for one in MECHANISMS), token]
        for broker in cluster.brokers.values():
            for login in logins:
                servers = broker.bootstrap_servers
                assert servers in cluster.bootstrap_servers
                with as_client(login._replace(bootstrap_servers=servers), 60) as kafka:
                    kafka.produce(topic, "x")
        leader = cluster.leader(topic)
        leader.crash()
        cluster.produce(topic, "after")
        leader.start()
        assert len(values(leader, topic, 13)) == 13


def test_invalid_users_are_refused_with_a_reason() -> None:
    for users, message in (
        ({}, "pass at least one name"),
        ({"a": ""}, "needs a name and a password"),
        ({"": "a"}, "needs a name and a password"),
        ({"zoë": "a"}, "'zoë': SCRAM supports only ASCII names"),
        ({"a\0": "a"}, "names and passwords cannot contain NUL"),
        ({"a": "\0"}, "names and passwords cannot contain NUL"),
    ):
        with pytest.raises(ValueError, match=message):
            Broker(users=users)
    with pytest.raises(ValueError, match="pass either users or listeners"):
        Broker({"listeners": "PLAINTEXT://:0"}, users=USERS)
    for wrong in ({"a": 1}, ["a"], []):
        with pytest.raises(TypeError, match="map names to passwords"):
            Cluster(users=wrong)  # type: ignore[arg-type]
    with Broker() as broker, pytest.raises(LookupError, match=r"there are no users: pass .* or tls=True"):
        broker.client_config()


def test_unknown_user_mechanism_or_token_client_raises(broker: Broker) -> None:
    with pytest.raises(LookupError, match="no user 'carol': use one of alice"):
        broker.client_config("carol")
    with pytest.raises(LookupError, match="no mechanism 'GSSAPI': use one of PLAIN"):
        broker.client_config(mechanism="GSSAPI")
    token = broker.create_token()
    for stock in ("kafka_python", "confluent"):
        with pytest.raises(ValueError, match="do not support delegation tokens"):
            getattr(token, stock)
