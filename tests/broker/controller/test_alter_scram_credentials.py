"""AlterUserScramCredentials in the controller."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import AlterScramCredentials
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_user_scram_credentials import (
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

SHA_256, SHA_512 = 1, 2


def deletion(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096, **fields: Any) -> Any:
    values = {"salt": b"7q", "salted_password": b"`!", **fields}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, iterations=iterations, **values)


def alter(cluster: Any, deletion: Any = (), upsertion: Any = ()) -> dict[str, str | None]:
    reply = cluster.run(AlterScramCredentials(deletion, upsertion))
    return {name: None if fault is None else fault.code.name for name, fault in reply.items()}


def test_stored_keys_equal_kafkas(cluster: Any) -> None:
    assert alter(cluster, [], [upsertion("alice", iterations=8192)]) == {"alice": None}
    record = cluster.image.scram_credentials[SHA_256, "alice"]
    # Kafka's storage tool writes these keys for salt="N3E=",saltedpassword="YCE=".
    assert (record.name, bytes(record.salt), record.iterations) == ("alice", b"7q", 8192)
    assert bytes(record.stored_key).hex() == (
        "e8ed7e79a880316a18a5a18f63a109902c2dfd958a29a66e7bb487eb5fd3455a"
    )
    assert bytes(record.server_key).hex() == (
        "cdef114d813edc6a3d8e4f842a7383f87f017eb06e8af3c0e5a3981bcb1d5c60"
    )
    assert alter(cluster, [], [upsertion("alice", SHA_512)]) == {"alice": None}
    assert set(cluster.image.scram_credentials) == {(SHA_256, "alice"), (SHA_512, "alice")}
    assert alter(cluster, [deletion("alice")]) == {"alice": None}
    assert set(cluster.image.scram_credentials) == {(SHA_512, "alice")}


@pytest.mark.parametrize(
    ("deletions", "upsertions", "expected"),
    [
        ([deletion("a"), deletion("a")], [], {"a": "DUPLICATE_RESOURCE"}),
        ([deletion("a")], [upsertion("a")], {"a": "DUPLICATE_RESOURCE"}),
        ([], [upsertion("b"), upsertion("b", SHA_512), upsertion("b")], {"b": "DUPLICATE_RESOURCE"}),
        ([deletion("b"), deletion("b")], [upsertion("b")], {"b": "RESOURCE_NOT_FOUND"}),
        ([deletion("a", SHA_512)], [], {"a": "RESOURCE_NOT_FOUND"}),
        ([deletion("a", 0)], [], {"a": "UNSUPPORTED_SASL_MECHANISM"}),
        ([], [upsertion("", 0)], {"": "UNACCEPTABLE_CREDENTIAL"}),
        ([], [upsertion("b", iterations=4095)], {"b": "UNACCEPTABLE_CREDENTIAL"}),
        ([], [upsertion("b", SHA_512, 16385)], {"b": "UNACCEPTABLE_CREDENTIAL"}),
        ([], [upsertion("b", salted_password=b"")], {"b": "UNACCEPTABLE_CREDENTIAL"}),
    ],
)
def test_an_invalid_change_is_refused(cluster: Any, deletions: Any, upsertions: Any, expected: Any) -> None:
    alter(cluster, [], [upsertion("a")])
    before = cluster.image.scram_credentials
    assert alter(cluster, deletions, upsertions) == expected
    assert cluster.image.scram_credentials == before


def test_credentials_need_metadata_version_11(bare_cluster: Any) -> None:
    for level, expected in ((10, ErrorCode.UNSUPPORTED_VERSION.name), (11, None)):
        cluster = bare_cluster([("metadata.version", level)])
        assert alter(cluster, [], [upsertion("a")]) == {"a": expected}
