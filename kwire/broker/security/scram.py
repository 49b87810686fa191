"""SCRAM-SHA-256 and SCRAM-SHA-512 without channel binding: server and client side. RFC 5802, RFC 7677.

    client   n,,n=alice,r=C                     user name and nonce
    server   r=CS,s=SALT,i=4096                 both nonces; salt and iterations of the stored credential
    client   c=biws,r=CS,p=PROOF                proof that the client knows the password
    server   v=SIGNATURE                        proof that the server has the credential

To use a delegation token, a client appends the extension `tokenauth=true` to its nonce. The name is then the
token id, and the password is the HMAC in base64 (KIP-48). The error message is the same for an unknown user
and a wrong password. As in Kafka, an attacker can still find out which users exist, because for an unknown
user the exchange fails at the first message.

As in Kafka, names and passwords are not normalized (SASLprep), names must be ASCII, and the server does not
check `c=`. Unknown extensions are ignored, even mandatory ones (`m=`). Extensions in the client's last
message are not signed.
"""

from __future__ import annotations

import hmac
import random
import re
from base64 import b64decode, b64encode
from typing import Final

from kwire.broker.security.principal import USER, Principal
from kwire.broker.security.sasl import AuthenticationFailed, AuthenticationResult
from kwire.broker.security.scram_credentials import MIN_ITERATIONS, ScramMechanism
from kwire.broker.security.users import ScramCredential, Users
from kwire.wire.errors import WireError
from kwire.wire.plural import plural

TOKEN_EXTENSION: Final = "tokenauth"

MAX_REQUESTED_ITERATIONS: Final = 1_000_000
"""The limit at a client, so that a malicious server cannot keep it busy. Kafka's servers request fewer."""

_NONCE_BYTES: Final = 18
_VALUE: Final = r"[\x01-\x2b\x2d-\x7f]+"
_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"

_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,(?:m={_VALUE},)?"
    rf"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))\Z"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,10}}){_EXTENSIONS}\Z"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<bare>c={_BASE64},r=(?P<nonce>{_NONCE})){_EXTENSIONS},p=(?P<proof>{_BASE64})\Z"
)
_SERVER_FINAL: Final = re.compile(rf"(?:e=(?P<error>{_VALUE})|v=(?P<signature>{_BASE64}){_EXTENSIONS})\Z")


def escape_name(name: str) -> str:
    """Escape a user name for use in a SCRAM message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(name: str) -> str:
    """Unescape the user name of a SCRAM message."""
    return name.replace("=2C", ",").replace("=3D", "=")


def _read(pattern: re.Pattern[str], message: bytes, which: str) -> re.Match[str]:
    match = pattern.match(message.decode(errors="replace"))
    if match is None:
        raise AuthenticationFailed(f"Invalid SCRAM {which} message format")
    return match


def _is_token(extensions: str) -> bool:
    settings = (entry.partition("=") for entry in extensions.split(","))
    return {name: value for name, _, value in settings}.get(TOKEN_EXTENSION, "").lower() == "true"


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


def new_nonce(rng: random.Random) -> str:
    """Return a new random nonce."""
    return b64encode(rng.randbytes(_NONCE_BYTES)).decode()


class ScramServer:
    """The server side of one exchange. `nonce` must not have been used before."""

    def __init__(self, mechanism: ScramMechanism, users: Users, nonce: str) -> None:
        self._mechanism = mechanism
        self._users = users
        self._own_nonce = nonce
        self._awaits_first = True
        self._credential: ScramCredential | None = None
        self._authenticated: AuthenticationResult | None = None
        """The result of the exchange once the client's proof was correct, otherwise None."""
        self._first_messages = ""
        """The first messages of client and server. Both proofs sign them."""
        self._nonce = ""
        self._outcome: AuthenticationResult | None = None

    @property
    def outcome(self) -> AuthenticationResult | None:
        """The result of the exchange; None until the client has proved that it knows the password."""
        return self._outcome

    def evaluate(self, response: bytes) -> bytes:
        """Check a client's message and return the response.

        Raises AuthenticationFailed, or WireError if Kafka closes the connection without an error response.
        """
        if self._awaits_first:
            self._awaits_first = False
            return self._first(response)
        credential, self._credential = self._credential, None
        if credential is None:
            raise AuthenticationFailed("the SCRAM exchange was already complete or had failed")
        return self._final(response, credential)

    def _first(self, response: bytes) -> bytes:
        match = _read(_CLIENT_FIRST, response, "client first")
        name = unescape_name(match["name"])
        if _is_token(match["extensions"]):
            token = self._users.token(self._mechanism.name, name)
            if token is None:
                raise AuthenticationFailed(f"Token Authentication failed: Invalid tokenId : {name}")
            credential = token.credential
            owner = Principal(token.owner.type, token.owner.name, token_authenticated=True)
            self._authenticated = AuthenticationResult(owner, token.expires_ms)
        else:
            known = self._users.scram_credential(self._mechanism.name, name)
            if known is None:
                raise AuthenticationFailed("Authentication failed: Invalid user credentials")
            credential = known
            self._authenticated = AuthenticationResult(Principal(USER, name))
        if match["authorization"] not in (None, name):
            message = (
                "Authentication failed: Client requested an authorization id that is different from username"
            )
            raise AuthenticationFailed(message, message)
        if credential.iterations < MIN_ITERATIONS:
            raise AuthenticationFailed(
                f"Iterations {credential.iterations} is less than the minimum {MIN_ITERATIONS} "
                f"for {self._mechanism.name}"
            )
        self._credential = credential
        self._nonce = match["nonce"] + self._own_nonce
        salt = b64encode(credential.salt).decode()
        response_text = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._first_messages = f"{match['bare']},{response_text}"
        return response_text.encode()

    def _final(self, response: bytes, credential: ScramCredential) -> bytes:
        match = _read(_CLIENT_FINAL, response, "client final")
        if match["nonce"] != self._nonce:
            raise AuthenticationFailed("Invalid client nonce in the final client message.")
        signed = f"{self._first_messages},{match['bare']}".encode()
        signature = self._mechanism.hmac(credential.stored_key, signed)
        proof = b64decode(match["proof"])
        if len(proof) != len(signature):
            # In this case Kafka closes the connection without sending an error.
            raise WireError(f"the {self._mechanism.name} proof has {plural(len(proof), 'byte')}")
        if not hmac.compare_digest(self._mechanism.hash(_xor(signature, proof)), credential.stored_key):
            raise AuthenticationFailed("Invalid client credentials")
        self._outcome = self._authenticated
        return b"v=" + b64encode(self._mechanism.hmac(credential.server_key, signed))


