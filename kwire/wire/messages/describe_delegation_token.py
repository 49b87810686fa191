"""DescribeDelegationToken v1–3. KIP-48; KIP-373 (token requester, v3)."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int16, Int32, Int64, Message, Str, field, message


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest(Message):
    """A request for the tokens of some owners, or of all owners if the list is null."""

    owners: list[DescribeDelegationTokenOwner] | None = field(nullable="1+")


class DescribeDelegationTokenOwner(Message):
    principal_type: Str = field()
    principal_name: Str = field()


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse(Message):
    """The tokens that the requester may describe."""

    error_code: Int16 = field()
    tokens: list[DescribedDelegationToken] = field()
    throttle_time_ms: Int32 = field()


class DescribedDelegationToken(Message):
    principal_type: Str = field()
    principal_name: Str = field()
    token_requester_principal_type: Str = field("3+")
    token_requester_principal_name: Str = field("3+")
    issue_timestamp: Int64 = field()
    expiry_timestamp: Int64 = field()
    max_timestamp: Int64 = field()
    token_id: Str = field()
    hmac: Bytes = field()
    renewers: list[DescribedDelegationTokenRenewer] = field()


class DescribedDelegationTokenRenewer(Message):
    """A principal that may renew the token."""

    principal_type: Str = field()
    principal_name: Str = field()
