"""The users of a cluster, as its metadata has them. KIP-84, KIP-48.

What a token is proved with follows from its id, and takes thousands of hashes to make: made when a token is
first shown, it is kept. A token that has run out is one until the controller has removed it, as in Apache
Kafka: whoever is authenticated by it is so for no time at all.
"""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kwire.broker.security.principal import USER, Principal
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.broker.security.tokens import principal_of, token_hmac
from kwire.broker.security.users import ScramCredential, TokenCredential
from kwire.wire.stored.metadata import DelegationTokenRecord, UserScramCredentialRecord

MOST_KEPT: Final = 10_000
"""So many tokens' credentials are remembered; of the others, each is made anew when it is shown."""


class KeepsUsers(Protocol):
    """The part of the metadata that says who there is."""

    @property
    def scram_credentials(self) -> Mapping[tuple[int, str], UserScramCredentialRecord]: ...
    @property
    def delegation_tokens(self) -> Mapping[str, DelegationTokenRecord]: ...


class ImageUsers:
    """`Users` of the metadata as it is now."""

    def __init__(self, image: Callable[[], KeepsUsers], secret: bytes, rng: random.Random) -> None:
        """`secret` is delegation.token.secret.key: without it nobody has a token."""
        self._image = image
        self._secret = secret
        self._rng = rng
        self._made: dict[tuple[str, str], ScramCredential] = {}
        """By mechanism and token; who was shown last stands last."""

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
        owner = Principal(USER, principal_of(record.owner).name, token_authenticated=True)
        return TokenCredential(owner, record.expiration_timestamp, self._credential(mechanism, token_id))

    def _credential(self, mechanism: str, token_id: str) -> ScramCredential:
        key = mechanism, token_id
        made = self._made.pop(key, None)
        if made is None:
            password = b64encode(token_hmac(self._secret, token_id)).decode()
            made = SCRAM_MECHANISMS[mechanism].credential_of(password, self._rng)
            if len(self._made) >= MOST_KEPT:
                del self._made[next(iter(self._made))]
        self._made[key] = made
        return made
