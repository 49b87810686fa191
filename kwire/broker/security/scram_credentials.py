"""SCRAM credentials and their derivation from passwords. RFC 5802, RFC 7677."""

from __future__ import annotations

import hashlib
import hmac
import random
from typing import Final

from kwire.broker.security.users import ScramCredential
from kwire.wire.mechanisms import SCRAM_SHA_256, SCRAM_SHA_512
from kwire.wire.named_tuple import NamedTuple

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
SALT_BYTES: Final = 26


class ScramMechanism(NamedTuple):
    """A SCRAM mechanism, with the functions of its hash algorithm."""

    name: str
    code: int
    """The number of the mechanism in records and requests."""
    digest: str

    def hmac(self, key: bytes, text: bytes) -> bytes:
        """Return the HMAC of a text."""
        return hmac.digest(key, text, self.digest)

    def hash(self, text: bytes) -> bytes:
        """Return the hash of a text."""
        return hashlib.new(self.digest, text).digest()

    def salt_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return the salted password: Hi() of RFC 5802. As in Kafka, the password is not normalized."""
        return hashlib.pbkdf2_hmac(self.digest, password.encode(), salt, iterations)

    def client_key(self, salted_password: bytes) -> bytes:
        """Return the ClientKey of RFC 5802. Clients prove that they know this key."""
        return self.hmac(salted_password, b"Client Key")

    def server_key(self, salted_password: bytes) -> bytes:
        """Return the ServerKey of RFC 5802. Servers prove that they know this key."""
        return self.hmac(salted_password, b"Server Key")

    def credential(self, salt: bytes, iterations: int, salted_password: bytes) -> ScramCredential:
        """Return the credential that is stored for a salted password."""
        return ScramCredential(
            salt,
            self.hash(self.client_key(salted_password)),
            self.server_key(salted_password),
            iterations,
        )

    def derive_credential(
        self, password: str, rng: random.Random, iterations: int = MIN_ITERATIONS
    ) -> ScramCredential:
        """Derive a credential with a new salt from `rng`."""
        return self.derive_credential_with_salt(password, rng.randbytes(SALT_BYTES), iterations)

    def derive_credential_with_salt(
        self, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
    ) -> ScramCredential:
        """Derive a credential with an existing salt."""
        return self.credential(salt, iterations, self.salt_password(password, salt, iterations))


SCRAM_MECHANISMS: Final = {
    mechanism.name: mechanism
    for mechanism in (
        ScramMechanism(SCRAM_SHA_256, 1, "sha256"),
        ScramMechanism(SCRAM_SHA_512, 2, "sha512"),
    )
}
"""The SCRAM mechanisms by name."""
