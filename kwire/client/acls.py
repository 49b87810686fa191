"""Requests for ACLs (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kwire.broker.security.acl import ANY, Acl, AclFilter
from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import raise_for_code
from kwire.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from kwire.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from kwire.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

ALL_ACLS: Final = AclFilter(ANY, None, ANY, ANY, None, None, ANY)
"""The filter that matches every ACL."""
ACLS_PER_REQUEST: Final = 1_000
"""Controllers reject changes with more than 10,000 records."""


def describe_acls(
    cluster: ClusterClient, filters: Iterable[AclFilter] = (ALL_ACLS,), node_id: int | None = None
) -> list[Acl]:
    """Return the ACLs that match at least one filter, sorted. Query broker `node_id`, or any broker.

    Raises ApiError, Disconnected.
    """
    return sorted({acl for one in filters for acl in _describe(cluster, one, node_id)})


def _describe(cluster: ClusterClient, one: AclFilter, node_id: int | None) -> list[Acl]:
    request = DescribeAclsRequest(
        resource_type_filter=one.resource_type,
        resource_name_filter=one.resource_name,
        pattern_type_filter=one.pattern_type,
        principal_filter=one.principal,
        host_filter=one.host,
        operation=one.operation,
        permission_type=one.permission_type,
    )

    def attempt() -> DescribeAclsResponse:
        kind = DescribeAclsResponse
        response = (
            cluster.send(request, kind) if node_id is None else cluster.send_to_node(node_id, request, kind)
        )
        raise_for_code(response.error_code, response.error_message, "the ACLs")
        return response

    return [
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.operation,
            acl.principal,
            acl.host,
            acl.permission_type,
        )
        for resource in cluster.retry(attempt).resources
        for acl in resource.acls
    ]


def create_acls(cluster: ClusterClient, acls: Sequence[Acl]) -> None:
    """Create ACLs. An ACL that exists is no error. Raises ApiError for the first failure, or Disconnected.

    Other ACLs may have been created if one of them failed.
    """
    for start in range(0, len(acls), ACLS_PER_REQUEST):
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    resource_pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
                for acl in acls[start : start + ACLS_PER_REQUEST]
            ]
        )

        def attempt(request: CreateAclsRequest = request) -> None:
            for result in cluster.send_to_controller(request, CreateAclsResponse).results:
                raise_for_code(result.error_code, result.error_message, "the ACLs")

        cluster.retry(attempt)


def delete_acls(cluster: ClusterClient, acls: Sequence[Acl]) -> None:
    """Delete ACLs. A missing ACL is no error. Raises ApiError for the first failure, or Disconnected."""
    for start in range(0, len(acls), ACLS_PER_REQUEST):
        request = DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=acl.resource_type,
                    resource_name_filter=acl.resource_name,
                    pattern_type_filter=acl.pattern_type,
                    principal_filter=acl.principal,
                    host_filter=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
                for acl in acls[start : start + ACLS_PER_REQUEST]
            ]
        )

        def attempt(request: DeleteAclsRequest = request) -> None:
            response = cluster.send_to_controller(request, DeleteAclsResponse)
            for result in response.filter_results:
                raise_for_code(result.error_code, result.error_message, "the ACLs")
                for acl in result.matching_acls:
                    raise_for_code(acl.error_code, acl.error_message, "the ACLs")

        cluster.retry(attempt)
