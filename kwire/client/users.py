"""Requests for SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_bytes
from typing import Final, NamedTuple

from kwire.broker.security.scram_credentials import MIN_ITERATIONS, SALT_BYTES, SCRAM_MECHANISMS
from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import raise_for_code
from kwire.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kwire.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

_BY_CODE: Final = {mechanism.code: mechanism.name for mechanism in SCRAM_MECHANISMS.values()}


class UserCredential(NamedTuple):
    """A user's SCRAM credential, without its secrets, which brokers do not return."""

    user: str
    mechanism: str
    iterations: int


def describe_credentials(
    cluster: ClusterClient, names: Iterable[str] | None = None, node_id: int | None = None
) -> list[UserCredential]:
    """Return the sorted credentials of some users, or of all users. Query broker `node_id`, or any broker.

    Raises ApiError if a user in `names` has no credential, or Disconnected.
    """
    wanted = None if names is None else [UserName(name=name) for name in names]
    request = DescribeUserScramCredentialsRequest(users=wanted)

    def attempt() -> DescribeUserScramCredentialsResponse:
        kind = DescribeUserScramCredentialsResponse
        response = (
            cluster.send(request, kind) if node_id is None else cluster.send_to_node(node_id, request, kind)
        )
        raise_for_code(response.error_code, response.error_message, "the users")
        return response

    found = []
    for user in cluster.retry(attempt).results:
        raise_for_code(user.error_code, user.error_message, f"user {user.user}")
        found += [
            UserCredential(user.user, _BY_CODE.get(one.mechanism, str(one.mechanism)), one.iterations)
            for one in user.credential_infos
        ]
    return sorted(found)


def set_password(
    cluster: ClusterClient, name: str, password: str, mechanism: str, iterations: int = MIN_ITERATIONS
) -> None:
    """Set a user's password; only a salted hash is sent. Raises ApiError, Disconnected."""
    scram = SCRAM_MECHANISMS[mechanism]
    salt = token_bytes(SALT_BYTES)
    upsertion = ScramCredentialUpsertion(
        name=name,
        mechanism=scram.code,
        iterations=iterations,
        salt=salt,
        salted_password=scram.salt_password(password, salt, iterations),
    )
    _alter(cluster, AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))


def delete_credential(cluster: ClusterClient, name: str, mechanism: str) -> None:
    """Delete a user's credential for one mechanism. Raises ApiError, Disconnected."""
    deletion = ScramCredentialDeletion(name=name, mechanism=SCRAM_MECHANISMS[mechanism].code)
    _alter(cluster, AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))


def _alter(cluster: ClusterClient, request: AlterUserScramCredentialsRequest) -> None:
    def attempt() -> None:
        response = cluster.send_to_controller(request, AlterUserScramCredentialsResponse)
        for one in response.results:
            raise_for_code(one.error_code, one.error_message, f"user {one.user}")

    cluster.retry(attempt)
