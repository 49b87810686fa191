"""CreateDelegationToken v1–3. KIP-48; KIP-373 (tokens for another user, v3)."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int16, Int32, Int64, Message, Str, field, message


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest(Message):
    owner_principal_type: Str | None = field("3+", nullable="3+")
    owner_principal_name: Str | None = field("3+", nullable="3+")
    renewers: list[CreatableRenewers] = field()
    max_lifetime_ms: Int64 = field()


class CreatableRenewers(Message):
    """A principal that may renew the token."""

    principal_type: Str = field()
    principal_name: Str = field()


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse(Message):
    """The token and its HMAC, which serves as the password."""

    error_code: Int16 = field()
    principal_type: Str = field()
    principal_name: Str = field()
    token_requester_principal_type: Str = field("3+")
    token_requester_principal_name: Str = field("3+")
    issue_timestamp_ms: Int64 = field()
    expiry_timestamp_ms: Int64 = field()
    max_timestamp_ms: Int64 = field()
    token_id: Str = field()
    hmac: Bytes = field()
    throttle_time_ms: Int32 = field()
