"""TLS from a client's properties: trusted and own certificates, and explanations of failed handshakes."""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from kwire.client.errors import SecurityMismatch

DEFAULT_STORE_TYPE: Final = "JKS"
CONVERT: Final = {
    "truststore": "keytool -list -rfc -keystore FILE > ca.pem",
    "keystore": "keytool -importkeystore -srckeystore FILE -destkeystore own.p12 -deststoretype PKCS12, then "
    "openssl pkcs12 -in own.p12 -out own.pem",
}
"""Commands that convert a Java keystore to a PEM file."""
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
HOSTNAME_MISMATCH, IP_MISMATCH = 62, 64
"""OpenSSL's codes for a certificate with another name."""
LINE: Final = 64
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATE: Final = "CERTIFICATE"


class PemBlock(NamedTuple):
    """One block of a PEM text."""

    kind: str
    data: bytes

    def text(self) -> str:
        """Return the block as PEM with line breaks, as OpenSSL requires."""
        body = base64.b64encode(self.data).decode()
        lines = [body[at : at + LINE] for at in range(0, len(body), LINE)]
        return "\n".join([f"-----BEGIN {self.kind}-----", *lines, f"-----END {self.kind}-----", ""])


def create_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context for these properties. Raises ValueError with a message about the wrong key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise ValueError(
            f"ssl.endpoint.identification.algorithm={algorithm}: use https, or leave it empty for no check"
        )
    context.check_hostname = algorithm == "https"
    _set_versions(context, properties)
    trusted = _read_pem(properties, "truststore", "ssl.truststore.certificates")
    if trusted is None:
        context.load_default_certs()
    else:
        key, text = trusted
        certificates = [one.data for one in _pem_blocks(key, text) if one.kind == _CERTIFICATE]
        if not certificates:
            raise ValueError(
                f"{key} has no certificate in PEM format, which begins with -----BEGIN CERTIFICATE-----"
            )
        _load(key, lambda: context.load_verify_locations(cadata=b"".join(certificates)))
    _load_own_certificate(context, properties)
    return context


def _set_versions(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    text = properties.get("ssl.enabled.protocols", "")
    names = [name for name in map(str.strip, text.split(",")) if name]
    if unknown := next((name for name in names if name not in VERSIONS), None):
        raise ValueError(f"ssl.enabled.protocols has {unknown}: use {', '.join(VERSIONS)}, or one of them")
    chosen = [VERSIONS[name] for name in names] or list(VERSIONS.values())
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)


def _load_own_certificate(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Load the client's own certificate, if there is one."""
    own = _read_pem(properties, "keystore", "ssl.keystore.certificate.chain")
    if own is None:
        return
    key, text = own
    blocks = list(_pem_blocks(key, text))
    if "ssl.keystore.key" in properties:
        blocks = [*_pem_blocks("ssl.keystore.key", properties["ssl.keystore.key"]), *blocks]
    kinds = {one.kind for one in blocks}
    if _CERTIFICATE not in kinds or not any(kind.endswith("PRIVATE KEY") for kind in kinds):
        raise ValueError(f"{key} needs a private key and its certificates, in PEM format")
    password = properties.get("ssl.key.password", "")
    # Python reads private keys only from files, so write a private temporary file.
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.writelines(one.text() for one in blocks)
        _load(key, lambda: context.load_cert_chain(path, password=lambda: password))
    finally:
        os.unlink(path)


def _load(key: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise ValueError(f"{key} cannot be used: {str(why).lower().replace('_', ' ')}") from error


def _read_pem(properties: Mapping[str, str], store: str, inline: str) -> tuple[str, str] | None:
    """Return the config key of a store, and the store's PEM text; None if no key is set.

    `store` is truststore or keystore. `inline` is the key that contains the text itself. Raises ValueError.
    """
    location = f"ssl.{store}.location"
    key = next((one for one in (inline, location) if properties.get(one)), None)
    if key is None:
        return None
    kind = properties.get(f"ssl.{store}.type", DEFAULT_STORE_TYPE).strip().upper()
    if kind != "PEM":
        default = "" if f"ssl.{store}.type" in properties else ", which is Kafka's default,"
        raise ValueError(
            f"ssl.{store}.type={kind}{default} is not supported: convert the store to a PEM file "
            f"({CONVERT[store]}), and set ssl.{store}.type=PEM"
        )
    if key == inline:
        return key, properties[key]
    path = properties[location]
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return f"{location}={path}", file.read()
    except OSError as error:
        raise ValueError(f"{location}={path}: {error.strerror}") from error


def _pem_blocks(key: str, text: str) -> Iterator[PemBlock]:
    """Yield the blocks of a PEM text, whose lines may be joined. Raises ValueError."""
    for found in _BLOCK.finditer(text):
        try:
            yield PemBlock(found[1], base64.b64decode("".join(found[2].split()), validate=True))
        except binascii.Error as error:
            raise ValueError(f"{key} is not valid PEM: {error}; keys must be in PKCS #8") from error


# --- explanations of handshake errors


def explain_handshake_error(error: OSError, address: str) -> SecurityMismatch | None:
    """Return an error with the reason and the remedy; None if the reason is unknown."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message.rstrip(".")
        if error.verify_code in (HOSTNAME_MISMATCH, IP_MISMATCH):
            return SecurityMismatch(
                f"{address} has a certificate for another name ({what}): connect to that name, or set "
                f"ssl.endpoint.identification.algorithm= to skip the check"
            )
        return SecurityMismatch(
            f"{address} has a certificate that is not trusted ({what}): set ssl.truststore.location to its "
            f"authority's certificate, with ssl.truststore.type=PEM"
        )
    reason = getattr(error, "reason", None) or ""
    if not isinstance(error, ssl.SSLError) or "ALERT" not in reason:
        return None
    alert = reason.partition("ALERT_")[2].lower().replace("_", " ")
    if "certificate" in alert:
        return SecurityMismatch(
            f"{address} requires a client certificate that it trusts ({alert}): set "
            f"ssl.keystore.location, with ssl.keystore.type=PEM"
        )
    return SecurityMismatch(f"{address} rejects the TLS handshake: {alert}")