class ScramClient:
    """The client side of one exchange. `nonce` must not have been used before.

    With `is_token`, `username` and `password` are the id and the HMAC (in base64) of a delegation token.
    """

    def __init__(
        self,
        scram: ScramMechanism,
        username: str,
        password: str,
        nonce: str,
        *,
        is_token: bool = False,
    ) -> None:
        self._scram = scram
        self._username = username
        self._password = password
        self._is_token = is_token
        self._step = self._first
        self._nonce = nonce
        self._bare = ""
        self._signature = b""
        """The signature that the server's last message must contain."""
        self._is_complete = False

    @property
    def mechanism(self) -> str:
        return self._scram.name

    @property
    def is_complete(self) -> bool:
        """Whether the server has proved that it has the user's credential."""
        return self._is_complete

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Check the server's message and return the client's next message, or None after the last one.

        Raises AuthenticationFailed if the server's message is invalid.
        """
        return self._step(challenge)

    def _first(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise AuthenticationFailed("Expected empty challenge")
        extensions = f",{TOKEN_EXTENSION}=true" if self._is_token else ""
        self._bare = f"n={escape_name(self._username)},r={self._nonce}{extensions}"
        self._step = self._final
        return f"n,,{self._bare}".encode()

    def _final(self, challenge: bytes) -> bytes | None:
        match = _read(_SERVER_FIRST, challenge, "server first")
        if not match["nonce"].startswith(self._nonce):
            raise AuthenticationFailed("Invalid server nonce: does not start with client nonce")
        iterations = int(match["iterations"])
        if iterations < MIN_ITERATIONS:
            raise AuthenticationFailed(
                f"Requested iterations {iterations} is less than the minimum {MIN_ITERATIONS} "
                f"for {self.mechanism}"
            )
        if iterations > MAX_REQUESTED_ITERATIONS:
            raise AuthenticationFailed(
                f"Requested iterations {iterations} is more than the maximum {MAX_REQUESTED_ITERATIONS} "
                f"for {self.mechanism}"
            )
        scram = self._scram
        salted = scram.salt_password(self._password, b64decode(match["salt"]), iterations)
        without_proof = f"c=biws,r={match['nonce']}"
        signed = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        key = scram.client_key(salted)
        proof = _xor(key, scram.hmac(scram.hash(key), signed))
        self._signature = scram.hmac(scram.server_key(salted), signed)
        self._step = self._last
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _last(self, challenge: bytes) -> bytes | None:
        match = _read(_SERVER_FINAL, challenge, "server final")
        if match["error"] is not None:
            raise AuthenticationFailed(
                f"Sasl authentication using {self.mechanism} failed with error: {match['error']}"
            )
        if not hmac.compare_digest(b64decode(match["signature"]), self._signature):
            raise AuthenticationFailed("Invalid server signature in server final message")
        self._step = self._finished
        self._is_complete = True
        return None

    def _finished(self, challenge: bytes) -> bytes | None:
        return None
