"""DescribeAcls, CreateAcls and DeleteAcls v1–3. KIP-140, KIP-290 (pattern types), KIP-373 (user resources).

Checks, in this order: no field of an ACL or filter has the code 0 (unknown), otherwise the connection closes,
as Apache Kafka does for a request that it cannot parse; then whether the node has an authorizer. There is
none, so all three APIs return SECURITY_DISABLED. Each node describes ACLs itself. Brokers forward CreateAcls
and DeleteAcls to the active controller. ACLs in the metadata log are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.create_acls import AclCreation, CreateAclsRequest
from kwire.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kwire.wire.messages.describe_acls import DescribeAclsRequest

if TYPE_CHECKING:
    from kwire.broker.api.request.context import Delayed
    from kwire.broker.api.request.forwarding import Forward
    from kwire.broker.api.request.ports import ControllerRequestContext, NodeRole

UNKNOWN: Final = 0
NO_AUTHORIZER: Final = "No Authorizer is configured."
NO_AUTHORIZER_ON_BROKER: Final = "No Authorizer is configured on the broker"
"""Kafka's message for DescribeAcls, on controllers, too."""

AclChanges = CreateAclsRequest | DeleteAclsRequest


def describe_acls(
    _node: NodeRole, _context: ControllerRequestContext, request: DescribeAclsRequest
) -> NoReturn:
    """Raise ApiError SECURITY_DISABLED, or WireError for a filter with an unknown code."""
    _check_filter(request)
    raise ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER_ON_BROKER)


def check_acl_changes(
    _node: NodeRole, context: ControllerRequestContext, request: AclChanges, forward: Forward
) -> Delayed:
    """Forward CreateAcls or DeleteAcls. Raises WireError for an unknown code, before the request is sent."""
    _check(request)
    return forward(context, request)


def change_acls(_node: NodeRole, _context: ControllerRequestContext, request: AclChanges) -> NoReturn:
    """Raise ApiError SECURITY_DISABLED, the result of each ACL or filter; WireError for an unknown code."""
    _check(request)
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
