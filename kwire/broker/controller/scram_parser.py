"""The SCRAM credentials of `kwire format --add-scram`, in the grammar of Kafka's storage tool. KIP-900.

Each argument is one credential. The metadata stores keys that are derived from the password (RFC 5802), and
not the password itself:

    SCRAM-SHA-256=[name=alice,password=alice-secret]
    SCRAM-SHA-512=[name=alice,iterations=8192,salt="N3E=",saltedpassword="YCE="]
"""

from __future__ import annotations

import random
from base64 import b64decode
from binascii import Error as Base64Error

from kwire.broker.security.scram_credentials import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BYTES,
    SCRAM_MECHANISMS,
    ScramMechanism,
)
from kwire.wire.records.metadata import UserScramCredentialRecord


class MalformedCredential(ValueError):
    """An invalid credential argument. The message names the reason."""


def credential_record(
    name: str, mechanism: ScramMechanism, salt: bytes, iterations: int, salted_password: bytes
) -> UserScramCredentialRecord:
    """Return the metadata record with the keys that are derived from a salted password."""
    made = mechanism.credential(salt, iterations, salted_password)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism.code,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
        iterations=made.iterations,
    )


def parse_credential(text: str, rng: random.Random) -> UserScramCredentialRecord:
    """Parse one credential. A missing salt is random; missing iterations are MIN_ITERATIONS.

    Raises MalformedCredential if the credential is invalid.
    """
    mechanism_name, equals, rest = text.strip().partition("=")
    if not equals:
        raise MalformedCredential("expected MECHANISM=[name=...,password=...]")
    mechanism = SCRAM_MECHANISMS.get(mechanism_name)
    if mechanism is None:
        raise MalformedCredential(
            f"unknown mechanism {mechanism_name}: expected one of {', '.join(SCRAM_MECHANISMS)}"
        )
    if len(rest) < 2 or rest[0] != "[" or rest[-1] != "]":
        raise MalformedCredential(f"expected {mechanism_name}=[name=...,password=...], with brackets")
    settings = dict(map(_setting, rest[1:-1].rstrip(",").split(",")))
    if "name" not in settings:
        raise MalformedCredential("name= is missing")
    name = settings.pop("name")
    given_salt, given_iterations = settings.pop("salt", None), settings.pop("iterations", None)
    password, given_salted = settings.pop("password", None), settings.pop("saltedpassword", None)
    if password is None and given_salted is None:
        raise MalformedCredential("password= or saltedpassword= is missing")
    if password is None and given_salt is None:
        raise MalformedCredential("saltedpassword= needs the salt= that it was made with")
    if settings:
        raise MalformedCredential(f"unknown setting {', '.join(sorted(settings))}")
    salt = rng.randbytes(SALT_BYTES) if given_salt is None else _decoded("salt", given_salt)
    iterations = MIN_ITERATIONS if given_iterations is None else _number(given_iterations)
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise MalformedCredential(
            f"iterations is {iterations}: expected {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    if password is not None:
        salted = mechanism.salt_password(password, salt, iterations)
    else:
        salted = _decoded("saltedpassword", given_salted or "")
    if password == "" or not salted:
        raise MalformedCredential("the password is empty")
    return credential_record(name, mechanism, salt, iterations, salted)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise MalformedCredential(f"{text!r} is not a setting: expected NAME=VALUE")
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return name, value


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise MalformedCredential(f"iterations is {text!r}: expected a number") from None


def _decoded(name: str, text: str) -> bytes:
    try:
        # Padding is optional.
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (Base64Error, ValueError):
        raise MalformedCredential(f"{name} is {text!r}: expected base64") from None
