"""kafka-acls on brokers with the StandardAuthorizer, and Java console clients before and after it."""

from __future__ import annotations

from typing import Any, Final

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.sasl import PLAIN, USERS, Secured, secured
from interop.scenario import scenario
from interop.scenarios.tools_controller import controller_of, controller_tool_output
from interop.scenarios.tools_scram_and_tokens import client_config_file, console_round_trip
from interop.tools import TOOLS, errors_only, lines_of, run, said, until

ACLS: Final = f"{TOOLS}.AclCommand"
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Clients of the plaintext listener, and the node itself, are super users."""
ANY: Final = 1
ALICE: Final = ("--allow-principal", "User:alice")
ADDED: Final = {
    "a topic": ("--topic", "orders", "--operation", "Read", "--operation", "DescribeConfigs"),
    "all operations of two topics": ("--topic", "orders", "--topic", "paid"),
    "again": ("--topic", "orders", "--operation", "Read"),
    "a prefix": ("--topic", "pay-", "--resource-pattern-type", "prefixed", "--operation", "Write"),
    "every topic": ("--topic", "*", "--operation", "Describe"),
    "two hosts": ("--group", "g", "--allow-host", "10.0.0.1", "--allow-host", "10.0.0.2"),
    "the cluster": ("--cluster", "--operation", "Alter", "--operation", "ClusterAction"),
    "a token": ("--delegation-token", "t", "--operation", "Describe"),
    "a user": ("--user-principal", "User:bob", "--operation", "CreateTokens"),
    "a producer": ("--producer", "--topic", "produced"),
    "a transactional producer": ("--producer", "--topic", "produced", "--transactional-id", "x"),
    "an idempotent producer": ("--producer", "--idempotent", "--topic", "produced"),
    "a consumer": ("--consumer", "--topic", "consumed", "--group", "g"),
    "both": ("--producer", "--consumer", "--topic", "both", "--group", "g", "--transactional-id", "x"),
    "prefixed both": (
        *("--producer", "--consumer", "--topic", "team-", "--group", "team-"),
        *("--resource-pattern-type", "prefixed"),
    ),
    "an empty name": ("--topic", "", "--operation", "Read"),
    "an empty host": ("--topic", "orders", "--operation", "Read", "--allow-host", ""),
}
"""The options of `--add`, besides the principal."""
LISTED: Final = {
    "a topic": ("--topic", "orders"),
    "what matches": ("--topic", "pay-1", "--resource-pattern-type", "match"),
    "any type": ("--topic", "team-", "--resource-pattern-type", "any"),
    "two resources": ("--group", "g", "--cluster"),
    "a principal": ("--topic", "orders", "--principal", "User:carol"),
    "nothing": ("--topic", "nothing"),
}
REMOVED: Final = {
    "one operation": (*ALICE, "--operation", "Read", "--topic", "orders"),
    "a missing operation": (*ALICE, "--operation", "Write", "--topic", "orders"),
    "the denial": ("--deny-principal", "User:carol", "--topic", "orders"),
    "a topic": ("--topic", "both"),
    "a producer": (*ALICE, "--producer", "--idempotent", "--topic", "produced", "--transactional-id", "x"),
    "a consumer": (*ALICE, "--consumer", "--topic", "consumed", "--group", "g"),
    "what matches": ("--topic", "team-1", "--resource-pattern-type", "match"),
}
"""The options of `--remove --force`. Without --force, the tool needs a console."""


def by_resource(lines: list[str]) -> Any:
    """Return the printed ACLs by heading, sorted, because Java's sets have no order; then other lines."""
    found: dict[str, list[str]] = {}
    others: list[str] = []
    heading = ""
    for line in lines[:-1]:
        if line.startswith("(principal="):
            found[heading].append(line)
        elif line.startswith("Acl ("):
            found.setdefault("exist", []).append(line)
        elif "for resource" in line or line.startswith("ACLs for"):
            heading = line
            found[heading] = []
        else:
            others.append(line)
    return {heading: sorted(acls) for heading, acls in sorted(found.items())}, others, lines[-1]


