"""DescribeUserScramCredentials and AlterUserScramCredentials, compared with Apache Kafka 4.3.1."""

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
    harness = NodeHarness()
    alter(harness, [("alice", SHA_256), ("bob", SHA_512)])
    return harness


def alter(
    harness: NodeHarness, upsertions: Any = (), deletions: Any = (), iterations: int = 4096
) -> list[tuple[str, int]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in deletions],
        upsertions=[
            ScramCredentialUpsertion(
                name=name, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
            )
            for name, mechanism in upsertions
        ],
    )
    results = harness.call(0, request).results
    for one in results:
        assert (one.error_message is None) == (one.error_code == NONE)
    return [(one.user, one.error_code) for one in results]


def describe_users(harness: NodeHarness, *names: str) -> dict[str, Any]:
    """Return the mechanisms and iterations of each user, or the error code."""
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] or None)
    response = harness.call(0, request)
    assert (response.error_code, response.throttle_time_ms) == (NONE, 0)
    return {
        one.user: one.error_code or [(info.mechanism, info.iterations) for info in one.credential_infos]
        for one in response.results
    }


def test_users_are_described(harness: NodeHarness) -> None:
    assert alter(harness, [("bob", SHA_256)], iterations=8192) == [("bob", NONE)]
    bobs = [(SHA_256, 8192), (SHA_512, 4096)]
    assert describe_users(harness) == {"alice": [(SHA_256, 4096)], "bob": bobs}
    assert describe_users(harness, "zoe", "bob", "alice", "alice") == {
        "zoe": ErrorCode.RESOURCE_NOT_FOUND,
        "bob": bobs,
        "alice": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_each_change_has_its_result_and_valid_ones_apply(harness: NodeHarness) -> None:
    assert alter(
        harness, [("carol", SHA_256), ("dave", 3), ("dave", SHA_256)], [("bob", SHA_512), ("zoe", 1)]
    ) == [
        ("bob", NONE),
        ("carol", NONE),
        ("zoe", ErrorCode.RESOURCE_NOT_FOUND),
        ("dave", ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ]
    assert describe_users(harness) == {"alice": [(SHA_256, 4096)], "carol": [(SHA_256, 4096)]}


def test_credentials_survive_a_restart() -> None:
    harness = NodeHarness()
    alter(harness, [("alice", SHA_256)])
    harness.stop()
    harness.start()
    assert describe_users(harness) == {"alice": [(SHA_256, 4096)]}
