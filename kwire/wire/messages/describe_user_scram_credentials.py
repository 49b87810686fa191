"""DescribeUserScramCredentials v0. KIP-554."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest(Message):
    """Ask for some users, or for all."""

    users: list[UserName] | None = field(nullable="0+")


class UserName(Message):
    """One of the users."""

    name: Str = field()


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse(Message):
    """Which mechanisms each user can be authenticated by."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field()


class DescribeUserScramCredentialsResult(Message):
    """One user."""

    user: Str = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    credential_infos: list[CredentialInfo] = field()


class CredentialInfo(Message):
    """One of the user's credentials, without what proves it."""

    mechanism: Int8 = field()
    iterations: Int32 = field()
