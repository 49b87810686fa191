"""`kwire acls`, on a broker with an authorizer where clients without authentication are super users."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kwire.broker.config.authorizer import STANDARD_AUTHORIZER
from kwire.client.connection import Connection
from kwire.testing import Broker
from kwire.wire.messages.create_acls import CreateAclsRequest
from kwire.wire.messages.delete_acls import DeleteAclsRequest
from tests.cli.run_command import CommandResult, RunCommand

ALICE = ("--allow-principal", "User:alice")
ORDERS = ("--topic", "orders")
ROLES = ("--producer", "--consumer", *ORDERS, "--group", "g", "--transactional-id", "x", "--idempotent")


@pytest.fixture(scope="module")
def authorized() -> Iterator[Broker]:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with Broker(settings) as broker:
        yield broker


@pytest.fixture
def acls(authorized: Broker, offline: RunCommand, tmp_path: Path) -> RunCommand:
    """Return a function that runs `kwire acls` on a broker without ACLs."""

    def run(*arguments: str) -> CommandResult:
        return offline("acls", *arguments, "--bootstrap-server", authorized.bootstrap_servers)

    (tmp_path / "none.json").write_text("[]")
    assert run("apply", str(tmp_path / "none.json")).status == 0
    return run


def listed(acls: RunCommand, *arguments: str) -> list[str]:
    """Return the ACLs that `list` prints, one text each."""
    return [" ".join(row.values()) for row in acls("list", "--json", *arguments).json]


def save(acls: RunCommand, path: Path, keep: Sequence[str] = ()) -> list[dict[str, str]]:
    """Write the ACLs of the cluster to a file, and return them. `keep` are operations; default: all."""
    rows: list[dict[str, str]] = acls("list", "--json").json
    path.write_text(json.dumps([row for row in rows if not keep or row["operation"] in keep]))
    return rows


def test_acls_are_added_listed_and_removed(acls: RunCommand) -> None:
    assert acls("list").err == "there are no such ACLs\n"
    added = ("add", *ALICE, *ORDERS, "--operation", "read", "--operation", "DESCRIBE_CONFIGS")
    assert acls(*added).out.splitlines() == [
        "added: ALLOW User:alice READ on topic orders",
        "added: ALLOW User:alice DESCRIBE_CONFIGS on topic orders",
    ]
    assert acls(*added).out.splitlines()[0] == "exists already: ALLOW User:alice READ on topic orders"
    hosts = ("--deny-principal", "bob", "--deny-host", "10.0.0.1", "--topic", "ord")
    [row] = acls("add", *hosts, "--resource-pattern-type", "prefixed", "--json").json
    assert row == {
        "resource_type": "TOPIC",
        "resource_name": "ord",
        "pattern_type": "PREFIXED",
        "principal": "User:bob",
        "permission": "DENY",
        "operation": "ALL",
        "host": "10.0.0.1",
        "change": "add",
        "dry_run": False,
    }
    bobs = "TOPIC ord PREFIXED User:bob DENY ALL 10.0.0.1"
    alices = [
        f"TOPIC orders LITERAL User:alice ALLOW {operation} *" for operation in ("READ", "DESCRIBE_CONFIGS")
    ]
    assert listed(acls) == [bobs, *alices]
    assert listed(acls, *ORDERS) == listed(acls, "--principal", "alice") == alices
    assert listed(acls, *ORDERS, "--resource-pattern-type", "match") == [bobs, *alices]
    assert listed(acls, "--topic", "ord", "--resource-pattern-type", "any", "--cluster") == [bobs]
    planned = acls("remove", "--principal", "User:alice", "--dry-run").out.splitlines()
    assert planned[0] == "would remove: ALLOW User:alice READ on topic orders"
    assert listed(acls) == [bobs, *alices]
    removed = acls("remove", *ALICE, *ORDERS, "--operation", "Read").out
    assert removed == "removed: ALLOW User:alice READ on topic orders\n"
    assert listed(acls) == [bobs, *alices[1:]]
    assert acls("remove", *ORDERS, "--resource-pattern-type", "match").status == 0
    assert listed(acls) == []


def test_roles_have_the_operations_of_kafka_acls(acls: RunCommand) -> None:
    assert acls("add", *ALICE, *ROLES).status == 0
    assert [" ".join(row.values()) for row in acls("list", "--json").json] == [
        *(
            f"TOPIC orders LITERAL User:alice ALLOW {operation} *"
            for operation in ("READ", "WRITE", "CREATE", "DESCRIBE")
        ),
        "GROUP g LITERAL User:alice ALLOW READ *",
        "CLUSTER kafka-cluster LITERAL User:alice ALLOW IDEMPOTENT_WRITE *",
        "TRANSACTIONAL_ID x LITERAL User:alice ALLOW WRITE *",
        "TRANSACTIONAL_ID x LITERAL User:alice ALLOW DESCRIBE *",
    ]
    assert acls("remove", *ALICE, *ROLES).status == 0
    assert listed(acls) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", *ALICE), "name a resource"),
        (("add", *ORDERS), "name a principal"),
        (("add", *ORDERS, "--allow-host", "10.0.0.1"), "--allow-host needs --allow-principal"),
        (("add", *ALICE, *ORDERS, "--operation", "ClusterAction"), "CLUSTER_ACTION does not exist for the"),
        (("add", *ALICE, *ORDERS, "--operation", "Reed"), "Reed is not one of All, Read"),
        (("add", *ALICE, *ORDERS, "--idempotent"), "--idempotent needs --producer"),
        (("add", *ALICE, "--producer", "--group", "g"), "--producer needs --topic"),
        (("add", *ALICE, "--consumer", *ORDERS), "--consumer needs --topic and --group"),
        (("add", *ALICE, "--producer", *ORDERS, "--operation", "Read"), "cannot be used with --operation"),
        (("add", *ALICE, "--producer", *ORDERS, "--cluster"), "gives no rights on --cluster"),
        (
            ("add", *ALICE, "--cluster", "--resource-pattern-type", "prefixed"),
            "needs the pattern type literal",
        ),
        (("add", *ALICE, *ORDERS, "--resource-pattern-type", "match"), "invalid choice: 'match'"),
        (("remove",), "name a resource"),
        (("remove", *ORDERS, "--operation", "Read"), "name the principal of these operations"),
        (("remove", *ORDERS, *ALICE, "--principal", "User:bob"), "--principal cannot be used with"),
    ],
)
def test_wrong_usage_is_explained(acls: RunCommand, arguments: Sequence[str], sentence: str) -> None:
    result = acls(*arguments)
    assert (result.status, listed(acls)) == (2, [])
    assert sentence in result.sentence


def test_removal_without_operation_removes_only_all(acls: RunCommand) -> None:
    acls("add", *ALICE, *ORDERS, "--operation", "Read")
    result = acls("remove", *ALICE, *ORDERS)
    assert result.status == 1
    assert result.sentence.endswith("(without --operation, the operation is All)")
    assert len(listed(acls)) == 1


def test_apply_adds_before_it_removes(
    acls: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "acls.json"
    acls("add", *ALICE, *ROLES)
    save(acls, file)
    acls("remove", "--principal", "alice")
    acls("add", "--allow-principal", "bob", *ORDERS)
    before = listed(acls)
    planned = acls("apply", str(file), "--dry-run").out.splitlines()
    assert len([line for line in planned if line.startswith("would add: ALLOW User:alice ")]) == 8
    assert planned[-1] == "would remove: ALLOW User:bob ALL on topic orders"
    assert listed(acls) == before
    sent: list[type] = []
    send = Connection.send

    def record(self: Connection, request: Any, *more: Any) -> Any:
        sent.append(type(request))
        return send(self, request, *more)

    monkeypatch.setattr(Connection, "send", record)
    changes = acls("apply", str(file), "--json").json
    assert [change["change"] for change in changes] == [*["add"] * 8, "remove"]
    assert sent.index(CreateAclsRequest) < sent.index(DeleteAclsRequest)
    assert acls("list", "--json").json == json.loads(file.read_text())
    assert acls("apply", str(file)).err == "nothing to change: the cluster has these ACLs\n"


def test_apply_with_filters_keeps_other_acls(acls: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "acls.json"
    acls("add", *ALICE, *ORDERS, "--operation", "Read", "--operation", "Write")
    rows = save(acls, file, keep=["READ"])
    acls("add", "--allow-principal", "bob", *ORDERS)
    assert acls("apply", str(file), "--principal", "bob").sentence.endswith(
        "has an ACL that the options exclude: ALLOW User:alice READ on topic orders"
    )
    assert acls("apply", str(file), "--principal", "alice").out == (
        "removed: ALLOW User:alice WRITE on topic orders\n"
    )
    assert [one.split()[3:6] for one in listed(acls)] == [
        ["User:bob", "ALLOW", "ALL"],
        ["User:alice", "ALLOW", "READ"],
    ]
    short = {name: rows[0][name] for name in ("resource_type", "resource_name", "principal", "operation")}
    file.write_text(json.dumps([short]))
    assert "nothing to change" in acls("apply", str(file), "--principal", "alice").err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not JSON"),
        ("{}", "is not a JSON array of ACLs"),
        ("[1]", "ACL 1: expected an object"),
        ('[{"principle": "User:alice"}]', "ACL 1: unknown field principle"),
        ('[{"resource_type": "TOPIC"}]', "ACL 1: resource_name must be a text"),
        (
            '[{"resource_type": "TOPICS", "resource_name": "a", "principal": "User:a", "operation": "READ"}]',
            "ACL 1: resource_type TOPICS: expected one of TOPIC, GROUP",
        ),
        (
            '[{"resource_type": "GROUP", "resource_name": "a", "principal": "User:a", "operation": "WRITE"}]',
            "ACL 1: the operation WRITE does not exist",
        ),
    ],
)
def test_faulty_file_changes_nothing(acls: RunCommand, tmp_path: Path, text: str, sentence: str) -> None:
    acls("add", *ALICE, *ORDERS)
    (tmp_path / "acls.json").write_text(text)
    result = acls("apply", str(tmp_path / "acls.json"))
    assert result.status == 1
    assert sentence in result.sentence
    assert len(listed(acls)) == 1


def test_missing_authorizer_is_reported(run: RunCommand) -> None:
    assert run("acls", "list").sentence.endswith(
        "(security disabled); set authorizer.class.name on brokers and controllers"
    )
