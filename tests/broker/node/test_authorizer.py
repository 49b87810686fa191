"""The authorizer of each node of a cluster: its ACLs, and the rights of the nodes themselves."""

from __future__ import annotations

import logging
from random import Random
from typing import Any, Final

import pytest

from kwire.broker.config.authorizer import STANDARD_AUTHORIZER
from kwire.broker.security.acl import ALL_OPERATIONS, ANY, Acl, PatternType, Permission
from kwire.broker.security.authorizer import NODE_RIGHTS, Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_acls import AclCreation, CreateAclsRequest
from kwire.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kwire.wire.messages.describe_acls import DescribeAclsRequest
from tests.broker.node.test_credential_changes import HOSTS, SaslCluster
from tests.broker.security.test_standard_authorizer import scan

ALICE: Final = Principal("User", "alice")


class AuthorizedCluster(SaslCluster):
    """A controller and two brokers with an authorizer. Clients without authentication are super users."""

    def __init__(self, super_users: str = "User:node;User:ANONYMOUS", **settings: str) -> None:
        super().__init__(
            {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": super_users}
            | {key.replace("_", "."): value for key, value in settings.items()}
        )

    def may_read(self) -> list[bool]:
        """Return whether alice may read topic t, as each node sees it."""
        found = []
        for node_id in (1, 2, 3):
            authorizer = self.nodes[node_id].node.gate.authorizer
            assert authorizer is not None
            found.append(authorizer.allows(ALICE, "10.0.0.1", Operation.READ, ResourceType.TOPIC, "t"))
        return found

    def may_read_on(self, node_id: int, name: str) -> bool:
        authorizer = self.nodes[node_id].node.gate.authorizer
        assert authorizer is not None
        return authorizer.allows(ALICE, "10.0.0.1", Operation.READ, ResourceType.TOPIC, name)


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


def test_a_restarted_node_allows_only_super_users_until_it_knows_the_committed_acls() -> None:
    """Its snapshot may have ACLs that were deleted while the node was down."""
    cluster = AuthorizedCluster(metadata_log_max_record_bytes_between_snapshots="1000")
    assert create(cluster) == (0, "")
    for number in range(30):
        create(cluster, resource_name=f"t{number}")
    cluster.events.advance(5_000)
    assert cluster.nodes[3].node.quorum.log.snapshots.known
    cluster.nodes[1].die()
    cluster.nodes[3].die()
    cluster.nodes[3].start()
    cluster.events.advance(10_000)
    node = cluster.nodes[3].node
    assert len(node.image.acls) > 20
    for name in ("t", "unknown"):
        with pytest.raises(ApiError) as raised:
            cluster.may_read_on(3, name)
        assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    authorizer = node.gate.authorizer
    assert authorizer is not None
    node_principal = Principal("User", "node")
    assert authorizer.allows(node_principal, "10.0.0.1", Operation.READ, ResourceType.TOPIC, "t")
    cluster.nodes[1].start()
    cluster.events.advance(10_000)
    assert cluster.may_read_on(3, "t")
    assert not cluster.may_read_on(3, "unknown")


@pytest.mark.parametrize("seed", range(3))
def test_decisions_after_snapshots_and_restarts_are_those_of_a_scan(seed: int) -> None:
    """Each node has made its index from a snapshot and from changes after it."""
    random = Random(seed)
    cluster = AuthorizedCluster(metadata_log_max_record_bytes_between_snapshots="1500")
    acls: set[Acl] = set()
    names = ("*", "k", "k1", "k12", "k12bar", "kb")
    for step in range(24):
        if acls and random.random() < 0.4:
            removed = random.choice(sorted(acls))
            acls.remove(removed)
            cluster.request("two", 3, DeleteAclsRequest(filters=[exactly(removed)]))
        else:
            added = Acl(
                ResourceType.TOPIC,
                random.choice(names),
                random.choice((PatternType.LITERAL, PatternType.PREFIXED)),
                random.choice((ALL_OPERATIONS, Operation.READ, Operation.WRITE)),
                random.choice(("User:alice", "User:*", "User:bob")),
                random.choice(("*", "10.0.0.1", "10.0.0.2")),
                random.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
            )
            acls.add(added)
            fields = AclCreation.declared_fields
            create(cluster, **{name: value for name, value in created(added).items() if name in fields})
        if step % 8 == 7:
            restarted = random.choice((1, 2, 3))
            cluster.nodes[restarted].die()
            cluster.nodes[restarted].start()
            cluster.events.advance(15_000)
        else:
            cluster.events.advance(500)
        for node_id in (1, 2, 3):
            for name in (*names[1:], "k12x"):
                expected = scan(acls, ALICE, "10.0.0.1", Operation.READ, name, allows_without_acls=False)
                assert cluster.may_read_on(node_id, name) is expected, (node_id, name, acls)
    assert all(node.node.quorum.log.snapshots.known for node in cluster.nodes.values())


def created(acl: Acl) -> dict[str, Any]:
    return {**acl._asdict(), "resource_pattern_type": acl.pattern_type}


def exactly(acl: Acl) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=acl.resource_type,
        resource_name_filter=acl.resource_name,
        pattern_type_filter=acl.pattern_type,
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def test_node_without_rights_says_what_it_needs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    cluster = AuthorizedCluster("User:ANONYMOUS")
    cluster.events.advance(30_000)
    texts = [record.getMessage() for record in caplog.records if NODE_RIGHTS in record.getMessage()]
    assert {text.partition("]")[0] for text in texts} == {"[node 2", "[node 3"}
    assert all(" User:node, as which this node connects to the listener CONTROLLER, " in one for one in texts)
    assert not cluster.nodes[1].node.image.brokers
