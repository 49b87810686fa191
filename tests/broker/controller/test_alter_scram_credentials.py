"""AlterUserScramCredentials as the controller decides it."""

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


def taken(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def given(name: str, mechanism: int = SHA_256, iterations: int = 4096, **fields: Any) -> Any:
    values = {"salt": b"7q", "salted_password": b"`!", **fields}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, iterations=iterations, **values)


def alter(cluster: Any, taken: Any = (), given: Any = ()) -> dict[str, str | None]:
    reply = cluster.run(AlterScramCredentials(taken, given))
    return {name: None if fault is None else fault.code.name for name, fault in reply.items()}


def test_what_is_kept_of_a_password_is_what_kafka_keeps(cluster: Any) -> None:
    assert alter(cluster, [], [given("alice", iterations=8192)]) == {"alice": None}
    record = cluster.image.scram_credentials[SHA_256, "alice"]
    # As its storage tool makes it of salt="N3E=",saltedpassword="YCE=".
    assert (record.name, bytes(record.salt), record.iterations) == ("alice", b"7q", 8192)
    assert bytes(record.stored_key).hex() == (
        "e8ed7e79a880316a18a5a18f63a109902c2dfd958a29a66e7bb487eb5fd3455a"
    )
    assert bytes(record.server_key).hex() == (
        "cdef114d813edc6a3d8e4f842a7383f87f017eb06e8af3c0e5a3981bcb1d5c60"
    )
    assert alter(cluster, [], [given("alice", SHA_512)]) == {"alice": None}
    assert set(cluster.image.scram_credentials) == {(SHA_256, "alice"), (SHA_512, "alice")}
    assert alter(cluster, [taken("alice")]) == {"alice": None}
    assert set(cluster.image.scram_credentials) == {(SHA_512, "alice")}


@pytest.mark.parametrize(
    ("deletions", "upsertions", "told"),
    [
        ([taken("a"), taken("a")], [], {"a": "DUPLICATE_RESOURCE"}),
        ([taken("a")], [given("a")], {"a": "DUPLICATE_RESOURCE"}),
        ([], [given("b"), given("b", SHA_512), given("b")], {"b": "DUPLICATE_RESOURCE"}),
        ([taken("b"), taken("b")], [given("b")], {"b": "RESOURCE_NOT_FOUND"}),
        ([taken("a", SHA_512)], [], {"a": "RESOURCE_NOT_FOUND"}),
        ([taken("a", 0)], [], {"a": "UNSUPPORTED_SASL_MECHANISM"}),
        ([], [given("", 0)], {"": "UNACCEPTABLE_CREDENTIAL"}),
        ([], [given("b", iterations=4095)], {"b": "UNACCEPTABLE_CREDENTIAL"}),
        ([], [given("b", SHA_512, 16385)], {"b": "UNACCEPTABLE_CREDENTIAL"}),
        ([], [given("b", salted_password=b"")], {"b": "UNACCEPTABLE_CREDENTIAL"}),
    ],
)
def test_what_is_refused_is_not_done(cluster: Any, deletions: Any, upsertions: Any, told: Any) -> None:
    alter(cluster, [], [given("a")])
    before = cluster.image.scram_credentials
    assert alter(cluster, deletions, upsertions) == told
    assert cluster.image.scram_credentials == before


def test_it_takes_a_metadata_version_that_knows_credentials(bare_cluster: Any) -> None:
    for level, told in ((10, ErrorCode.UNSUPPORTED_VERSION.name), (11, None)):
        cluster = bare_cluster([("metadata.version", level)])
        assert alter(cluster, [], [given("a")]) == {"a": told}
