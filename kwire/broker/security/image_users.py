"""The users in a cluster's metadata: SCRAM credentials and delegation tokens. KIP-84, KIP-48.

The SCRAM credential of a delegation token is derived from the token's HMAC with thousands of hashes. This
takes milliseconds, in which the event loop would serve no other client. So a worker thread derives and caches
the credentials of new tokens in advance, one at a time. If a client uses a token before the thread has
derived its credential, the event loop derives the credential.

As in Apache Kafka, clients can authenticate with an expired token until the controller has removed the token.
Their sessions have a lifetime of 0.
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
"""The number of token credentials to cache. Further credentials are derived each time they are used."""


class UsersImage(Protocol):
    """The part of a metadata image that contains users."""

    @property
    def scram_credentials(self) -> Mapping[tuple[int, str], UserScramCredentialRecord]: ...
    @property
    def delegation_tokens(self) -> Mapping[str, DelegationTokenRecord]: ...


class ImageUsers:
    """The implementation of `Users` that reads the current metadata image."""

    def __init__(
        self,
        image: Callable[[], UsersImage],
        secret: bytes,
        host: Host,
        mechanisms: Callable[[], Iterable[str]] = lambda: (),
        is_running: Callable[[], bool] = lambda: True,
    ) -> None:
        """`secret` is delegation.token.secret.key. If it is empty, there are no tokens.

        `mechanisms` returns the SCRAM mechanisms that accept tokens. Once `is_running` returns False, no
        credentials are derived in advance.
        """
        self._image = image
        self._secret = secret
        self._host = host
        self._rng = host.random("salts")
        self._mechanisms = mechanisms
        self._is_running = is_running
        self._cached: dict[tuple[str, str], ScramCredential] = {}
        """The cached credentials by mechanism and token id, the most recently used last."""
        self._tokens: Mapping[str, DelegationTokenRecord] = {}
        """The tokens of the last call of `update_tokens`."""
        self._pending: deque[tuple[str, str]] = deque()
        self._is_deriving = False

    def scram_credential(self, mechanism: str, name: str) -> ScramCredential | None:
        record = self._image().scram_credentials.get((SCRAM_MECHANISMS[mechanism].code, name))
        if record is None:
            return None
        return ScramCredential(
            bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
        )

    def token(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """Return a delegation token, or None. The type of its `owner` is always User, as in Kafka."""
        record = self._image().delegation_tokens.get(token_id) if self._secret else None
        if record is None:
            return None
        owner = Principal(USER, parse_principal(record.owner).name, token_authenticated=True)
        return TokenCredential(owner, record.expiration_timestamp, self._credential(mechanism, token_id))

    def update_tokens(self, tokens: Mapping[str, DelegationTokenRecord]) -> None:
        """Replace the tokens by those of a new metadata image, and derive the credentials of new tokens."""
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
        # If a client has used the token in the meantime, its credential is cached already. If the credential
        # is not cached here, the event loop derives it when a client uses the token.
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
    """Derive the credential of a token. OpenSSL releases the GIL for nearly all of that time."""
    password = b64encode(token_hmac(secret, token_id)).decode()
    return SCRAM_MECHANISMS[mechanism].derive_credential_with_salt(password, salt)
