"""Requests for delegation tokens (KIP-48, KIP-373)."""

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
"""The lifetime or renewal period for which the broker's configuration applies."""


class Token(NamedTuple):
    """A delegation token."""

    token_id: str
    hmac: bytes
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    """The time at which the token expires, unless it is renewed."""
    max_ms: int
    """The latest time to which the token can be renewed."""

    def __repr__(self) -> str:
        return f"Token({self.token_id}, [hidden], owner={self.owner}, expires_ms={self.expires_ms})"

    @property
    def password(self) -> str:
        """The SCRAM password; the user name is the token id."""
        return base64.b64encode(self.hmac).decode()


def create_token(
    cluster: ClusterClient,
    owner: Principal | None = None,
    renewers: Iterable[Principal] = (),
    max_lifetime_ms: int = BROKER_DEFAULT,
) -> Token:
    """Create a token for a user, by default for the requester. Raises ApiError, Disconnected.

    A request whose response is lost is not retried, because a retry could create a second, unused token.
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

    cluster.close()  # an idle connection may be dead, which only a request would show
    return cluster.retry(attempt, at_most_once=True)


def describe_tokens(
    cluster: ClusterClient, owners: Iterable[Principal] | None = None, node_id: int | None = None
) -> list[Token]:
    """Return the tokens of some owners, or all visible tokens, oldest first.

    The request goes to broker `node_id`, or to any broker. Raises ApiError, Disconnected.
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
    """Renew a token for `period_ms` from now, and return its new expiry time in ms since 1970.

    Raises ApiError, Disconnected.
    """
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    return _change_expiry(cluster, request, RenewDelegationTokenResponse)


def expire_token(cluster: ClusterClient, hmac: bytes, period_ms: int = BROKER_DEFAULT) -> int:
    """Let a token expire `period_ms` from now, or delete it at once if `period_ms` is negative.

    Return the expiry time in ms since 1970. Raises ApiError, Disconnected.
    """
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    return _change_expiry(cluster, request, ExpireDelegationTokenResponse)


def _change_expiry(
    cluster: ClusterClient,
    request: Message,
    kind: type[RenewDelegationTokenResponse | ExpireDelegationTokenResponse],
) -> int:
    def attempt() -> int:
        response = cluster.send_to_controller(request, kind)
        raise_for_code(response.error_code, None, "the token")
        return response.expiry_timestamp_ms

    return cluster.retry(attempt)
