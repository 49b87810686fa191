"""The users of a cluster, as its metadata has them. KIP-84, KIP-48.

What a token is proved with follows from its id, and takes thousands of hashes to make, milliseconds in which
nobody else is served: it is made in a worker, one at a time, as tokens come by the metadata, and kept. Only
for a token that is shown before its turn has come is it made at once.

A token that has run out is one until the controller has removed it, as in Apache Kafka: whoever is
authenticated by it is so for no time at all.
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
"""So many tokens' credentials are remembered; of the others, each is made anew when it is shown."""


class UsersImage(Protocol):
    """The part of the metadata that says who there is."""

    @property
    def scram_credentials(self) -> Mapping[tuple[int, str], UserScramCredentialRecord]: ...
    @property
    def delegation_tokens(self) -> Mapping[str, DelegationTokenRecord]: ...


class ImageUsers:
    """`Users` of the metadata as it is now."""

    def __init__(
        self,
        image: Callable[[], UsersImage],
        secret: bytes,
        host: Host,
        mechanisms: Callable[[], Iterable[str]] = lambda: (),
        is_running: Callable[[], bool] = lambda: True,
    ) -> None:
        """`secret` is delegation.token.secret.key: without it nobody has a token.

        `mechanisms` are those of SCRAM by which tokens may be shown; nothing is made ahead once the node does
        not go on.
        """
        self._image = image
        self._secret = secret
        self._host = host
        self._rng = host.random("salts")
        self._mechanisms = mechanisms
        self._is_running = is_running
        self._cached: dict[tuple[str, str], ScramCredential] = {}
        """By mechanism and token; who was shown last stands last."""
        self._tokens: Mapping[str, DelegationTokenRecord] = {}
        """Those that were followed last."""
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
        """See `Users`. Its owner is a user, of whatever kind the owner is."""
        record = self._image().delegation_tokens.get(token_id) if self._secret else None
        if record is None:
            return None
        owner = Principal(USER, parse_principal(record.owner).name, token_authenticated=True)
        return TokenCredential(owner, record.expiration_timestamp, self._credential(mechanism, token_id))

    def update_tokens(self, tokens: Mapping[str, DelegationTokenRecord]) -> None:
        """The metadata has these tokens now, and no others."""
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
        # Who was shown meanwhile has one already, and whoever has none is given it when he is shown.
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
    """What a token is proved with. Nearly all of it is OpenSSL's, which lets other threads go on."""
    password = b64encode(token_hmac(secret, token_id)).decode()
    return SCRAM_MECHANISMS[mechanism].derive_credential_with_salt(password, salt)
