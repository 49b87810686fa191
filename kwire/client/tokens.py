"""Delegation tokens: passwords for a while, which a user has the cluster make (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import NamedTuple

from kwire.broker.security.principal import Principal
from kwire.client.cluster_client import ClusterClient
from kwire.client.errors import raise_for_code
from kwire.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kwire.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from kwire.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from kwire.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kwire.wire.schema import Message

BROKER_DEFAULT = -1
"""A time that is left to the brokers' configuration."""


class Token(NamedTuple):
    """A token, and all that is known of it."""

    token_id: str
    hmac: bytes
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    """Until then it can be used, unless it is renewed."""
    max_ms: int
    """Until then it can be renewed."""

    def __repr__(self) -> str:
        return f"Token({self.token_id}, [hidden], owner={self.owner}, expires_ms={self.expires_ms})"

    @property
    def password(self) -> str:
        """What clients show with SCRAM, with its id as the name."""
        return base64.b64encode(self.hmac).decode()


def create_token(
    cluster: ClusterClient,
    owner: Principal | None = None,
    renewers: Iterable[Principal] = (),
    max_lifetime_ms: int = BROKER_DEFAULT,
) -> Token:
    """A token of a user's, or of who asks. ApiError, Lost.

    Where an answer is lost it is not asked for again: there would be a second token, and nobody to know it.
    """
    known = tuple(renewers)
    request = CreateDelegationTokenRequest(
        owner_principal_type=owner.type if owner else None,
        owner_principal_name=owner.name if owner else None,
        renewers=[CreatableRenewers(principal_type=one.type, principal_name=one.name) for one in known],
        max_lifetime_ms=max_lifetime_ms,
    )

    def attempt() -> Token:
        response = cluster.send_to_controller(request, CreateDelegationTokenResponse, at_most_once=True)
        raise_for_code(response.error_code, None, "the token")
        of = Principal(response.principal_type, response.principal_name)
        by = Principal(response.token_requester_principal_type, response.token_requester_principal_name)
        return Token(
            response.token_id,
            bytes(response.hmac),
            of,
            by if by.name else of,
            known,
            response.issue_timestamp_ms,
            response.expiry_timestamp_ms,
            response.max_timestamp_ms,
        )

    cluster.close()  # one that was idle for long may be gone, which would be found only by asking over it
    return cluster.retry(attempt, at_most_once=True)


def describe_tokens(
    cluster: ClusterClient, owners: Iterable[Principal] | None = None, node_id: int | None = None
) -> list[Token]:
    """Those of some owners, or all that who asks may see, the oldest first; as a broker knows them, or any.

    ApiError, Lost.
    """
    wanted = None
    if owners is not None:
        wanted = [
            DescribeDelegationTokenOwner(principal_type=one.type, principal_name=one.name) for one in owners
        ]
    request = DescribeDelegationTokenRequest(owners=wanted)

    def attempt() -> DescribeDelegationTokenResponse:
        kind = DescribeDelegationTokenResponse
        response = (
            cluster.send(request, kind) if node_id is None else cluster.send_to_node(node_id, request, kind)
        )
        raise_for_code(response.error_code, None, "the tokens")
        return response

    found = []
    for one in cluster.retry(attempt).tokens:
        owner = Principal(one.principal_type, one.principal_name)
        requester = Principal(one.token_requester_principal_type, one.token_requester_principal_name)
        renewers = tuple(Principal(each.principal_type, each.principal_name) for each in one.renewers)
        found.append(
            Token(
                one.token_id,
                bytes(one.hmac),
                owner,
                requester if requester.name else owner,
                renewers,
                one.issue_timestamp,
                one.expiry_timestamp,
                one.max_timestamp,
            )
        )
    return sorted(found, key=lambda token: (token.issued_ms, token.token_id))


def renew_token(cluster: ClusterClient, hmac: bytes, period_ms: int = BROKER_DEFAULT) -> int:
    """Let a token live for so long from now on, and give its end. ApiError, Lost."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    return _end_after(cluster, request, RenewDelegationTokenResponse)


def expire_token(cluster: ClusterClient, hmac: bytes, period_ms: int = BROKER_DEFAULT) -> int:
    """Let a token end after so long, or at once, and give its end. ApiError, Lost."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    return _end_after(cluster, request, ExpireDelegationTokenResponse)


def _end_after(
    cluster: ClusterClient,
    request: Message,
    kind: type[RenewDelegationTokenResponse | ExpireDelegationTokenResponse],
) -> int:
    def attempt() -> int:
        response = cluster.send_to_controller(request, kind)
        raise_for_code(response.error_code, None, "the token")
        return response.expiry_timestamp_ms

    return cluster.retry(attempt)
