"""AlterUserScramCredentials v0. KIP-554."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int8, Int16, Int32, Message, Str, field, message


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest(Message):
    """Take credentials away from users, and give them others."""

    deletions: list[ScramCredentialDeletion] = field()
    upsertions: list[ScramCredentialUpsertion] = field()


class ScramCredentialDeletion(Message):
    """A credential to take away."""

    name: Str = field()
    mechanism: Int8 = field()


class ScramCredentialUpsertion(Message):
    """A credential to give, of a password that the client has salted."""

    name: Str = field()
    mechanism: Int8 = field()
    iterations: Int32 = field()
    salt: Bytes = field()
    salted_password: Bytes = field()


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse(Message):
    """What became of each user."""

    throttle_time_ms: Int32 = field()
    results: list[AlterUserScramCredentialsResult] = field()


class AlterUserScramCredentialsResult(Message):
    """What became of one user."""

    user: Str = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
