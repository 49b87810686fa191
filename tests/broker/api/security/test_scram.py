"""DescribeUserScramCredentials and AlterUserScramCredentials, as Apache Kafka 4.3.1 answers them."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kwire.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from tests.node_harness import NodeHarness

NONE = ErrorCode.NONE
SHA_256, SHA_512 = 1, 2


@pytest.fixture
def harness() -> NodeHarness:
    made = NodeHarness()
    alter(made, [("alice", SHA_256), ("bob", SHA_512)])
    return made


def alter(
    harness: NodeHarness, given: Any = (), taken: Any = (), iterations: int = 4096
) -> list[tuple[str, int]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in taken],
        upsertions=[
            ScramCredentialUpsertion(
                name=name, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
            )
            for name, mechanism in given
        ],
    )
    results = harness.call(0, request).results
    for one in results:
        assert (one.error_message is None) == (one.error_code == NONE)
    return [(one.user, one.error_code) for one in results]


def described(harness: NodeHarness, *names: str) -> dict[str, Any]:
    """Each user's mechanisms and iterations, or the error's code."""
    asked = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] or None)
    answer = harness.call(0, asked)
    assert (answer.error_code, answer.throttle_time_ms) == (NONE, 0)
    return {
        one.user: one.error_code or [(info.mechanism, info.iterations) for info in one.credential_infos]
        for one in answer.results
    }


def test_users_are_described(harness: NodeHarness) -> None:
    assert alter(harness, [("bob", SHA_256)], iterations=8192) == [("bob", NONE)]
    bobs = [(SHA_256, 8192), (SHA_512, 4096)]
    assert described(harness) == {"alice": [(SHA_256, 4096)], "bob": bobs}
    assert described(harness, "zoe", "bob", "alice", "alice") == {
        "zoe": ErrorCode.RESOURCE_NOT_FOUND,
        "bob": bobs,
        "alice": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_all_results_are_told_and_what_is_right_is_done(harness: NodeHarness) -> None:
    assert alter(
        harness, [("carol", SHA_256), ("dave", 3), ("dave", SHA_256)], [("bob", SHA_512), ("zoe", 1)]
    ) == [
        ("bob", NONE),
        ("carol", NONE),
        ("zoe", ErrorCode.RESOURCE_NOT_FOUND),
        ("dave", ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ]
    assert described(harness) == {"alice": [(SHA_256, 4096)], "carol": [(SHA_256, 4096)]}


def test_they_are_there_after_a_restart() -> None:
    harness = NodeHarness()
    alter(harness, [("alice", SHA_256)])
    harness.stop()
    harness.start()
    assert described(harness) == {"alice": [(SHA_256, 4096)]}
