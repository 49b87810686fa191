"""The table of docs/security.md: each task can be done with its ACLs, and not without one of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import confluent_kafka as confluent
import confluent_kafka.admin as kafka_admin
import pytest

from kwire.testing import Acl, Broker, Kafka, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "security.md"
USER = "alice"
ONE = confluent.TopicPartition("orders", 0, 1)
WAIT_S = 6.0
DENIED = re.compile(
    "authorization failed|AUTHORIZATION_FAILED|AuthorizationFailed"
    "|No leaders found|topic not available|waited"  # for clients, a topic without DESCRIBE does not exist
    "|is not in the list",
    re.IGNORECASE,
)

Task = Callable[[Broker], object]


def config(broker: Broker, **settings: object) -> dict[str, Any]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return {**broker.client_config(USER).confluent, "log_level": 0, **given}


def produce(idempotent: bool) -> Task:
    def task(broker: Broker) -> None:
        producer = confluent.Producer(config(broker, enable_idempotence=idempotent))
        _produce(producer)

    return task


def _produce(producer: confluent.Producer, topic: str = "orders") -> None:
    errors: list[Any] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    if errors[0] is not None:
        raise confluent.KafkaException(errors[0])


def transaction(broker: Broker, *, group: str = "", topic: str = "orders") -> None:
    producer = confluent.Producer(config(broker, transactional_id="billing"))
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    _produce(producer, topic)
    if group:
        with closing(confluent.Consumer(config(broker, group_id=group))) as consumer:
            metadata = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([ONE], metadata, WAIT_S)
    producer.commit_transaction(WAIT_S)


def process(broker: Broker) -> None:
    transaction(broker, group="billing", topic="bills")


def consume(protocol: str, subscription: str) -> Task:
    def task(broker: Broker) -> None:
        settings = config(broker, group_id="billing", auto_offset_reset="earliest", group_protocol=protocol)
        with closing(confluent.Consumer(settings)) as consumer:
            consumer.subscribe([subscription])
            consumer.commit(message=_poll(consumer), asynchronous=False)

    return task


def assign(broker: Broker) -> None:
    settings = config(broker, group_id="billing", enable_auto_commit=False)
    with closing(confluent.Consumer(settings)) as consumer:
        consumer.assign([confluent.TopicPartition("orders", 0)])  # from the committed offset
        _poll(consumer)


def _poll(consumer: confluent.Consumer) -> Any:
    message = wait_until(lambda: consumer.poll(0.1), timeout_s=WAIT_S)
    assert message is not None
    if message.error() is not None:
        raise confluent.KafkaException(message.error())
    return message


def kafka_python(group: str | None) -> Task:
    def task(broker: Broker) -> None:
        from kafka import KafkaConsumer

        login = broker.client_config(USER).kafka_python
        consumer = KafkaConsumer(group_id=group, auto_offset_reset="earliest", **login)
        with closing(consumer):
            consumer.subscribe(["orders"])
            if not consumer.poll(3_000):
                raise TimeoutError("waited for the topic")
            if group is not None:
                consumer.commit()

    return task


def admin(call: Callable[[Any], Any]) -> Task:
    def task(broker: Broker) -> None:
        client = kafka_admin.AdminClient(config(broker))  # its end would cancel the requests
        futures = call(client)
        for future in futures.values() if isinstance(futures, dict) else [futures]:
            result = future.result(WAIT_S)
            for one in getattr(result, "topic_partitions", None) or ():
                if one.error is not None:
                    raise confluent.KafkaException(one.error)

    return task


def altered(kind: Any, name: str, key: str, value: str) -> Task:
    entry = kafka_admin.ConfigEntry(key, value, incremental_operation=kafka_admin.AlterConfigOpType.SET)
    resource = kafka_admin.ConfigResource(kind, name, incremental_configs=[entry])
    return admin(lambda client: client.incremental_alter_configs([resource]))


def by_kwire(call: Callable[[Kafka], object]) -> Task:
    def task(broker: Broker) -> None:
        login = broker.client_config(USER)
        with Kafka(login.bootstrap_servers, properties=login.java) as kafka:
            call(kafka)

    return task


def list_users(kafka: Kafka) -> None:
    from kwire.client.users import describe_credentials

    kafka._call(lambda client: describe_credentials(client._cluster))


def set_password(kafka: Kafka) -> None:
    from kwire.client.users import set_password as alter

    kafka._call(lambda client: alter(client._cluster, "bob", "secret", "SCRAM-SHA-256"))


def admin_python(call: Callable[[Any], Any]) -> Task:
    """Return a call of kafka-python's admin client. It returns the errors of items as classes or objects."""

    def task(broker: Broker) -> None:
        from kafka import KafkaAdminClient
        from kafka.errors import NoError

        with closing(KafkaAdminClient(**broker.client_config(USER).kafka_python)) as client:
            found = call(client)
        for one in found.values() if isinstance(found, dict) else ():
            if isinstance(one, str) and "AUTHORIZATION" in one.upper():
                raise PermissionError(one)
            if isinstance(one, type) and issubclass(one, Exception) and one is not NoError:
                raise one

    return task


