"""Checks of a user name and a password against SCRAM credentials, for protocols that send the password.

The check is a SCRAM exchange between both of its sides in this process, so the same rules decide as on a
listener. The client side derives the salted password, which takes milliseconds. A caller runs this step in a
worker thread. For an unknown user, the step takes as long as for a known one, so that the duration does not
reveal which users exist. The duration does differ if a user's credential has more iterations than Kafka's
default.
"""

from __future__ import annotations

import hmac
import random
from base64 import b64encode

from kwire.broker.security.sasl import AuthenticationFailed
from kwire.broker.security.scram import ScramClient, ScramServer, new_nonce
from kwire.broker.security.scram_credentials import MIN_ITERATIONS, SALT_BYTES, ScramMechanism
from kwire.broker.security.users import Users
from kwire.wire.errors import WireError


class ScramPasswordCheck:
    """One check, with one mechanism. Call `derive`, then `is_correct`."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        users: Users,
        username: str,
        password: str,
        *,
        rng: random.Random,
        decoy_key: bytes,
    ) -> None:
        """Look up the user. `decoy_key` is a random key, for the salts of unknown users."""
        nonce = new_nonce(rng)
        self._client = ScramClient(mechanism, username, password, nonce)
        self._server = ScramServer(mechanism, users, new_nonce(rng))
        self._proof: bytes | None = None
        try:
            self._challenge = self._server.evaluate(self._client.evaluate(b"") or b"")
            self._is_known = True
        except (AuthenticationFailed, WireError):
            self._is_known = False
            salt = hmac.digest(decoy_key, f"{mechanism.name} {username}".encode(), "sha256")[:SALT_BYTES]
            self._challenge = f"r={nonce},s={b64encode(salt).decode()},i={MIN_ITERATIONS}".encode()

    def derive(self) -> None:
        """Derive the salted password. This takes milliseconds, and may run in another thread."""
        try:
            self._proof = self._client.evaluate(self._challenge)
        except AuthenticationFailed:  # the stored credential has too many iterations for clients
            self._proof = None

    def is_correct(self) -> bool:
        """Return whether the user exists and has this password."""
        if not self._is_known or self._proof is None:
            return False
        try:
            self._server.evaluate(self._proof)
        except (AuthenticationFailed, WireError):
            return False
        return self._server.outcome is not None
