"""Brokers with ACLs: the rights of clients and of super users, and the report of denied requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kwire.client.users import set_password
from kwire.testing import SUPER_USER, Acl, Broker, ClientConfig, Cluster, Denial, Kafka, Tls
from kwire.testing.broker import Process
from kwire.testing.containers import KafkaContainer
from kwire.testing.denials import MAX_DENIALS, Denials
from kwire.wire.errors import ApiError, ErrorCode

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
READS = Acl.allow("bob", "READ", topic="orders")
WRITES = Acl.allow("alice", "WRITE", topic="orders")


def as_client(login: ClientConfig) -> Kafka:
    return Kafka(login.bootstrap_servers, timeout_s=5, properties=login.java)


def is_denied(call: Callable[[], object]) -> bool:
    try:
        call()
    except ApiError as error:
        return error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return False


def test_each_user_may_do_what_the_acls_allow(process: Process) -> None:
    with Broker(users=USERS, acls=[WRITES, READS], process=process) as broker:
        broker.create_topic("orders")
        broker.create_topic("secrets")
        alice, bob = (as_client(broker.client_config(user)) for user in USERS)
        with alice, bob:
            alice.produce("orders", "first")
            assert [one.value for one in bob.records("orders")] == [b"first"]
            assert broker.denials() == []
            assert is_denied(lambda: alice.records("orders"))
            assert is_denied(lambda: bob.produce("orders", "second"))
            assert is_denied(lambda: bob.records("secrets"))
            assert alice.topics() == ["orders"]
        missing = [
            Acl.allow("alice", "READ", topic="orders"),
            Acl.allow("bob", "WRITE", topic="orders"),
            Acl.allow("bob", "DESCRIBE", topic="secrets"),
        ]
        apis = ["Fetch", "Produce", "Metadata"]
        assert broker.denials() == [
            Denial(api, "kwire.testing", acl) for api, acl in zip(apis, missing, strict=True)
        ], "a list of all topics is not a denied request"
        broker.set_acls([*missing])
        with as_client(broker.client_config("bob")) as bob:
            bob.produce("orders", "second")
            assert is_denied(lambda: bob.records("orders"))


def test_a_start_resets_the_acls_and_a_restart_keeps_them(process: Process, tmp_path: Path) -> None:
    acls = [Acl.allow("alice", "ALL", topic="ord", prefixed=True)]
    broker = Broker(users=USERS, acls=acls, process=process, log_dir=tmp_path)

    def is_alice_denied() -> bool:
        with as_client(broker.client_config("alice")) as alice:
            return is_denied(lambda: alice.produce("orders", "x"))

    with broker:
        broker.create_topic("orders")
        assert not is_alice_denied()
        broker.set_acls([*acls, Acl.deny("*", "WRITE", topic="orders")])
        assert is_alice_denied()
        broker.restart()
        assert is_alice_denied()
        broker.crash()
        broker.start()
        assert is_alice_denied()
        [denial] = broker.denials()
        assert denial.denied_by == Acl.deny("*", "WRITE", topic="orders")
        assert str(denial).endswith(
            "User:alice was denied WRITE on topic orders; Acl.deny('*', 'WRITE', topic='orders') denies it"
        )
    with broker:
        assert not is_alice_denied()


def test_the_super_user_changes_acls_with_stock_clients() -> None:
    from confluent_kafka import admin as kafka_admin

    with Broker(users=USERS, acls=[]) as broker:
        assert broker.client_config().username == "alice", "the first user has no rights of its own"
        broker.create_topic("orders")
        client: Any = kafka_admin.AdminClient(broker.client_config(SUPER_USER).confluent)
        binding = kafka_admin.AclBinding(
            kafka_admin.ResourceType.TOPIC,
            "orders",
            kafka_admin.ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            kafka_admin.AclOperation.WRITE,
            kafka_admin.AclPermissionType.ALLOW,
        )
        with as_client(broker.client_config()) as alice:
            assert is_denied(lambda: alice.produce("orders", "x"))
            for created in client.create_acls([binding]).values():
                created.result(10)
            alice.produce("orders", "x")
        token = broker.create_token("alice")
        with as_client(token) as alice:
            alice.produce("orders", "x")


def test_only_operations_for_which_a_client_asked_are_denied_requests() -> None:
    from confluent_kafka import Consumer, KafkaException
    from confluent_kafka import admin as kafka_admin

    acls = [Acl.allow("alice", operation, topic="own") for operation in ("CREATE", "DESCRIBE")]
    acls.append(Acl.allow("alice", "WRITE", topic="orders"))
    with Broker({"offsets.topic.num.partitions": 1}, users=USERS, acls=acls) as broker:
        broker.create_topic("others")
        consumer = Consumer({**broker.client_config(SUPER_USER).confluent, "group.id": "others"})
        consumer.subscribe(["others"])
        broker.wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment())
        client: Any = kafka_admin.AdminClient(broker.client_config("alice").confluent)
        assert not client.list_consumer_groups().result(10).valid
        assert "others" not in client.list_topics(timeout=10).topics
        with as_client(broker.client_config("alice")) as alice:
            alice.create_topic("own")  # the response would contain the configuration
        assert broker.denials() == []
        with pytest.raises(KafkaException, match="Authorization failed"):
            client.create_topics([kafka_admin.NewTopic("foreign", 1, 1)])["foreign"].result(10)
        with as_client(broker.client_config("alice")) as alice:
            assert is_denied(lambda: alice.produce("orders", "x"))
        consumer.close()
        assert [denial.missing for denial in broker.denials()] == [
            Acl.allow("alice", "CREATE", topic="foreign"),
            Acl.allow("alice", "CREATE", topic="orders"),
        ]


def test_acls_name_the_certificates_of_clients() -> None:
    acls = [Acl.allow("CN=billing", "WRITE", topic="orders")]
    with Broker(tls=Tls(client_auth="required"), acls=acls) as broker:
        broker.create_topic("orders")
        with as_client(broker.client_config(certificate="billing")) as billing:
            billing.produce("orders", "x")
        with as_client(broker.client_config(certificate="other")) as other:
            assert is_denied(lambda: other.produce("orders", "x"))
        with as_client(broker.client_config(certificate=SUPER_USER)) as admin:
            assert len(admin.records("orders")) == 1


def test_super_users_of_the_configuration_are_added() -> None:
    with Broker({"super.users": "User:bob"}, users=USERS, acls=[]) as broker:
        with as_client(broker.client_config("bob")) as bob:
            bob.create_topic("orders")
        assert broker.topics() == ["orders"]


def test_all_brokers_of_a_cluster_apply_the_acls() -> None:
    with Cluster(users=USERS, acls=[WRITES]) as cluster:
        cluster.create_topic("orders", partitions=3)
        with as_client(cluster.client_config("alice")) as alice:
            for partition in range(3):
                alice.produce("orders", "x", partition=partition)
                assert is_denied(lambda number=partition: alice.records("orders", partition=number))  # type: ignore[misc]
            assert all(broker.denials() for broker in cluster.brokers.values())
            cluster.brokers[2].set_acls([Acl.allow("alice", "READ", topic="*")])
            for partition in range(3):
                assert len(alice.records("orders", partition=partition)) == 1
                assert is_denied(lambda number=partition: alice.produce("orders", "x", partition=number))  # type: ignore[misc]


def test_a_broker_that_is_down_does_not_delay_acls() -> None:
    with Cluster(users=USERS, acls=[], timeout_s=20) as cluster:
        cluster.create_topic("orders")
        cluster.brokers[3].crash()
        cluster.set_acls([WRITES])
        cluster.brokers[3].start()
        cluster.move_leader("orders", 3)
        with as_client(cluster.client_config("alice")) as alice:
            alice.produce("orders", "x")


def test_a_container_has_an_authorizer() -> None:
    container = KafkaContainer().with_envs(
        KAFKA_AUTHORIZER_CLASS_NAME="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        KAFKA_SUPER_USERS="User:admin",
    )
    with container, Kafka(container.get_bootstrap_server(), timeout_s=1) as kafka:
        assert is_denied(lambda: kafka.create_topic("orders"))
    container.with_env("KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND", "true")
    with container, Kafka(container.get_bootstrap_server()) as kafka:
        kafka.create_topic("orders")


@pytest.mark.parametrize(
    ("code", "acl"),
    [
        ("Acl.allow('alice', 'READ', topic='*')", Acl.allow("User:alice", "READ", topic="*")),
        (
            "Acl.deny('*', 'WRITE', transactional_id='bill-', prefixed=True, host='10.0.0.1')",
            Acl.deny("*", "WRITE", transactional_id="bill-", prefixed=True, host="10.0.0.1"),
        ),
        ("Acl.allow('CN=a', 'ALTER', cluster=True)", Acl.allow("CN=a", "ALTER", cluster=True)),
        ("Acl.allow('a', 'ALL', group='g')", Acl.allow("a", "ALL", group="g")),
        (
            "Acl.allow('a', 'DESCRIBE', delegation_token='t')",
            Acl.allow("a", "DESCRIBE", delegation_token="t"),
        ),
        (
            "Acl.allow('a', 'CREATE_TOKENS', user_principal='User:b')",
            Acl.allow("a", "CREATE_TOKENS", user_principal="b"),
        ),
    ],
)
def test_the_text_of_an_acl_is_the_call_that_creates_it(code: str, acl: Acl) -> None:
    assert repr(acl) == code
    assert eval(code, {"Acl": Acl}) == acl


@pytest.mark.parametrize(
    ("error", "sentence", "call"),
    [
        (
            ValueError,
            "acls need clients with names: pass users={'alice': 'alice-secret'} or "
            "tls=Tls(client_auth='required'), too",
            lambda: Broker(acls=[]),
        ),
        (ValueError, "acls need clients with names: pass users=", lambda: Cluster(acls=[], tls=True)),
        (
            TypeError,
            "acls are a list, such as [Acl.allow('alice', 'READ', topic='*')], not Acl.allow('bob', 'READ', "
            "topic='orders')",
            lambda: Broker(acls=READS, users=USERS),  # type: ignore[arg-type]
        ),
        (
            TypeError,
            "acls are made by Acl.allow and Acl.deny, not 'alice'",
            lambda: Broker(acls=["alice"], users=USERS),  # type: ignore[list-item]
        ),
        (
            LookupError,
            "there is no authorizer: pass acls=[] to the broker or cluster",
            lambda: Broker(users=USERS).set_acls([]),
        ),
        (
            ValueError,
            "Acl.allow('alise', 'READ', topic='orders'): there is no user 'alise': use one of 'a",
            lambda: Broker(users=USERS, acls=[Acl.allow("alise", "READ", topic="orders")]),
        ),
        (
            ValueError,
            "there is no operation 'read': use one of ALL, ALTER,",
            lambda: Acl.allow("alice", "read", topic="x"),  # type: ignore[arg-type]
        ),
        (
            ValueError,
            "CREATE has no effect on a group: use one of ALL, READ, DESCRIBE, DELETE, DESCRIBE_CONFIGS, ALT",
            lambda: Acl.allow("alice", "CREATE", group="x"),
        ),
        (
            TypeError,
            "an ACL has one resource: pass topic=, group=, transactional_id=, cluster=True, "
            "delegation_token= or user_principal=, not 2 of them",
            lambda: Acl.allow("alice", "READ", topic="x", group="x"),
        ),
        (
            TypeError,
            "an ACL has one resource: pass topic=, ",
            lambda: Acl.deny("alice", "READ", cluster=False),
        ),
        (
            TypeError,
            "users, resources and hosts of ACLs are str that are not empty, not ''",
            lambda: Acl.allow("alice", "READ", topic=""),
        ),
    ],
)
def test_wrong_arguments_are_explained(
    error: type[Exception], sentence: str, call: Callable[[], object]
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(sentence)


def test_acls_can_be_set_for_users_that_a_client_has_created() -> None:
    acls = [Acl.allow(user, "READ", topic="orders") for user in ("carol", "*", SUPER_USER)]
    with Broker(users=USERS, acls=[]) as broker:
        with pytest.raises(ValueError, match="there is no user 'carol'"):
            broker.set_acls(acls)
        broker._call(lambda client: set_password(client._cluster, "carol", "secret", "SCRAM-SHA-256"))
        broker.set_acls(acls)


@pytest.mark.parametrize(
    ("api", "missing", "solution"),
    [
        (
            "Metadata",
            Acl.allow("alice", "DESCRIBE", topic="orders"),
            "on topic orders; allow it with Acl.allow('alice', 'WRITE', topic='orders') or "
            "Acl.allow('alice', 'READ', topic='orders'): WRITE and READ imply DESCRIBE",
        ),
        (
            "FindCoordinator",
            Acl.allow("alice", "DESCRIBE", group="g"),
            "on group g; allow it with Acl.allow('alice', 'READ', group='g'): READ implies DESCRIBE",
        ),
        (
            "DescribeGroups",
            Acl.allow("alice", "DESCRIBE", group="g"),
            "on group g; allow it with Acl.allow('alice', 'DESCRIBE', group='g')",
        ),
        (
            "InitProducerId",
            Acl.allow("alice", "IDEMPOTENT_WRITE", cluster=True),
            "on the cluster; WRITE on the topic is enough: allow it with "
            "Acl.allow('alice', 'WRITE', topic='NAME')",
        ),
    ],
)
def test_denials_suggest_what_the_client_needs_next(api: str, missing: Acl, solution: str) -> None:
    assert str(Denial(api, "billing", missing)) == (
        f"{api} from billing: User:alice was denied {missing.operation} {solution}"
    )


def test_the_number_of_denials_is_limited() -> None:
    from types import SimpleNamespace

    from kwire.broker.security.authorizer import Operation, ResourceType
    from kwire.broker.security.principal import Principal
    from kwire.broker.security.standard_authorizer import DEFAULT_DENY

    denials = Denials()
    context: Any = SimpleNamespace(
        header=SimpleNamespace(api_key=0, client_id=None), principal=Principal("User", "alice")
    )
    for number in range(MAX_DENIALS + 10):
        for _ in range(2):
            denials.record(context, Operation.WRITE, ResourceType.TOPIC, f"t{number}", DEFAULT_DENY)
    found = denials.find()
    assert len(found) == MAX_DENIALS
    assert found[-1].missing.resource_name == f"t{MAX_DENIALS + 9}"
    assert str(found[0]) == (
        "Produce from (no client id): User:alice was denied WRITE on topic t10; "
        "allow it with Acl.allow('alice', 'WRITE', topic='t10')"
    )
