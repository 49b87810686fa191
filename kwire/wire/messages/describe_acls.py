"""DescribeAcls v1–3. KIP-140; KIP-290 (pattern types, v1), KIP-373 (user resources, v3)."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest(Message):
    """A filter of ACLs. Null matches every name, principal or host."""

    resource_type_filter: Int8 = field()
    resource_name_filter: Str | None = field(nullable="0+")
    pattern_type_filter: Int8 = field(default=3)
    principal_filter: Str | None = field(nullable="0+")
    host_filter: Str | None = field(nullable="0+")
    operation: Int8 = field()
    permission_type: Int8 = field()


@message(key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    resources: list[DescribeAclsResource] = field()


class DescribeAclsResource(Message):
    """A resource pattern and its matching ACLs."""

    resource_type: Int8 = field()
    resource_name: Str = field()
    pattern_type: Int8 = field(default=3)
    acls: list[AclDescription] = field()


class AclDescription(Message):
    """An ACL of a resource: it allows or denies an operation to a principal from a host."""

    principal: Str = field()
    host: Str = field()
    operation: Int8 = field()
    permission_type: Int8 = field()