def acl_count(address: str) -> int:
    """Return the number of ACLs that a node has applied."""
    everything = {
        "ResourceTypeFilter": ANY,
        "ResourceNameFilter": None,
        "PatternTypeFilter": ANY,
        "PrincipalFilter": None,
        "HostFilter": None,
        "Operation": ANY,
        "PermissionType": ANY,
    }
    with RawClient(address) as client:
        response = client.call("DescribeAcls", 3, **everything)
    return sum(len(one["Acls"]) for one in response["Resources"])


def wait_for_broker(broker: Broker) -> None:
    """Wait until the broker has applied the ACLs of the controller."""
    until(lambda: acl_count(broker.bootstrap) == acl_count(controller_of(broker)))


@scenario(seconds=300)
def tool(broker: Broker) -> Any:
    """Add, list and remove ACLs with each option, some of them through the controller."""
    seen: dict[str, Any] = {}
    with secured(broker, overrides=AUTHORIZER) as one:
        node = one.broker
        for name, options in ADDED.items():
            before = acl_count(controller_of(node))
            seen[f"add {name}"] = by_resource(said(ACLS, node, "--add", *ALICE, *options))
            seen[f"added {name}"] = acl_count(controller_of(node)) - before
        denied = ("--deny-principal", "User:carol", "--deny-host", "*", "--topic", "orders")
        seen["deny"] = by_resource(said(ACLS, node, "--add", *denied))
        added = ("--add", *ALICE, "--topic", "by-controller", "--operation", "Read")
        seen["controller, add"] = by_resource(controller_tool_output(node, ACLS, *added))
        wait_for_broker(node)
        for name, options in {"all": (), **LISTED}.items():
            seen[f"list {name}"] = by_resource(said(ACLS, node, "--list", *options))
        seen["controller, list"] = by_resource(controller_tool_output(node, ACLS, "--list"))
        for name, options in REMOVED.items():
            before = acl_count(controller_of(node))
            seen[f"remove {name}"] = by_resource(said(ACLS, node, "--remove", "--force", *options))
            seen[f"removed {name}"] = before - acl_count(controller_of(node))
        seen["controller, remove"] = by_resource(
            controller_tool_output(node, ACLS, "--remove", "--force", "--topic", "by-controller")
        )
        wait_for_broker(node)
        seen["left"] = by_resource(said(ACLS, node, "--list"))
    return seen


@scenario()
def tool_without_authorizer(broker: Broker) -> Any:
    """Run each action on a broker and on a controller without an authorizer."""
    read = (*ALICE, "--topic", "orders", "--operation", "Read")
    actions = (("--add", *read), ("--list",), ("--remove", "--force", *read))
    return {
        action[0]: (
            by_resource(said(ACLS, broker, *action)),
            by_resource(controller_tool_output(broker, ACLS, *action)),
        )
        for action in actions
    }


@scenario(seconds=240)
def rights_of_clients(broker: Broker) -> Any:
    """Run console clients and the tool as a user before and after the user has the rights."""
    seen: dict[str, Any] = {}
    topic = ("--topic", "by-users")
    with secured(broker, (PLAIN,), AUTHORIZER) as one, client_config_file("alice", USERS["alice"]) as alice:
        # Apache Kafka's message is a dump of the request, with addresses of Java objects.
        seen["list, denied"] = errors_only(_as_user(one, alice, "--list"))
        seen["add, denied"] = errors_only(_as_user(one, alice, "--add", *ALICE, *topic))
        seen["remove, denied"] = errors_only(_as_user(one, alice, "--remove", "--force", *topic))
        said(ACLS, one.broker, "--add", *ALICE, "--cluster", "--operation", "Alter")
        wait_for_broker(one.broker)
        roles = ("--producer", "--consumer", *topic, "--group", "by-users")
        seen["add"] = by_resource(_as_user(one, alice, "--add", *ALICE, *roles))
        wait_for_broker(one.broker)
        seen["clients"] = console_round_trip(one, alice)
        seen["remove"] = by_resource(_as_user(one, alice, "--remove", "--force", *ALICE, "--cluster"))
        seen["list"] = by_resource(_as_user(one, alice, "--list"))
    return seen


def _as_user(one: Secured, config: str, *arguments: str) -> list[str]:
    return lines_of(run(ACLS, "--bootstrap-server", one.bootstrap, "--command-config", config, *arguments))
