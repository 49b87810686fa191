"""The users in a cluster's metadata: SCRAM credentials and delegation tokens. KIP-84, KIP-48.

A SCRAM credential of a token is derived from its id with thousands of hashes. That takes milliseconds, in
which the loop would serve no other client. So a worker thread derives the credentials of new tokens in
advance, one at a time, and they are cached. Only a token that is used before its turn is derived in the loop.

An expired token stays valid for authentication until the controller has removed it, as in Apache Kafka. The
session of such a client has lifetime 0.
"""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from kwire.broker.security.delegation_tokens import parse_principal, token_hmac
from kwire.broker.security.principal import USER, Principal
from kwire.broker.security.scram_credentials import SALT_BYTES, SCRAM_MECHANISMS
from kwire.broker.security.users import ScramCredential, TokenCredential
from kwire.host.host import Host
from kwire.wire.records.metadata import DelegationTokenRecord, UserScramCredentialRecord

MAX_CACHED: Final = 10_000
"""The number of cached token credentials. Others are derived each time they are used."""


class UsersImage(Protocol):
    """The part of a metadata image with users."""

    @property
    def scram_credentials(self) -> Mapping[tuple[int, str], UserScramCredentialRecord]: ...
    @property
    def delegation_tokens(self) -> Mapping[str, DelegationTokenRecord]: ...


class ImageUsers:
    """`Users` of the current metadata image."""

    def __init__(
        self,
        image: Callable[[], UsersImage],
        secret: bytes,
        host: Host,
        mechanisms: Callable[[], Iterable[str]] = lambda: (),
        is_running: Callable[[], bool] = lambda: True,
    ) -> None:
        """`secret` is delegation.token.secret.key; if empty, there are no tokens.

        `mechanisms` returns the SCRAM mechanisms that accept tokens. Nothing is derived in advance once
        `is_running` returns False.
        """
        self._image = image
        self._secret = secret
        self._host = host
        self._rng = host.random("salts")
        self._mechanisms = mechanisms
        self._is_running = is_running
        self._cached: dict[tuple[str, str], ScramCredential] = {}
        """By mechanism and token id, the most recently used last."""
        self._tokens: Mapping[str, DelegationTokenRecord] = {}
        """The tokens of the last update."""
        self._pending: deque[tuple[str, str]] = deque()
        self._is_deriving = False

    def scram_credential(self, mechanism: str, name: str) -> ScramCredential | None:
        """See `Users`."""
        record = self._image().scram_credentials.get((SCRAM_MECHANISMS[mechanism].code, name))
        if record is None:
            return None
        return ScramCredential(
            bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
        )

    def token(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """See `Users`. The owner's principal has the type User even if the token's owner has another type."""
        record = self._image().delegation_tokens.get(token_id) if self._secret else None
        if record is None:
            return None
        owner = Principal(USER, parse_principal(record.owner).name, token_authenticated=True)
        return TokenCredential(owner, record.expiration_timestamp, self._credential(mechanism, token_id))

    def update_tokens(self, tokens: Mapping[str, DelegationTokenRecord]) -> None:
        """Replace the tokens with those of a new image."""
        before, self._tokens = self._tokens, tokens
        if tokens is before or not self._secret:
            return
        for key in [key for key in self._cached if key[1] not in tokens]:
            del self._cached[key]
        new = [token_id for token_id in tokens if token_id not in before]
        self._pending.extend((mechanism, token_id) for token_id in new for mechanism in self._mechanisms())
        if not self._is_deriving:
            self._derive_next()

    def _derive_next(self) -> None:
        self._is_deriving = False
        while self._pending and len(self._cached) < MAX_CACHED and self._is_running():
            key = mechanism, token_id = self._pending.popleft()
            if key not in self._cached and token_id in self._tokens:
                self._is_deriving = True
                work = partial(_derive, self._secret, mechanism, token_id, self._rng.randbytes(SALT_BYTES))
                self._host.run_in_worker(work, partial(self._cache, key))
                return
        self._pending.clear()

    def _cache(self, key: tuple[str, str], made: ScramCredential | BaseException) -> None:
        # A token that was used meanwhile is cached already; one that was not cached is derived when it is
        # used.
        if not isinstance(made, BaseException) and key[1] in self._tokens and len(self._cached) < MAX_CACHED:
            self._cached.setdefault(key, made)
        self._host.call_soon(self._derive_next)

    def _credential(self, mechanism: str, token_id: str) -> ScramCredential:
        key = mechanism, token_id
        made = self._cached.pop(key, None)
        if made is None:
            made = _derive(self._secret, mechanism, token_id, self._rng.randbytes(SALT_BYTES))
            if len(self._cached) >= MAX_CACHED:
                del self._cached[next(iter(self._cached))]
        self._cached[key] = made
        return made


def _derive(secret: bytes, mechanism: str, token_id: str, salt: bytes) -> ScramCredential:
    """Derive the credential of a token. OpenSSL releases the GIL for nearly all of the time."""
    password = b64encode(token_hmac(secret, token_id)).decode()
    return SCRAM_MECHANISMS[mechanism].derive_credential_with_salt(password, salt)
