"""Client libraries with SASL: topics, records and groups with each mechanism, and a wrong password.

Each scenario starts its own broker. In some scenarios, a session lasts for three seconds. A client that runs
longer must authenticate again (KIP-368) or use a new connection.
"""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka.errors
import kafka.errors
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from interop.brokers import Broker
from interop.sasl import PLAIN, SCRAM_256, SCRAM_512, USERS, Secured, add_scram_users, secured
from interop.scenario import scenario
from interop.tools import TOOLS, a_file, run
from interop.workload import records

MECHANISMS = (PLAIN, SCRAM_256, SCRAM_512)
SESSION_MS = 3_000
WAIT_S = 30.0
COUNT = 30


def with_each_mechanism(like: Broker, observe: Callable[[Secured, str], Any], **settings: str) -> Any:
    """Start a broker of the same kind as `like` with all mechanisms. Return an observation per mechanism.

    `settings` are broker configurations, with underscores instead of dots.
    """
    overrides = {key.replace("_", "."): value for key, value in settings.items()}
    with secured(like, MECHANISMS, overrides) as one:
        add_scram_users(one)
        return {mechanism: observe(one, mechanism) for mechanism in MECHANISMS}


def python_client_config(one: Secured, mechanism: str, password: str = USERS["alice"]) -> dict[str, Any]:
    """Return the configuration of a kafka-python or aiokafka client."""
    return {
        "bootstrap_servers": one.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


def librdkafka_config(one: Secured, mechanism: str, password: str = USERS["alice"]) -> Any:
    return {
        "bootstrap.servers": one.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


@scenario(seconds=180)
def kafka_python(broker: Broker) -> Any:
    def observe(one: Secured, mechanism: str) -> Any:
        login = python_client_config(one, mechanism)
        topic = f"kafka-python-{mechanism}"
        admin = KafkaAdminClient(**login)
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        admin.close()
        producer = KafkaProducer(**login)
        for sent in records(COUNT):
            producer.send(topic, sent.value, sent.key)
        producer.flush()
        producer.close()
        consumer = KafkaConsumer(
            topic, **login, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000
        )
        taken = [next(consumer).value for _ in range(COUNT)]
        consumer.commit()
        consumer.close()
        try:
            # The client logs the reason, and raises only a timeout.
            KafkaAdminClient(**python_client_config(one, mechanism, "guessed"), bootstrap_timeout_ms=3_000)
            refused = "accepted"
        except kafka.errors.KafkaError as error:
            refused = type(error).__name__
        return [taken, refused]

    return with_each_mechanism(broker, observe)


@scenario(seconds=180)
def aio_kafka(broker: Broker) -> Any:
    async def work(one: Secured, mechanism: str) -> Any:
        login = python_client_config(one, mechanism)
        topic = f"aiokafka-{mechanism}"
        admin = AIOKafkaAdminClient(**login)
        await admin.start()
        await admin.create_topics([AioNewTopic(topic, 1, 1)])
        await admin.close()
        producer = AIOKafkaProducer(**login)
        await producer.start()
        for sent in records(COUNT):
            await producer.send_and_wait(topic, sent.value, sent.key)
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, **login, group_id=topic, auto_offset_reset="earliest")
        await consumer.start()
        taken = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(COUNT)]
        await consumer.commit()
        await consumer.stop()
        intruder = AIOKafkaProducer(**python_client_config(one, mechanism, "guessed"))
        try:
            await intruder.start()
            refused = "accepted"
        except aiokafka.errors.KafkaError as error:
            refused = type(error).__name__
        finally:
            await intruder.stop()
        return [taken, refused]

    return with_each_mechanism(broker, lambda one, mechanism: asyncio.run(work(one, mechanism)))


@scenario(seconds=180)
def confluent_kafka(broker: Broker) -> Any:
    """Produce and consume, with a pause that is longer than the session lifetime."""

    def observe(one: Secured, mechanism: str) -> Any:
        login = librdkafka_config(one, mechanism)
        topic = f"confluent-{mechanism}"
        admin = AdminClient(login)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
        failures: list[int] = []

        def note(error: KafkaError) -> None:
            failures.append(error.code())

        producer = Producer({**login, "linger.ms": 5, "error_cb": note})
        consumer = Consumer({**login, "group.id": topic, "auto.offset.reset": "earliest", "error_cb": note})
        consumer.subscribe([topic])
        taken: list[bytes | None] = []
        for pause_s in (0.0, SESSION_MS / 1000 + 0.5):
            time.sleep(pause_s)
            for sent in records(COUNT):
                producer.produce(topic, sent.value, sent.key)
            assert producer.flush(WAIT_S) == 0
            until = time.monotonic() + WAIT_S
            wanted = len(taken) + COUNT
            while len(taken) < wanted and time.monotonic() < until:
                message = consumer.poll(0.2)
                if message is not None and not message.error():
                    taken.append(message.value())
        consumer.close()
        return [
            taken,
            sorted(set(failures)),
            _first_authentication_error(librdkafka_config(one, mechanism, "guessed")),
        ]

    return with_each_mechanism(broker, observe, connections_max_reauth_ms=str(SESSION_MS))


def _first_authentication_error(login: dict[str, Any]) -> list[str]:
    """Return the name and the broker's message of the first error that librdkafka reports."""
    errors: list[KafkaError] = []
    settings: Any = {**login, "error_cb": errors.append, "log_level": 0}
    client = AdminClient(settings)
    until = time.monotonic() + 10
    while not errors and time.monotonic() < until:
        client.poll(0.1)
    assert errors, "librdkafka reported no error"
    text = errors[0].str()
    return [errors[0].name(), text.partition("SASL authentication error: ")[2].partition(" (after")[0]]


@scenario(seconds=240)
def java(broker: Broker) -> Any:
    """Run the console producer. Run a console consumer in a group for longer than two session lifetimes."""

    def observe(one: Secured, mechanism: str) -> Any:
        topic = f"java-{mechanism}"
        with (
            a_file(java_client_config(mechanism)) as config,
            a_file(java_client_config(mechanism, "guessed")) as wrong,
        ):
            at = ("--bootstrap-server", one.bootstrap)
            created = run(
                f"{TOOLS}.TopicCommand", *at, "--command-config", config, "--create", "--topic", topic
            )
            lines = "".join(f"{number}\n" for number in range(COUNT))
            produced = run(
                f"{TOOLS}.ConsoleProducer", *at, "--command-config", config, "--topic", topic, stdin=lines
            )
            consumed = run(
                f"{TOOLS}.consumer.ConsoleConsumer",
                *(*at, "--command-config", config, "--topic", topic, "--group", topic, "--from-beginning"),
                *("--timeout-ms", str(2 * SESSION_MS + 1_000)),
            )
            refused = run(f"{TOOLS}.TopicCommand", *at, "--command-config", wrong, "--list")
        output = f"{refused.stdout}\n{refused.stderr}"
        errors = [line.partition("SaslAuthenticationException: ")[2] for line in output.splitlines()]
        return {
            "made": created.status,
            "produced": [produced.status, "uthentication" in produced.stderr],
            "consumed": [consumed.stdout.split(), "uthentication" in consumed.stderr],
            "refused": [refused.status, next(filter(None, errors), "")],
        }

    return with_each_mechanism(broker, observe, connections_max_reauth_ms=str(SESSION_MS))


def java_client_config(mechanism: str, password: str = USERS["alice"]) -> str:
    """Return the properties of a Java client."""
    package = "plain.PlainLoginModule" if mechanism == PLAIN else "scram.ScramLoginModule"
    return (
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{package} required "
        f'username="alice" password="{password}";\n'
    )
