"""ACLs that one broker stores and the other broker enforces, on the same directory."""

from __future__ import annotations

from typing import Any, Final

import pytest

from interop.authorizer.rights import Right, topic
from interop.authorizer.world import AUTHORIZER, described_rights
from interop.batches import Batch
from interop.raw import create_topic, produce
from interop.raw_client import RawClient
from interop.scenarios.raw_delegation_tokens import plain_token_client
from interop.scenarios.raw_topics import until
from interop.swap.content import now_ms
from interop.swap.dump_log import dump_errors_by_shape
from interop.swap.shared_directory import Shared, log_messages_by_shape
from interop.test_swap_users import Listener, listen

ENDINGS: Final = ["stop", "kill", "stop", "stop"]
OTHERS: Final = 30
"""The number of additional ACLs, high enough that a metadata snapshot is written in each turn."""
UNAUTHORIZED: Final = 29
"""TOPIC_AUTHORIZATION_FAILED."""
AUTHORIZATION: Final = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
"""Settings with which the client without authentication has every right."""


class Stored:
    """The ACLs that earlier turns created, and the topics to which alice may or may not write."""

    def __init__(self) -> None:
        self.acls: set[Right] = set()
        self.codes: dict[str, int] = {}
        """The error codes of alice's Produce requests by topic."""

    def change(self, turn: int, plain: RawClient) -> None:
        """Create ACLs, and delete two ACLs of the previous turn."""
        allowed, denied, prefixed = f"allowed-{turn}", f"denied-{turn}", f"{turn}-prefixed"
        for name in (allowed, denied, prefixed):
            create_topic(plain, name)
        new = {
            topic("WRITE", allowed),
            topic("WRITE", denied),
            topic("WRITE", denied).denied(),
            topic("WRITE", prefixed).prefixed()._replace(host="127.0.0.1"),
            *(topic("READ", f"other-{turn}-{number}") for number in range(OTHERS)),
        }
        given = plain.call("CreateAcls", 3, Creations=[one.creation() for one in sorted(new)])
        assert not any(result["ErrorCode"] for result in given["Results"]), given
        self.acls |= new
        self.codes |= {allowed: 0, denied: UNAUTHORIZED, prefixed: 0}
        if turn:
            ended = {topic("WRITE", f"allowed-{turn - 1}"), topic("WRITE", f"denied-{turn - 1}").denied()}
            deleted = plain.call("DeleteAcls", 3, Filters=[as_filter(one) for one in sorted(ended)])
            assert [len(result["MatchingAcls"]) for result in deleted["FilterResults"]] == [1, 1], deleted
            self.acls -= ended
            self.codes |= {f"allowed-{turn - 1}": UNAUTHORIZED, f"denied-{turn - 1}": 0}

    def check(self, listener: Listener, plain: RawClient) -> None:
        """Check that the broker describes these ACLs and decides by them."""
        until(lambda: described_rights(plain) == self.acls)
        with plain_token_client(listener, "alice") as alice:
            until(lambda: {name: produce_code(alice.client, name) for name in self.codes} == self.codes)
        with plain_token_client(listener, "bob") as bob:
            assert {produce_code(bob.client, name) for name in self.codes} <= {UNAUTHORIZED}


def as_filter(acl: Right) -> dict[str, Any]:
    """Return the filter of DeleteAcls that matches only this ACL."""
    return {
        "ResourceTypeFilter": acl.resource_type,
        "ResourceNameFilter": acl.name,
        "PatternTypeFilter": acl.pattern_type,
        "PrincipalFilter": acl.principal,
        "HostFilter": acl.host,
        "Operation": acl.operation,
        "PermissionType": acl.permission_type,
    }


def produce_code(client: RawClient, name: str) -> int:
    response = produce(client, name, Batch(base_timestamp=now_ms()).encode())
    code: int = response["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
    return code


@pytest.mark.parametrize(
    "order", [["apache", "kwire"], ["kwire", "apache"]], ids=["apache_first", "kwire_first"]
)
def test_acls_survive_a_swap(order: list[str]) -> None:
    shared, stored = Shared("rights"), Stored()
    listener = listen(shared)
    shared.broker.properties |= AUTHORIZATION
    try:
        for turn, how in enumerate(ENDINGS):
            broker = shared.start(order[turn % 2])
            with RawClient(broker.bootstrap) as plain:
                stored.check(listener, plain)
                stored.change(turn, plain)
                stored.check(listener, plain)
            shared.end(how)
            assert shared.files("__cluster_metadata-0/*.checkpoint"), "no snapshot was written"
            output = log_messages_by_shape(broker.log_text())
            assert not [line for line in output.values() if "acl" in line.lower()]
        assert dump_errors_by_shape(shared) == {}
    finally:
        shared.discard()
