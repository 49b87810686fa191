"""DescribeAcls, CreateAcls and DeleteAcls v1–3. KIP-140, KIP-290 (pattern types), KIP-373 (user resources).

Checks, in this order: no field of an ACL or filter has the code 0 (unknown), otherwise the connection closes,
as Apache Kafka does for a request that it cannot parse; then the client's rights; then whether the node has
an authorizer. Without one, all three APIs return SECURITY_DISABLED. Each node describes ACLs itself. Brokers
forward CreateAcls and DeleteAcls to the active controller.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import Delayed
from kwire.broker.controller.commands import CreateAcls, DeleteAcls, Fault
from kwire.broker.security.acl import Acl, AclFilter, acl_of
from kwire.broker.security.authorizer import Operation
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from kwire.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kwire.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.forwarding import Forward
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole, NodeRole

UNKNOWN: Final = 0
NO_AUTHORIZER: Final = "No Authorizer is configured."
NO_AUTHORIZER_ON_BROKER: Final = "No Authorizer is configured on the broker"
"""Kafka's message for DescribeAcls, on controllers, too."""

AclChanges = CreateAclsRequest | DeleteAclsRequest


def describe_acls(
    node: NodeRole, context: ControllerRequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """Return the ACLs that match the filter, by resource pattern.

    Raises ApiError SECURITY_DISABLED, or WireError for a filter with an unknown code.
    """
    _check_filter(request)
    node.gate.require(context, Operation.DESCRIBE)
    if node.gate.authorizer is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER_ON_BROKER)
    acl_filter = _filter(request)
    acls = sorted(acl for acl in map(acl_of, node.image.acls.values()) if acl_filter.matches(acl))
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=[
                    AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission_type,
                    )
                    for acl in group
                ],
            )
            for (resource_type, name, pattern_type), group in groupby(acls, key=lambda acl: acl[:3])
        ]
    )


def check_acl_changes(
    _node: NodeRole, context: ControllerRequestContext, request: AclChanges, forward: Forward
) -> Delayed:
    """Forward CreateAcls or DeleteAcls. Raises WireError for an unknown code, before the request is sent."""
    _check(request)
    return forward(context, request)


def create_acls(
    node: ControllerRole, context: ControllerRequestContext, request: CreateAclsRequest
) -> Delayed:
    """Create ACLs on the controller. Return one result per ACL.

    Raises ApiError SECURITY_DISABLED, or WireError for an unknown code.
    """
    _check_changes(node, context, request)
    acls = [
        Acl(
            one.resource_type,
            one.resource_name,
            one.resource_pattern_type,
            one.operation,
            one.principal,
            one.host,
            one.permission_type,
        )
        for one in request.creations
    ]

    def respond(faults: list[Fault | None]) -> CreateAclsResponse:
        return CreateAclsResponse(
            results=[
                AclCreationResult(error_message="")
                if fault is None
                else AclCreationResult(error_code=fault.code, error_message=fault.message)
                for fault in faults
            ]
        )

    return submit(node, context, CreateAcls(acls), respond)


def delete_acls(
    node: ControllerRole, context: ControllerRequestContext, request: DeleteAclsRequest
) -> Delayed:
    """Delete ACLs on the controller. Return the deleted ACLs of each filter.

    Raises ApiError SECURITY_DISABLED, or WireError for an unknown code.
    """
    _check_changes(node, context, request)

    def respond(results: list[list[Acl] | Fault]) -> DeleteAclsResponse:
        return DeleteAclsResponse(filter_results=[_filter_result(result) for result in results])

    return submit(node, context, DeleteAcls([_filter(one) for one in request.filters]), respond)


def _filter_result(result: list[Acl] | Fault) -> DeleteAclsFilterResult:
    if isinstance(result, Fault):
        return DeleteAclsFilterResult(error_code=result.code, error_message=result.message)
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
            for acl in result
        ],
    )


def _filter(one: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        one.resource_type_filter,
        one.resource_name_filter,
        one.pattern_type_filter,
        one.operation,
        one.principal_filter,
        one.host_filter,
        one.permission_type,
    )


def _check_changes(node: ControllerRole, context: ControllerRequestContext, request: AclChanges) -> None:
    _check(request)
    node.gate.require(context, Operation.ALTER)
    if node.gate.authorizer is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def _check(request: AclChanges) -> None:
    if isinstance(request, CreateAclsRequest):
        for creation in request.creations:
            _check_creation(creation)
    else:
        for acl_filter in request.filters:
            _check_filter(acl_filter)


def _check_creation(creation: AclCreation) -> None:
    codes = (
        creation.resource_type,
        creation.resource_pattern_type,
        creation.operation,
        creation.permission_type,
    )
    if UNKNOWN in codes:
        raise WireError(f"an ACL to create has an unknown code: {creation}")


def _check_filter(acl_filter: DescribeAclsRequest | DeleteAclsFilter) -> None:
    codes = (
        acl_filter.resource_type_filter,
        acl_filter.pattern_type_filter,
        acl_filter.operation,
        acl_filter.permission_type,
    )
    if UNKNOWN in codes:
        raise WireError(f"a filter of ACLs has an unknown code: {acl_filter}")
