"""DescribeUserScramCredentials v0. KIP-554."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest(Message):
    """A request for the credentials of some users, or of all users if the list is null."""

    users: list[UserName] | None = field(nullable="0+")


class UserName(Message):
    name: Str = field()


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field()


class DescribeUserScramCredentialsResult(Message):
    """A user and its credentials."""

    user: Str = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    credential_infos: list[CredentialInfo] = field()


class CredentialInfo(Message):
    """A credential's mechanism and iterations. Keys and salts are not returned."""

    mechanism: Int8 = field()
    iterations: Int32 = field()
