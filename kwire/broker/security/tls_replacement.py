"""Validation of the stores that replace those of a running listener (KIP-226).

The rules are those of Kafka's SslFactory. `tls_context.check_handshake` validates the stores of the
inter-broker listener further.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.security.distinguished_name import is_same_subject, rfc2253_name, san_of, subject_of
from kwire.broker.security.tls_settings import TlsConfigError
from kwire.broker.security.tls_stores import KeyStore, TrustStore
from kwire.wire.plural import plural

RESTART: Final = "set it in the configuration file, and restart the broker"


def check_replacement(
    old: KeyStore | None, new: KeyStore | None, *, allow_dn_changes: bool, allow_san_changes: bool
) -> None:
    """Check a new key store of a listener against the current one. Raises TlsConfigError.

    The arguments have the values of ssl.allow.dn.changes and ssl.allow.san.changes. The entries are compared
    in Java's order. A certificate must have the subject of the one that it replaces, and at least its subject
    alternative names.
    """
    if old is None:
        if new is not None:
            raise TlsConfigError(f"{new.source} cannot be added to a listener without a key store: {RESTART}")
        return
    if new is None:
        raise TlsConfigError(f"{old.source} cannot be removed while the broker is running: {RESTART}")
    if allow_dn_changes and allow_san_changes:
        return
    if len(old.certificates) != len(new.certificates):
        raise TlsConfigError(
            f"{new.source} has {plural(len(new.certificates), 'certificate')}, but the current key store has "
            f"{len(old.certificates)}: keep the number, or set ssl.allow.dn.changes=true and "
            "ssl.allow.san.changes=true"
        )
    for (_, before), (alias, after) in zip(old.certificates, new.certificates, strict=True):
        source = f"the certificate {alias + ' ' if len(new.certificates) > 1 else ''}in {new.source}"
        if not allow_dn_changes:
            _check_subject(source, before, after)
        if not allow_san_changes:
            _check_alternative_names(source, before, after)


def check_trust_replacement(old: TrustStore | None, new: TrustStore | None) -> None:
    """Check a new trust store of a listener against the current one. Raises TlsConfigError."""
    if old is None and new is not None:
        raise TlsConfigError(f"{new.source} cannot be added to a listener without a trust store: {RESTART}")


def _check_subject(source: str, before: bytes, after: bytes) -> None:
    try:
        old, new = subject_of(before), subject_of(after)
        if is_same_subject(old, new):
            return
        change = f"another subject, {rfc2253_name(new)} instead of {rfc2253_name(old)}"
    except ValueError as error:
        change = f"a subject that cannot be compared with the current one ({error})"
    raise TlsConfigError(f"{source} has {change}: keep the subject, or set ssl.allow.dn.changes=true")


def _check_alternative_names(source: str, before: bytes, after: bytes) -> None:
    """Check that no name is missing. Kafka also refuses equal names without a text, such as otherName."""
    try:
        found = san_of(after)
        missing = [value for kind, value in san_of(before) if (kind, value) not in found]
    except ValueError as error:
        change = f"has names that cannot be compared with the current ones ({error})"
    else:
        if not missing:
            return
        names = ", ".join(one if isinstance(one, str) else one.hex() for one in missing)
        change = f"lacks subject alternative names of the current certificate ({names})"
    raise TlsConfigError(f"{source} {change}: keep all names, or set ssl.allow.san.changes=true")
