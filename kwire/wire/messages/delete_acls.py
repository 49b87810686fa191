"""DeleteAcls v1–3. KIP-140; KIP-290 (pattern types, v1), KIP-373 (user resources, v3)."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest(Message):
    filters: list[DeleteAclsFilter] = field()


class DeleteAclsFilter(Message):
    """A filter of the ACLs to delete. Null matches every name, principal or host."""

    resource_type_filter: Int8 = field()
    resource_name_filter: Str | None = field(nullable="0+")
    pattern_type_filter: Int8 = field(default=3)
    principal_filter: Str | None = field(nullable="0+")
    host_filter: Str | None = field(nullable="0+")
    operation: Int8 = field()
    permission_type: Int8 = field()


@message(key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse(Message):
    throttle_time_ms: Int32 = field()
    filter_results: list[DeleteAclsFilterResult] = field()


class DeleteAclsFilterResult(Message):
    """Result for the filter at the same position of the request."""

    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = field()


class DeleteAclsMatchingAcl(Message):
    """An ACL that matched the filter, and the result of its deletion."""

    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    resource_type: Int8 = field()
    resource_name: Str = field()
    pattern_type: Int8 = field(default=3)
    principal: Str = field()
    host: Str = field()
    operation: Int8 = field()
    permission_type: Int8 = field()
