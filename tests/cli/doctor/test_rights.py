"""`kwire doctor`: explained decisions, ACLs without effect, and super users."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kwire.broker.config.authorizer import STANDARD_AUTHORIZER
from kwire.broker.security.acl import WILDCARD, Acl, PatternType, Permission
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.cli.doctor.rights import MAX_FINDINGS, acl_findings
from kwire.testing import Broker
from tests.cli.run_command import RunCommand

AUTHORIZER = f"authorizer.class.name={STANDARD_AUTHORIZER}"
SUPER_USERS = "super.users=User:admin"
ACL = Acl(
    ResourceType.TOPIC,
    "orders",
    PatternType.LITERAL,
    Operation.READ,
    "User:alice",
    WILDCARD,
    Permission.ALLOW,
)
READ_ORDERS = ("--operation", "Read", "--topic", "orders")
READ = "READ on topic orders by User"
ADD = "→ kwire acls add --allow-principal User"

Doctor = Callable[..., list[str]]


@pytest.fixture
def doctor(offline: RunCommand, tmp_path: Path) -> Doctor:
    """Return a function that runs the doctor, and returns its findings about ACLs, with their fixes."""

    def run(*arguments: str, settings: tuple[str, ...] = (AUTHORIZER, SUPER_USERS)) -> list[str]:
        given = [word for one in settings for word in ("--set", one)]
        result = offline("doctor", "--data", str(tmp_path / "data"), *given, "--json", *arguments)
        return [
            f"{row['severity']}: {row['message']}{' → ' if row['fix'] else ''}{row['fix'] or ''}"
            for row in json.loads(result.out)
            if row["area"] == "ACLs"
        ]

    return run


@pytest.fixture
def change_acls(offline: RunCommand, tmp_path: Path) -> Callable[..., None]:
    """Return a function that runs actions of `kwire acls` on a broker with the doctor's data directory."""

    def run(*actions: str) -> None:
        settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
        with Broker(settings, log_dir=tmp_path / "data") as broker:
            for action in actions:
                ran = offline("acls", *action.split(), "--bootstrap-server", broker.bootstrap_servers)
                assert ran.status == 0, ran.err

    return run


def test_decisions_are_explained(doctor: Doctor, change_acls: Callable[..., None]) -> None:
    change_acls(
        "add --allow-principal User:alice --allow-principal User:bob --topic orders --operation Read",
        "add --deny-principal User:bob --topic ord --resource-pattern-type prefixed",
        "add --allow-principal User:carol --topic orders --operation All --allow-host 10.0.0.1",
    )
    assert doctor("--principal", "User:alice", *READ_ORDERS) == [
        "ok: 4 ACLs, 1 super user",
        f"ok: {READ}:alice is allowed: the ACL ALLOW User:alice READ on topic orders decides",
    ]
    assert doctor("--principal", "bob", *READ_ORDERS)[1:] == [
        f"warning: {READ}:bob is denied: the ACL DENY User:bob ALL on topic prefix ord decides "
        "→ remove this ACL: a DENY ACL takes precedence over all ALLOW ACLs"
    ]
    assert doctor("--principal", "carol", *READ_ORDERS)[1:] == [
        f"warning: {READ}:carol is denied: the resource has ACLs, but none that allows this "
        f"{ADD}:carol --operation Read --topic orders",
        f"ok: {READ}:carol from 10.0.0.1 is allowed: the ACL ALLOW User:carol ALL on topic orders "
        "from 10.0.0.1 decides",
    ]
    assert len(doctor("--principal", "carol", *READ_ORDERS, "--host", "10.0.0.1")[1:]) == 1
    assert doctor("--principal", "admin", *READ_ORDERS)[1:] == [
        f"ok: {READ}:admin is allowed: User:admin is in super.users"
    ]
    alter = ("--operation", "alter", "--cluster", "--principal", "User:alice")
    assert doctor(*alter)[1:] == [
        "warning: ALTER on the cluster by User:alice is denied: the resource has no ACL, and "
        f"allow.everyone.if.no.acl.found is false {ADD}:alice --operation Alter --cluster"
    ]
    everyone = (AUTHORIZER, SUPER_USERS, "allow.everyone.if.no.acl.found=true")
    assert doctor(*alter, settings=everyone)[1:] == [
        "ok: ALTER on the cluster by User:alice is allowed: the resource has no ACL, and "
        "allow.everyone.if.no.acl.found is true"
    ]
    without = doctor("--principal", "bob", *READ_ORDERS, settings=())
    assert without[0].startswith("warning: 4 ACLs without effect: authorizer.class.name is not set → ")
    assert without[1:] == [f"ok: {READ}:bob is allowed: authorizer.class.name is not set"]


def test_running_broker_can_be_examined(doctor: Doctor, offline: RunCommand, tmp_path: Path) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with Broker(settings, log_dir=tmp_path / "data") as broker:
        add = ("acls", "add", "--allow-principal", "bob", *READ_ORDERS)
        assert offline(*add, "--bootstrap-server", broker.bootstrap_servers).status == 0
        assert doctor("--principal", "bob", *READ_ORDERS)[1].startswith(f"ok: {READ}:bob is allowed")


