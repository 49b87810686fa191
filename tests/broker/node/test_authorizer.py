"""The authorizer of each node of a cluster: its ACLs, and the rights of the nodes themselves."""

from __future__ import annotations

import logging
from typing import Any, Final

import pytest

from kwire.broker.config.authorizer import STANDARD_AUTHORIZER
from kwire.broker.security.acl import ANY, PatternType, Permission
from kwire.broker.security.authorizer import NODE_RIGHTS, Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.wire.messages.create_acls import AclCreation, CreateAclsRequest
from kwire.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kwire.wire.messages.describe_acls import DescribeAclsRequest
from tests.broker.node.test_credential_changes import HOSTS, SaslCluster

ALICE: Final = Principal("User", "alice")


class AuthorizedCluster(SaslCluster):
    """A controller and two brokers with an authorizer. Clients without authentication are super users."""

    def __init__(self, super_users: str = "User:node;User:ANONYMOUS") -> None:
        super().__init__({"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": super_users})

    def may_read(self) -> list[bool]:
        """Return whether alice may read topic t, as each node sees it."""
        found = []
        for node_id in (1, 2, 3):
            authorizer = self.nodes[node_id].node.gate.authorizer
            assert authorizer is not None
            found.append(authorizer.allows(ALICE, "10.0.0.1", Operation.READ, ResourceType.TOPIC, "t"))
        return found


def create(cluster: AuthorizedCluster, **changes: Any) -> tuple[int, str | None]:
    acl = AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name="t",
        resource_pattern_type=PatternType.LITERAL,
        principal="User:alice",
        host="*",
        operation=Operation.READ,
        permission_type=Permission.ALLOW,
    )
    for name, value in changes.items():
        setattr(acl, name, value)
    (result,) = cluster.request("two", 3, CreateAclsRequest(creations=[acl])).results
    cluster.events.advance(1_000)
    return result.error_code, result.error_message


def test_every_node_follows_the_acls_also_after_a_restart() -> None:
    cluster = AuthorizedCluster()
    assert cluster.may_read() == [False] * 3
    assert create(cluster) == (0, "")
    assert cluster.may_read() == [True] * 3
    offset = cluster.nodes[2].node.image.offset
    assert create(cluster) == (0, ""), "an ACL that exists"
    assert len(cluster.nodes[2].node.image.acls) == 1
    assert cluster.nodes[2].node.image.offset - offset < 5
    for node_id in (1, 2, 3):
        cluster.nodes[node_id].die()
        cluster.nodes[node_id].start()
    cluster.events.advance(15_000)
    assert cluster.may_read() == [True] * 3
    anybody: dict[str, Any] = {"principal_filter": None, "host_filter": None}
    every = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        operation=ANY,
        permission_type=ANY,
        **anybody,
    )
    for host in HOSTS.values():
        (resource,) = cluster.request(host, 3, every).resources
        assert (resource.resource_name, [one.principal for one in resource.acls]) == ("t", ["User:alice"])
    chosen = DeleteAclsFilter(
        resource_type_filter=ANY,
        resource_name_filter="t",
        pattern_type_filter=PatternType.MATCH,
        operation=ANY,
        permission_type=ANY,
        **anybody,
    )
    (deleted,) = cluster.request("three", 3, DeleteAclsRequest(filters=[chosen])).filter_results
    assert [one.principal for one in deleted.matching_acls] == ["User:alice"]
    cluster.events.advance(1_000)
    assert cluster.may_read() == [False] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource_name": ""}, "Invalid empty resource name"),
        (
            {"resource_type": ResourceType.CLUSTER},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"resource_type": ANY}, "Invalid resourceType ANY"),
        ({"resource_pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"operation": ANY}, "Invalid operation ANY"),
        ({"permission_type": 77}, "Invalid permissionType UNKNOWN"),
    ],
)
def test_invalid_acl_is_refused(changes: dict[str, Any], message: str) -> None:
    cluster = AuthorizedCluster()
    assert create(cluster, **changes) == (42, message)
    assert not cluster.nodes[2].node.image.acls


def test_node_without_rights_says_what_it_needs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    cluster = AuthorizedCluster("User:ANONYMOUS")
    cluster.events.advance(30_000)
    texts = [record.getMessage() for record in caplog.records if NODE_RIGHTS in record.getMessage()]
    assert {text.partition("]")[0] for text in texts} == {"[node 2", "[node 3"}
    assert not cluster.nodes[1].node.image.brokers
