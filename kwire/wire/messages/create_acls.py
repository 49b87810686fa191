"""CreateAcls v1–3. KIP-140; KIP-290 (pattern types, v1), KIP-373 (user resources, v3)."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=30, versions="1-3", flexible="2+")
class CreateAclsRequest(Message):
    creations: list[AclCreation] = field()


class AclCreation(Message):
    """An ACL to create. Its codes are those of Kafka's enums, such as ResourceType; 0 means unknown."""

    resource_type: Int8 = field()
    resource_name: Str = field()
    resource_pattern_type: Int8 = field(default=3)
    principal: Str = field()
    host: Str = field()
    operation: Int8 = field()
    permission_type: Int8 = field()


@message(key=30, versions="1-3", flexible="2+")
class CreateAclsResponse(Message):
    throttle_time_ms: Int32 = field()
    results: list[AclCreationResult] = field()


class AclCreationResult(Message):
    """Result for the ACL at the same position of the request."""

    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