def command(*words: str, shows: str = "") -> Task:
    """Return a `kwire` command, and the text that its output must have."""

    def task(broker: Broker) -> None:
        with TemporaryDirectory() as directory:
            path = Path(directory, "client.properties")
            path.write_text(broker.client_config(USER).java_properties)
            ran = subprocess.run(
                [sys.executable, "-m", "kwire", *words, "--command-config", str(path)],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        if ran.returncode:
            raise RuntimeError(ran.stderr)
        if shows not in ran.stdout:
            raise LookupError(f"{shows} is not in the list: {ran.stdout}")

    return task


def reassign(client: Any) -> Any:
    from kafka import TopicPartition

    return client.alter_partition_reassignments({TopicPartition("orders", 0): [1]})


def move_replica(broker: Broker) -> None:
    command("logs", "move", "orders", "--partition=0", "--broker=1", f"--to={broker.log_dir}")(broker)


def list_acls(broker: Broker) -> None:
    """Use kafka-python: librdkafka 2.16 ignores the error of the response."""
    from kafka import KafkaAdminClient
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePatternFilter,
        ResourceType,
    )

    resources = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    with closing(KafkaAdminClient(**broker.client_config(USER).kafka_python)) as client:
        client.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, resources))


TOPIC, BROKER = kafka_admin.ConfigResource.Type.TOPIC, kafka_admin.ConfigResource.Type.BROKER
latest: Any = kafka_admin.OffsetSpec.latest
BINDING = kafka_admin.AclBinding(
    kafka_admin.ResourceType.TOPIC,
    "x",
    kafka_admin.ResourcePatternType.LITERAL,
    "User:bob",
    "*",
    kafka_admin.AclOperation.READ,
    kafka_admin.AclPermissionType.ALLOW,
)


def of_group(*partitions: Any) -> list[Any]:
    return [confluent.ConsumerGroupTopicPartitions("billing", list(partitions) or None)]


TASKS: list[tuple[str, dict[str, Task]]] = [
    ("Produce, also", {"plain": produce(False), "idempotent": produce(True)}),
    ("Produce in transactions", {"confluent": transaction}),
    ("Consume, process", {"confluent": process}),
    (
        "Consume in a group",
        {
            "classic": consume("classic", "orders"),
            "classic regex": consume("classic", "^ord.*"),
            "consumer": consume("consumer", "orders"),
            "consumer regex": consume("consumer", "^ord.*"),
            "kafka-python": kafka_python("billing"),
        },
    ),
    ("Consume without", {"kafka-python": kafka_python(None)}),
    ("Consume assigned", {"confluent": assign}),
    (
        "Create topics",
        {
            "admin": admin(lambda client: client.create_topics([kafka_admin.NewTopic("new", 1, 1)])),
        },
    ),
    (
        "Add partitions",
        {"admin": admin(lambda client: client.create_partitions([kafka_admin.NewPartitions("orders", 2)]))},
    ),
    (
        "Delete topics",
        {
            "topics": admin(lambda client: client.delete_topics(["orders"])),
            "records": admin(lambda client: client.delete_records([ONE])),
        },
    ),
    (
        "Describe topics",
        {
            "topics": admin(lambda client: client.describe_topics(confluent.TopicCollection(["orders"]))),
            "offsets": admin(lambda client: client.list_offsets({ONE: latest()})),
        },
    ),
    (
        "Describe the configurations of topics",
        {
            "admin": admin(
                lambda client: client.describe_configs([kafka_admin.ConfigResource(TOPIC, "orders")])
            )
        },
    ),
    ("Change the configurations of topics", {"admin": altered(TOPIC, "orders", "retention.ms", "9000000")}),
    (
        "Describe the configurations of brokers",
        {
            "brokers": admin(
                lambda client: client.describe_configs([kafka_admin.ConfigResource(BROKER, "1")])
            ),
            "loggers": command("configs", "describe", "logger", "1", "--all", shows="kafka.authorizer"),
            "client metrics": command("configs", "describe", "client-metrics", "all", "--all"),
        },
    ),
    (
        "Change the configurations of brokers",
        {
            "brokers": altered(BROKER, "1", "log.cleaner.threads", "2"),
            "loggers": command("configs", "alter", "logger", "1", "--set", "kafka.authorizer.logger=INFO"),
            "client metrics": command(
                "configs", "alter", "client-metrics", "all", "--set", "interval.ms=1000"
            ),
        },
    ),
    ("Describe groups", {"admin": admin(lambda client: client.describe_consumer_groups(["billing"]))}),
    (
        "Describe the committed",
        {"lag": by_kwire(lambda kafka: kafka.lag("billing", "orders"))},
    ),
    (
        "Change the committed",
        {"admin": admin(lambda client: client.alter_consumer_group_offsets(of_group(ONE)))},
    ),
    (
        "Delete the committed",
        {
            "command": command(
                *("groups", "delete-offsets", "billing", "--topic", "orders", "--execute"), shows="orders"
            )
        },
    ),
    ("Delete groups", {"admin": admin(lambda client: client.delete_consumer_groups(["billing"]))}),
    (
        "Describe the configurations of groups",
        {"command": command("configs", "describe", "group", "billing", "--all", shows="session")},
    ),
    (
        "Change the configurations of groups",
        {
            "command": command(
                *("configs", "alter", "group", "billing", "--set", "consumer.session.timeout.ms=50000")
            )
        },
    ),
    (
        "Describe the active producers",
        {"command": command("transactions", "producers", "orders")},
    ),
    (
        "List or describe transactions",
        {
            "list": command("transactions", "list", shows="billing"),
            "describe": command("transactions", "describe", "billing", shows="billing"),
        },
    ),
    ("Terminate", {"command": command("transactions", "terminate", "billing")}),
    (
        "Describe log directories",
        {
            "directories": command("logs", "list", shows="1"),
            "quorum": admin_python(lambda client: client.describe_metadata_quorum()),
            "reassignments": admin_python(lambda client: client.list_partition_reassignments()),
        },
    ),
    (
        "Reassign partitions",
        {
            "reassign": admin_python(reassign),
            "elect": admin_python(lambda client: client.elect_leaders(0, {"orders": [0]}, raise_errors=True)),
            "move": move_replica,
            "features": admin_python(
                lambda client: client.update_features({"group.version": 1}, validate_only=True)
            ),
        },
    ),
    (
        "List the delegation tokens",
        {"command": command("tokens", "list", shows="bob")},
    ),
    ("Create delegation tokens", {"command": command("tokens", "create", "--owner", "bob")}),
    (
        "List ACLs",
        {
            "acls": list_acls,
            "users": by_kwire(list_users),
        },
    ),
    (
        "Change ACLs",
        {"acls": admin(lambda client: client.create_acls([BINDING])), "users": by_kwire(set_password)},
    ),
]


