"""AlterUserScramCredentials v0. KIP-554."""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int8, Int16, Int32, Message, Str, field, message


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest(Message):
    deletions: list[ScramCredentialDeletion] = field()
    upsertions: list[ScramCredentialUpsertion] = field()


class ScramCredentialDeletion(Message):
    name: Str = field()
    mechanism: Int8 = field()


class ScramCredentialUpsertion(Message):
    """A credential to create or replace. The client sends a salted password."""

    name: Str = field()
    mechanism: Int8 = field()
    iterations: Int32 = field()
    salt: Bytes = field()
    salted_password: Bytes = field()


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse(Message):
    throttle_time_ms: Int32 = field()
    results: list[AlterUserScramCredentialsResult] = field()


class AlterUserScramCredentialsResult(Message):
    """Result for one user."""

    user: Str = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