def test_unreadable_metadata_is_a_problem(
    doctor: Doctor, change_acls: Callable[..., None], tmp_path: Path
) -> None:
    change_acls("add --allow-principal User:alice --topic orders --operation Read")
    [log, *_] = sorted((tmp_path / "data" / "__cluster_metadata-0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    for snapshot in log.parent.glob("*.checkpoint"):
        snapshot.unlink()
    [finding] = doctor()
    assert finding.startswith("problem: the ACLs cannot be read: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--principal", "alice"),
        ("--principal", "alice", "--operation", "Read"),
        ("--operation", "Read", "--topic", "orders"),
        ("--host", "10.0.0.1"),
        ("--principal", "alice", *READ_ORDERS, "--cluster"),
    ],
)
def test_incomplete_question_is_wrong_usage(offline: RunCommand, arguments: tuple[str, ...]) -> None:
    result = offline("doctor", *arguments)
    assert result.status == 2
    assert "give --principal, --operation and one resource" in result.sentence


@pytest.mark.parametrize("operation", ["All", "ClusterAction"])
def test_question_needs_an_operation_of_the_resource(offline: RunCommand, operation: str) -> None:
    result = offline("doctor", "--principal", "alice", "--topic", "orders", "--operation", operation)
    assert result.status == 2
    assert "operation" in result.sentence


def test_super_users_without_effect_or_authentication_are_warnings(doctor: Doctor) -> None:
    listeners = (
        "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config="
        "org.apache.kafka.common.security.plain.PlainLoginModule required;",
        "sasl.enabled.mechanisms=PLAIN",
    )
    found = doctor(settings=(AUTHORIZER, "super.users=User:ANONYMOUS;User:*;Group:admins", *listeners))
    assert [line.partition(" → ")[0] for line in found] == [
        "ok: 0 ACLs, 3 super users",
        "warning: Group:admins in super.users has no effect: it is no user",
        "warning: User:* in super.users has no effect: it is compared as it is: * is no wildcard here",
        "warning: User:ANONYMOUS is in super.users, so every client of listener PLAINTEXT may do everything: "
        "the listener does not require authentication",
    ]


@pytest.mark.parametrize(("client_auth", "warnings"), [("requested", 1), ("required", 0)])
def test_tls_listener_is_open_unless_it_requires_certificates(
    doctor: Doctor, client_auth: str, warnings: int
) -> None:
    protocol = "security.inter.broker.protocol=SSL"
    listener = ("listeners=SSL://127.0.0.1:0", protocol, f"ssl.client.auth={client_auth}")
    found = doctor(settings=(AUTHORIZER, "super.users=User:ANONYMOUS", *listener))
    assert len(found) == 1 + warnings


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"principal": "alice"}, "alice has no type"),
        ({"principal": "Group:admins"}, "no client has a principal of type Group"),
        ({"principal": "User:admin", "permission_type": Permission.DENY}, "User:admin is a super user"),
        ({"host": "client.example.com"}, "client.example.com is not an IP address"),
        ({"host": "10.0.0.0/8"}, "10.0.0.0/8 is not an IP address"),
        (
            {"operation": Operation.CLUSTER_ACTION},
            "no request needs this operation on the resource type TOPIC",
        ),
        ({"resource_name": "orders*"}, "no topic can have this name"),
        ({"resource_name": "*", "pattern_type": PatternType.PREFIXED}, "no topic can have this prefix"),
        (
            {
                "resource_type": ResourceType.USER,
                "resource_name": "bob",
                "operation": Operation.DESCRIBE_TOKENS,
            },
            "bob is not a principal",
        ),
    ],
)
def test_acl_without_effect_is_a_warning(changes: dict[str, object], reason: str) -> None:
    [finding] = acl_findings([ACL._replace(**changes)], frozenset({"User:admin"}))  # type: ignore[arg-type]
    assert finding.severity == "warning"
    assert finding.message.endswith(f"has no effect: {reason}")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"principal": "User:*", "host": "10.0.0.1"},
        {"principal": "User:admin"},
        {"resource_name": "*"},
        {"resource_name": ".", "pattern_type": PatternType.PREFIXED},
        {"resource_type": ResourceType.GROUP, "resource_name": "a*"},
        {
            "resource_type": ResourceType.USER,
            "resource_name": "User:bob",
            "operation": Operation.CREATE_TOKENS,
        },
    ],
)
def test_acl_with_effect_is_no_finding(changes: dict[str, object]) -> None:
    acl = ACL._replace(**changes)  # type: ignore[arg-type]
    assert not [*acl_findings([acl], frozenset({"User:admin"}))]


def test_number_of_findings_is_limited() -> None:
    acls = [ACL._replace(principal=f"user{number}") for number in range(MAX_FINDINGS + 2)]
    found = [*acl_findings(acls, frozenset())]
    assert len(found) == MAX_FINDINGS + 1
    assert found[-1].message == "2 more ACLs without effect"


