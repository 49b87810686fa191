"""`kwire acls` against both brokers, and `kwire doctor` with ACLs that each broker has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.brokers import ApacheKafka, Broker, Kwire
from interop.scenarios.tools_acls import AUTHORIZER
from interop.test_command_line import kwire

ALICE = ("--allow-principal", "User:alice")
ORDERS = ("--topic", "orders")


@pytest.fixture(scope="module", params=[ApacheKafka, Kwire])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    started: Broker = request.param(AUTHORIZER)
    started.start()
    yield started
    started.discard()


def run(broker: Broker, *arguments: str) -> Any:
    """Run an action of `kwire acls`, and return its JSON output."""
    ran = kwire("acls", *arguments, "--json", "-b", broker.bootstrap)
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)


def listed(broker: Broker, *arguments: str) -> list[str]:
    return [
        f"{row['principal']} {row['operation']} {row['resource_name']}"
        for row in run(broker, "list", *arguments)
    ]


def explained(broker: Broker, principal: str) -> str:
    """Return what `kwire doctor` says about reading the topic orders."""
    ran = kwire(
        *("doctor", str(broker.properties_path), "--json", *ORDERS),
        *("--principal", principal, "--operation", "Read"),
    )
    messages: list[str] = [row["message"] for row in json.loads(ran.stdout) if row["area"] == "ACLs"]
    return messages[-1].removeprefix(f"READ on topic orders by {principal} is ")


def test_acls_are_added_replaced_explained_and_removed(broker: Broker, tmp_path: Path) -> None:
    roles = ("--producer", "--idempotent", "--consumer", *ORDERS, "--group", "g")
    assert len(run(broker, "add", *ALICE, *roles)) == 6
    assert [row["change"] for row in run(broker, "add", *ALICE, *ORDERS, "--operation", "Read")] == [None]
    deny = ("--deny-principal", "User:bob", "--topic", "or", "--resource-pattern-type", "prefixed")
    assert len(run(broker, "add", *deny)) == 1
    assert listed(broker, *ORDERS, "--resource-pattern-type", "match")[0] == "User:bob ALL or"
    assert explained(broker, "User:alice") == "allowed: the ACL ALLOW User:alice READ on topic orders decides"
    assert explained(broker, "User:bob") == "denied: the ACL DENY User:bob ALL on topic prefix or decides"
    rows = run(broker, "list", "--principal", "User:alice")
    for row in rows:
        row["host"] = "10.0.0.1"
    (tmp_path / "acls.json").write_text(json.dumps(rows))
    changes = run(broker, "apply", str(tmp_path / "acls.json"), "--principal", "User:alice")
    assert [row["change"] for row in changes] == [*["add"] * 6, *["remove"] * 6]
    assert run(broker, "list", "--principal", "User:alice") == rows
    assert len(run(broker, "remove", "--principal", "User:alice")) == 6
    assert listed(broker) == ["User:bob ALL or"]


def test_rejected_acl_is_reported(broker: Broker) -> None:
    ran = kwire("acls", "add", *ALICE, "--topic", "", "-b", broker.bootstrap)
    assert (ran.returncode, ran.stderr) == (
        1,
        "kwire acls: the ACLs: Invalid empty resource name (invalid request)\n",
    )
