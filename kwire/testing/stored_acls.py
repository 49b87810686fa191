"""Requests that replace the ACLs of a cluster by those of a test."""

from __future__ import annotations

from collections.abc import Iterable

from kwire.broker.security.acl import ALL_OPERATIONS, ANY, PatternType, Permission
from kwire.broker.security.acl import Acl as StoredAcl
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.client.acls import create_acls, delete_acls
from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import Disconnected, raise_for_code
from kwire.testing.acl import Acl
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


def replace_acls(cluster: ClusterClient, acls: Iterable[Acl]) -> None:
    """Create the missing ACLs, delete all others, and wait until the brokers that respond know them.

    Raises ApiError, such as REQUEST_TIMED_OUT if a broker does not apply them in time, or Disconnected.
    """
    wanted, existing = {_stored(acl) for acl in acls}, cluster.retry(lambda: _describe(cluster))
    # First those that are new, so that no request is denied that is allowed before and after.
    if wanted - existing:
        create_acls(cluster, sorted(wanted - existing))
    if existing - wanted:
        delete_acls(cluster, sorted(existing - wanted))

    def is_known(node_id: int) -> bool:
        try:
            return _describe(cluster, node_id) == wanted
        except Disconnected:
            return True  # a broker that is down loads the ACLs when it starts

    stale = cluster.stale_brokers(is_known, cluster.timeout_seconds)
    if stale:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"brokers without the ACLs: {', '.join(map(str, stale))}")


def _describe(cluster: ClusterClient, node_id: int | None = None) -> set[StoredAcl]:
    """Return all ACLs. Query broker `node_id`, or any broker."""
    request = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    kind = DescribeAclsResponse
    response = (
        cluster.send(request, kind) if node_id is None else cluster.send_to_node(node_id, request, kind)
    )
    raise_for_code(response.error_code, response.error_message, "the ACLs")
    return {
        StoredAcl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.operation,
            acl.principal,
            acl.host,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    }


def _stored(acl: Acl) -> StoredAcl:
    return StoredAcl(
        ResourceType[acl.resource_type],
        acl.resource_name,
        PatternType.PREFIXED if acl.is_prefixed else PatternType.LITERAL,
        ALL_OPERATIONS if acl.operation == "ALL" else Operation[acl.operation],
        acl.principal,
        acl.host,
        Permission[acl.permission],
    )
