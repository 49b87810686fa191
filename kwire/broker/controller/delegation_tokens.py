"""Delegation tokens: creation, renewal and expiration by the active controller. KIP-48, KIP-373.

The checks run in Apache Kafka's order: the cluster has a token secret key, the metadata.version is
sufficient, and the token exists. RenewDelegationToken then checks the expiration before the principal, and
ExpireDelegationToken the principal before the expiration. Times are wall clock times in ms. A token is still
valid in the millisecond of its expiration time.
"""

from __future__ import annotations

import random
from typing import Final

from kwire.broker.controller.commands import (
    ControllerResult,
    CreateToken,
    ExpireToken,
    Fault,
    RemoveExpiredTokens,
    RenewToken,
)
from kwire.broker.controller.topics import new_uuid
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.security.delegation_tokens import DelegationTokenSettings, TokenHmacs, is_owner_or_renewer
from kwire.broker.security.principal import USER
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import uuid_to_text
from kwire.wire.records.metadata import DelegationTokenRecord, RemoveDelegationTokenRecord

TOKENS_LEVEL: Final = 14
"""The first metadata.version with delegation tokens: 3.6-IV2."""
MAX_TIMESTAMP_MS: Final = 2**63 - 1


def create_token(
    command: CreateToken, image: MetadataImage, terms: DelegationTokenSettings, rng: random.Random
) -> ControllerResult[DelegationTokenRecord | Fault]:
    fault = _fault(image, terms)
    if fault is None and any(renewer.type != USER for renewer in command.renewers):
        fault = Fault(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if fault is not None:
        return ControllerResult([], fault)
    lifetime_ms = terms.max_lifetime_ms
    if command.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, command.max_lifetime_ms)
    max_ms = _add_ms(command.now_ms, lifetime_ms)
    record = DelegationTokenRecord(
        owner=str(command.owner),
        requester=str(command.requester),
        renewers=[str(renewer) for renewer in command.renewers],
        issue_timestamp=command.now_ms,
        max_timestamp=max_ms,
        expiration_timestamp=min(max_ms, _add_ms(command.now_ms, terms.expiry_time_ms)),
        token_id=uuid_to_text(new_uuid(rng)),
    )
    return ControllerResult([StoredRecord(record)], record)


def renew_token(
    command: RenewToken, image: MetadataImage, terms: DelegationTokenSettings, hmacs: TokenHmacs
) -> ControllerResult[int | Fault]:
    """Renew a token. The new expiration time cannot be later than the token's max timestamp."""
    token = _find_token(command.hmac, image, terms, hmacs)
    if isinstance(token, Fault):
        return ControllerResult([], token)
    if _is_expired(token, command.now_ms):
        return ControllerResult([], Fault(ErrorCode.DELEGATION_TOKEN_EXPIRED))
    if not is_owner_or_renewer(token, command.principal):
        return ControllerResult([], Fault(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH))
    period_ms = terms.expiry_time_ms
    if command.period_ms > 0:
        period_ms = min(period_ms, command.period_ms)
    return _set_expiration(token, min(token.max_timestamp, _add_ms(command.now_ms, period_ms)))


def expire_token(
    command: ExpireToken, image: MetadataImage, terms: DelegationTokenSettings, hmacs: TokenHmacs
) -> ControllerResult[int | Fault]:
    """Set a token's expiration time. A negative period deletes the token, even an expired one."""
    token = _find_token(command.hmac, image, terms, hmacs)
    if isinstance(token, Fault):
        return ControllerResult([], token)
    if not is_owner_or_renewer(token, command.principal):
        return ControllerResult([], Fault(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH))
    if command.period_ms < 0:
        return ControllerResult([_removal(token)], command.now_ms)
    if _is_expired(token, command.now_ms):
        return ControllerResult([], Fault(ErrorCode.DELEGATION_TOKEN_EXPIRED))
    return _set_expiration(token, min(token.max_timestamp, _add_ms(command.now_ms, command.period_ms)))


def remove_expired_tokens(command: RemoveExpiredTokens, image: MetadataImage) -> ControllerResult[None]:
    tokens = image.delegation_tokens.values()
    expired = [_removal(token) for token in tokens if _is_expired(token, command.now_ms)]
    return ControllerResult(expired, None, atomic=False)


def _fault(image: MetadataImage, terms: DelegationTokenSettings) -> Fault | None:
    if not terms.secret:
        return Fault(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return None if image.metadata_version >= TOKENS_LEVEL else Fault(ErrorCode.UNSUPPORTED_VERSION)


def _find_token(
    hmac: bytes, image: MetadataImage, terms: DelegationTokenSettings, hmacs: TokenHmacs
) -> DelegationTokenRecord | Fault:
    fault = _fault(image, terms)
    if fault is not None:
        return fault
    token = hmacs.find(image.delegation_tokens, hmac)
    return Fault(ErrorCode.DELEGATION_TOKEN_NOT_FOUND) if token is None else token


def _is_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    return min(token.max_timestamp, token.expiration_timestamp) < now_ms


def _set_expiration(token: DelegationTokenRecord, expiration_ms: int) -> ControllerResult[int | Fault]:
    record = DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=expiration_ms,
        token_id=token.token_id,
    )
    return ControllerResult([StoredRecord(record)], expiration_ms)


def _removal(token: DelegationTokenRecord) -> StoredRecord:
    return StoredRecord(RemoveDelegationTokenRecord(token_id=token.token_id))


def _add_ms(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, MAX_TIMESTAMP_MS)