def row_of(task: str) -> str:
    """Return the ACLs of a row of the page's table."""
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {task}")]
    return row.split("|")[2]


def acls_of(row: str) -> list[list[Acl]]:
    """Return the sets of ACLs that a row describes. Each of them suffices."""
    names = {
        "topic": "orders",
        "group": "billing",
        "transactional_id": "billing",
        "delegation_token": "*",
        "user": "bob",
    }
    found = []
    for each in row.split(", or "):
        acls = []
        for operation, resource, output in re.findall(
            r"([A-Z_]+) on the (topic|group|transactional id|cluster|delegation token|user)( of the output)?",
            each,
        ):
            kind = resource.replace(" ", "_")
            given: dict[str, Any] = {kind: True if kind == "cluster" else names[kind]}
            if output:
                given[kind] = "bills"
            if operation == "CREATE" and kind == "topic":
                given[kind] = "new"
            if kind == "user":
                given = {"user_principal": names[kind]}
            acls.append(Acl.allow(USER, operation, **given))
        found.append(acls)
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    few = {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.heartbeat.interval.ms": 100,
    }
    with Broker(few, users={USER: "alice-secret", "bob": "bob-secret"}, acls=[]) as broker:
        broker.create_topic("bills")
        broker.create_token("bob")
        producer = confluent.Producer(
            {**broker.client_config("kwire-testing").confluent, "transactional.id": "billing"}
        )
        producer.init_transactions(WAIT_S)
        yield broker


def attempt(broker: Broker, task: Task, acls: list[Acl]) -> str:
    """Return the text of the error with which a task failed, or an empty text."""
    admin_client = kafka_admin.AdminClient(broker.client_config("kwire-testing").confluent)
    if "new" in broker.topics():
        admin_client.delete_topics(["new"])["new"].result(WAIT_S)
    if "orders" not in broker.topics():
        broker.create_topic("orders")
    broker.produce("orders", "first", "second")
    admin_client.alter_consumer_group_offsets(of_group(ONE))["billing"].result(WAIT_S)
    broker.set_acls(acls)
    try:
        task(broker)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("row", "name"), [(row, name) for row, tasks in TASKS for name in tasks], ids=lambda value: str(value)
)
def test_a_task_needs_exactly_the_acls_of_its_row(broker: Broker, row: str, name: str) -> None:
    task = dict(TASKS)[row][name]
    for acls in acls_of(row_of(row)):
        assert acls
        assert not attempt(broker, task, acls), broker.denials()
        for missing in acls:
            error = attempt(broker, task, [acl for acl in acls if acl is not missing])
            assert DENIED.search(error), f"without {missing}: {error or 'no error'}"


def test_a_producer_that_creates_its_topic_needs_create(broker: Broker) -> None:
    write, create = Acl.allow(USER, "WRITE", topic="new"), Acl.allow(USER, "CREATE", topic="new")
    task = by_kwire(lambda kafka: kafka.produce("new", "x"))
    assert not attempt(broker, task, [write, create])
    assert DENIED.search(attempt(broker, task, [write]))


def test_each_row_is_tested() -> None:
    table = PAGE.read_text().partition("### What a program needs")[2].partition("\n\n- **Idempotent")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "| ACLs |" not in line]
    assert [row for row, _ in TASKS] == [
        next(task for task, _ in TASKS if row.startswith(f"| {task}")) for row in rows
    ]
