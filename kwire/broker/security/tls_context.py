"""TLS contexts for listeners and for connections to other nodes, from Kafka's settings.

The import of Python's module `ssl` takes 25 ms, so import this module only if TLS is configured.

OpenSSL is stricter than Java in two cases. It also checks the dates of a trusted certificate. It rejects keys
and signatures below its security level, such as RSA keys with 1024 bits.
"""

from __future__ import annotations

import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from kwire.broker.security.cipher_suites import TLS13_SUITES, openssl_name
from kwire.broker.security.pem import CERTIFICATE, ENCRYPTED_KEY, PemBlock
from kwire.broker.security.tls_settings import TlsConfigError, check_defaults, read_list, read_setting
from kwire.broker.security.tls_stores import KeyStore, TrustStore
from kwire.host.platform.files import anonymous_file
from kwire.host.system_os import exists, os

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CONTEXT_PROTOCOLS: Final = ("TLS", *VERSIONS)
CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
"""Without a certificate, a client is accepted if one is only requested. An invalid certificate never is."""

HANDSHAKE_TURNS: Final = 8


def server_context(
    settings: Mapping[str, str], key_store: KeyStore | None, trust_store: TrustStore | None
) -> ssl.SSLContext:
    """Return the TLS context of a listener. Raises TlsConfigError."""
    client_auth = read_setting(settings, "ssl.client.auth") or "none"
    if client_auth not in CLIENT_AUTH:
        raise TlsConfigError(f"ssl.client.auth={client_auth}: use one of {', '.join(CLIENT_AUTH)}")
    if key_store is None:
        raise TlsConfigError("ssl.keystore.location is not set, but a TLS listener needs a private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, settings, default=VERSIONS)
    # Java sends one, too. A ticket contains the client's certificate.
    context.num_tickets = 1
    _load_keys(context, key_store)
    context.verify_mode = CLIENT_AUTH[client_auth]
    if context.verify_mode != ssl.CERT_NONE:
        _trust(context, trust_store, ssl.Purpose.CLIENT_AUTH)
    return context


def server_warnings(settings: Mapping[str, str]) -> list[str]:
    """Return sentences about valid but unsafe settings of a listener, for the log."""
    client_auth = read_setting(settings, "ssl.client.auth") or "none"
    stores = ("ssl.truststore.location", "ssl.truststore.certificates")
    if client_auth == "none" or any(read_setting(settings, name) for name in stores):
        return []
    return [
        f"ssl.client.auth={client_auth} without a trust store accepts client certificates of every public "
        "certificate authority that this host trusts: set ssl.truststore.location to the certificate of your "
        "own authority"
    ]


def client_context(
    settings: Mapping[str, str], key_store: KeyStore | None, trust_store: TrustStore | None
) -> ssl.SSLContext:
    """Return the TLS context for connections to other nodes. Raises TlsConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_hostname(settings)
    limited = read_setting(settings, "ssl.protocol") == "TLSv1.2"
    _configure(context, settings, default=["TLSv1.2"] if limited else VERSIONS)
    if key_store is not None:
        _load_keys(context, key_store)
    _trust(context, trust_store, ssl.Purpose.SERVER_AUTH)
    return context


def checks_hostname(settings: Mapping[str, str]) -> bool:
    """Return whether a client compares the host name with the server's certificate. Raises TlsConfigError."""
    algorithm = settings.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise TlsConfigError(
            f"ssl.endpoint.identification.algorithm={algorithm}: use https, or leave it empty for no check"
        )
    return algorithm == "https"


def enabled_versions(settings: Mapping[str, str]) -> list[str]:
    """Return the names in ssl.enabled.protocols; an empty list for the default. Raises TlsConfigError."""
    names = read_list(settings, "ssl.enabled.protocols")
    if unknown := next((name for name in names if name not in VERSIONS), None):
        raise TlsConfigError(
            f"ssl.enabled.protocols has {unknown}: use {', '.join(VERSIONS)}, or one of them"
        )
    return names


def load_private_key(
    context: ssl.SSLContext, source: str, blocks: Sequence[PemBlock], password: str | None
) -> None:
    """Load a private key and its certificates from `source`, which messages name. Raises TlsConfigError."""
    with private_file("".join(block.text() for block in blocks).encode()) as path:
        try:
            # OpenSSL must not prompt for a password, so it gets an empty one.
            context.load_cert_chain(path, password=lambda: password or "")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = _reason(error)
            if why == "key values mismatch":
                why = "the private key does not match the certificate"
            elif getattr(error, "reason", None) is None and any(one.kind == ENCRYPTED_KEY for one in blocks):
                why = "ssl.key.password is not the password of the private key, or the key is damaged"
            raise TlsConfigError(f"{source} cannot be used: {why}") from error


def load_trusted(context: ssl.SSLContext, source: str, certificates: Sequence[bytes]) -> None:
    """Trust certificates. Raises TlsConfigError, whose message begins with `source`."""
    # As in Java, a trusted certificate need not be a root.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=b"".join(certificates))
    except (ssl.SSLError, ValueError) as error:
        raise TlsConfigError(f"{source} cannot be used: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the reason for an error of OpenSSL or of the operating system in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    return str(getattr(error, "reason", None) or error).lower().replace("_", " ")


@contextmanager
def private_file(content: bytes) -> Iterator[str]:
    """Provide the path of a temporary file with this content. Python reads private keys only from files.

    On Linux the file is in memory. Elsewhere it is a temporary file, which only the user can read.
    Raises TlsConfigError if the file cannot be created.
    """
    with ExitStack() as stack:
        try:
            if sys.platform == "linux" and exists("/proc/self/fd"):
                descriptor = anonymous_file("kwire key", tempfile.mkdtemp)
                path = f"/proc/self/fd/{descriptor}"
            else:
                descriptor, path = tempfile.mkstemp(suffix=".pem")
                stack.callback(os.unlink, path)
            stack.callback(os.close, descriptor)
            while content:
                content = content[os.write(descriptor, content) :]
        except OSError as error:
            raise TlsConfigError(
                f"the temporary file for a private key cannot be written: {error.strerror}"
            ) from error
        yield path


def _configure(
    context: ssl.SSLContext, settings: Mapping[str, str], default: Sequence[str] | Mapping[str, object]
) -> None:
    check_defaults(settings)
    protocol = read_setting(settings, "ssl.protocol") or "TLSv1.3"
    if protocol not in CONTEXT_PROTOCOLS:
        raise TlsConfigError(f"ssl.protocol={protocol}: use one of {', '.join(CONTEXT_PROTOCOLS)}")
    names = enabled_versions(settings) or list(default)
    suites = read_list(settings, "ssl.cipher.suites")
    if suites:
        names = _set_suites(context, suites, names)
    chosen = [VERSIONS[name] for name in names]
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)
    # Kafka refuses renegotiation, too. Compression leaks the content of requests.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _set_suites(context: ssl.SSLContext, suites: Sequence[str], versions: Sequence[str]) -> list[str]:
    """Enable only these cipher suites, and return those of the versions that have one of them.

    As in Java, a version without a suite is disabled.
    """
    newer = [suite for suite in suites if suite in TLS13_SUITES]
    older = [suite for suite in suites if suite not in TLS13_SUITES]
    if "TLSv1.3" in versions and newer and set(newer) != set(TLS13_SUITES):
        missing = ", ".join(suite for suite in TLS13_SUITES if suite not in newer)
        raise TlsConfigError(
            f"ssl.cipher.suites lacks {missing}: Python cannot disable single suites of TLS 1.3; name all "
            "of them, or none to disable TLS 1.3"
        )
    names = {suite: openssl_name(suite) for suite in older}
    if older:
        with suppress(ssl.SSLError):  # none of the names is known
            context.set_ciphers(":".join(name for name in names.values() if name))
    enabled = {cipher["name"] for cipher in context.get_ciphers()}
    if unknown := next((suite for suite, name in names.items() if name not in enabled), None):
        raise TlsConfigError(f"ssl.cipher.suites has {unknown}, which OpenSSL does not support: remove it")
    left = [name for name in versions if (newer if name == "TLSv1.3" else older)]
    if not left:
        raise TlsConfigError(f"ssl.cipher.suites has no suite for {' or '.join(versions)}")
    return left


def _load_keys(context: ssl.SSLContext, key_store: KeyStore) -> None:
    for key in key_store.keys:
        chain = [PemBlock(CERTIFICATE, one) for one in key.chain]
        load_private_key(context, key_store.source, [key.block, *chain], key.password)


def _trust(context: ssl.SSLContext, trust_store: TrustStore | None, purpose: ssl.Purpose) -> None:
    if trust_store is None:
        context.load_default_certs(purpose)
    else:
        load_trusted(context, trust_store.source, trust_store.certificates)


# --- validation of a new store


def check_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Complete a handshake of a client and a server in memory. Raises TlsConfigError if it fails.

    Kafka validates the new stores of the inter-broker listener in this way (SslFactory.SslEngineValidator):
    the new server with the old client, and the old server with the new client. As in Kafka, no host name is
    compared, so the client's context must come from `validation_context`.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    try:
        for _ in range(HANDSHAKE_TURNS):
            # In TLS 1.3, a client has completed its part before the server verifies the client's certificate.
            completed = [_advance(side) for side in sides]
            if all(completed):
                return
    except ssl.SSLError as error:
        raise TlsConfigError(
            "a handshake with the key store and the trust store of the inter-broker listener failed: "
            f"{_reason(error)}. With these stores, brokers could not connect to each other"
        ) from error
    raise AssertionError(f"the handshake has no end after {HANDSHAKE_TURNS} turns")


def _advance(side: ssl.SSLObject) -> bool:
    """Continue a handshake, and return whether this side has completed it."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def validation_context(
    settings: Mapping[str, str], key_store: KeyStore | None, trust_store: TrustStore | None
) -> ssl.SSLContext:
    """Return a client's context for `check_handshake`, without host names. Raises TlsConfigError."""
    return client_context({**settings, "ssl.endpoint.identification.algorithm": ""}, key_store, trust_store)
