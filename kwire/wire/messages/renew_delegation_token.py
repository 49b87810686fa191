"""RenewDelegationToken v1–2. KIP-48."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int16, Int32, Int64, Message, field, message


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest(Message):
    hmac: Bytes = field()
    renew_period_ms: Int64 = field()


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse(Message):
    """The new expiry time of the token."""

    error_code: Int16 = field()
    expiry_timestamp_ms: Int64 = field()
    throttle_time_ms: Int32 = field()