NODES = (
    *(AUTHORIZER, "process.roles=broker,controller", "node.id=1", "controller.listener.names=CONTROLLER"),
    "listeners=NODES://127.0.0.1:20901,CONTROLLER://127.0.0.1:20902",
    "controller.quorum.bootstrap.servers=127.0.0.1:20902,127.0.0.1:20912",
    "inter.broker.listener.name=NODES",
)
PLAINTEXT_NODES = (*NODES, "listener.security.protocol.map=NODES:PLAINTEXT,CONTROLLER:PLAINTEXT")
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="node" password="secret" user_node="secret";'
)
SASL_NODES = (
    *(*NODES, "listener.security.protocol.map=NODES:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"),
    *("sasl.mechanism.controller.protocol=PLAIN", "sasl.enabled.mechanisms=PLAIN"),
    f"listener.name.controller.plain.sasl.jaas.config={JAAS}",
)


def test_anonymous_nodes_without_rights_are_a_problem(doctor: Doctor) -> None:
    _, *found = doctor(settings=(*PLAINTEXT_NODES, SUPER_USERS))
    assert [one.partition(" → ")[0] for one in found] == [
        f"problem: nodes connect to the listener {listener} as User:ANONYMOUS, which is not in super.users "
        "and has no CLUSTER_ACTION: their requests are denied"
        for listener in ("CONTROLLER", "NODES")
    ]
    assert "authenticate nodes at CONTROLLER, with their principal in super.users" in found[0]


def test_voters_with_one_port_on_several_hosts_are_several_nodes(doctor: Doctor) -> None:
    voters = "controller.quorum.voters=1@127.0.0.1:20902,2@127.0.0.2:20902,3@127.0.0.3:20902"
    settings = [one for one in PLAINTEXT_NODES if not one.startswith("controller.quorum")]
    _, *found = doctor(settings=(*settings, voters, SUPER_USERS))
    assert [one.split()[0] for one in found] == ["problem:", "problem:"]


def test_nodes_that_only_default_allow_permits_are_a_warning(doctor: Doctor) -> None:
    _, *found = doctor(settings=(*PLAINTEXT_NODES, SUPER_USERS, "allow.everyone.if.no.acl.found=true"))
    assert [one.split()[0] for one in found] == ["warning:", "warning:"]
    assert "the first ACL for the cluster denies its requests" in found[0]


def test_user_of_nodes_belongs_in_super_users(doctor: Doctor) -> None:
    _, controller, _ = doctor(settings=(*SASL_NODES, SUPER_USERS))
    assert controller.startswith("problem: nodes connect to the listener CONTROLLER as User:node, ")
    assert controller.endswith(" → add User:node to super.users on all nodes")
    _, *found = doctor(settings=(*SASL_NODES, "super.users=User:node;User:admin"))
    assert [one.split()[5:8] for one in found] == [["listener", "NODES", "as"]]


def test_cluster_action_is_not_enough_for_controllers(
    doctor: Doctor, change_acls: Callable[..., None]
) -> None:
    change_acls("add --allow-principal node --operation ClusterAction --cluster")
    _, controller, _ = doctor(settings=(*SASL_NODES, SUPER_USERS))
    assert controller.startswith("warning: ")
    assert "controllers cannot elect a leader before they have loaded the ACLs" in controller


def test_only_node_needs_no_rights(doctor: Doctor) -> None:
    alone = "controller.quorum.bootstrap.servers=127.0.0.1:20902"
    assert len(doctor(settings=(*PLAINTEXT_NODES, alone, SUPER_USERS))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--principal", "bob"), "--principal is given more than once"),
        (("--operation", "Write"), "--operation is given more than once"),
        (("--topic", "bills"), "--topic is given more than once"),
        (("--host", "10.0.0.1", "--host", "10.0.0.2"), "--host is given more than once"),
        (("--host", "10.0.0.300"), "10.0.0.300 is not an IP address"),
        (("--host", "localhost"), "localhost is not an IP address"),
    ],
)
def test_each_option_has_one_valid_value(
    offline: RunCommand, arguments: tuple[str, ...], message: str
) -> None:
    result = offline("doctor", "--principal", "alice", *READ_ORDERS, *arguments)
    assert result.status == 2
    assert message in result.err


def test_principal_of_another_type_is_wrong_usage(offline: RunCommand) -> None:
    result = offline("doctor", "--principal", "Group:alice", *READ_ORDERS)
    assert result.status == 2
    assert "no client has a principal of type Group, use User:alice" in result.sentence


def test_write_on_a_topic_is_enough_for_an_idempotent_producer(
    doctor: Doctor, change_acls: Callable[..., None]
) -> None:
    change_acls("add --allow-principal User:alice --topic orders --operation Write")
    question = ("--operation", "IdempotentWrite", "--cluster", "--principal")
    enough = "WRITE on the topic is enough for an idempotent producer"
    denied = "IDEMPOTENT_WRITE on the cluster by User"
    assert doctor(*question, "alice")[1:] == [f"ok: {denied}:alice is denied, but not needed: {enough}"]
    [finding] = doctor(*question, "bob")[1:]
    assert finding.startswith(f"warning: {denied}:bob is denied: ")
    assert finding.endswith(
        f"→ {enough}: kwire acls add --allow-principal User:bob --operation Write --topic NAME"
    )
