"""ExpireDelegationToken v1–2. KIP-48."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int16, Int32, Int64, Message, field, message


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest(Message):
    """A request to change the expiry time of a token."""

    hmac: Bytes = field()
    expiry_time_period_ms: Int64 = field()


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse(Message):
    """The new expiry time of the token."""

    error_code: Int16 = field()
    expiry_timestamp_ms: Int64 = field()
    throttle_time_ms: Int32 = field()
