"""Checks of TLS: stores, validity, chains, host names, and the principals of certificates."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kwire.broker.config import BrokerConfig, ConfigError
from kwire.broker.config.tls import tls_settings
from kwire.broker.raft.endpoints import broker_endpoints, controller_endpoints, quorum_addresses
from kwire.broker.security.distinguished_name import DNS_NAME, IP_ADDRESS, rfc2253_name, san_of
from kwire.broker.security.listener_tls import MAPPING_RULES, StoreFiles
from kwire.broker.security.node_tls import load_listener, tls_listeners
from kwire.broker.security.pem import CERTIFICATE, PemBlock, pem_blocks
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.principal_mapping import PrincipalMapper, principal_of
from kwire.broker.security.tls_context import checks_hostname, load_private_key, load_trusted
from kwire.broker.security.tls_settings import TlsConfigError, read_setting
from kwire.broker.security.tls_stores import (
    KeyStore,
    PrivateKey,
    TrustStore,
    load_key_store,
    load_trust_store,
)
from kwire.broker.security.x509 import parse_certificate, validity_of
from kwire.cli.doctor.finding import OK, PROBLEM, Finding, ok, problem, warning
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.output import format_time
from kwire.client.tls import HOSTNAME_MISMATCH, IP_MISMATCH
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

AREA: Final = "TLS"
DAY_MS: Final = 24 * 3600 * 1000
SOON_MS: Final = 30 * DAY_MS
HANDSHAKE_TURNS: Final = 4
NO_TIME_CHECK: Final = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME. The validity is checked separately, with the caller's time."""
NAME_TYPES: Final = {DNS_NAME: "DNS", IP_ADDRESS: "IP"}


class ClientCertificate(NamedTuple):
    """The certificate of a client, as DER."""

    source: str
    der: bytes


def load_certificate(path: str) -> ClientCertificate:
    """Load the first certificate of a PEM file. Raises CommandError."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8", "replace")
        found = next((one for one in pem_blocks(text) if one.kind == CERTIFICATE), None)
        if found is None:
            raise CommandError(f"--certificate {path} has no certificate in PEM format: give a PEM file")
        parse_certificate(found.data)
    except OSError as error:
        raise CommandError(f"--certificate {path}: {error.strerror}: give the path of a PEM file") from error
    except ValueError as error:
        raise CommandError(f"--certificate {path}: {error}: give another PEM file") from error
    return ClientCertificate(path, found.data)


def findings(
    config: BrokerConfig,
    files: StoreFiles,
    now_ms: int,
    host_name: str,
    client: ClientCertificate | None = None,
) -> Iterator[Finding]:
    """Check each listener with TLS, and those of other nodes to which the node connects.

    `host_name` is advertised for listeners that are bound to all interfaces. `client` is a certificate of
    which the principals are reported.
    """
    if client is not None:
        yield from _validity_findings(f"--certificate {client.source}", client.der, now_ms)
    listeners = tls_listeners(config)
    checks = [_ListenerCheck(config, files, listener, now_ms) for listener in listeners]
    yield from _merged((check.listener, one) for check in checks for one in check.findings(host_name, client))
    if client is not None and not any(config.protocol(listener) == "SSL" for listener in listeners):
        yield warning(
            AREA,
            "no listener has the security protocol SSL, so certificates have no principals",
            f"use SSL instead of SASL_SSL if clients authenticate with certificates such as {client.source}",
        )


def _merged(found: Iterable[tuple[str, Finding]]) -> Iterator[Finding]:
    """Merge equal findings of listeners, for example about a key store that they share."""
    listeners: dict[Finding, list[str]] = {}
    for listener, one in found:
        rest = one._replace(message=one.message.removeprefix(f"listener {listener}: "))
        listeners.setdefault(rest, []).append(listener)
    for one, names in listeners.items():
        where = f"listener {names[0]}" if len(names) == 1 else f"listeners {', '.join(names)}"
        yield one._replace(message=f"{where}: {one.message}")


class _ListenerCheck:
    """The checks of one listener."""

    def __init__(self, config: BrokerConfig, files: StoreFiles, listener: str, now_ms: int) -> None:
        self._config = config
        self._files = files
        self.listener = listener
        self._now_ms = now_ms
        self._where = f"listener {listener}"
        self._settings = tls_settings(config.effective.settings, listener, config.protocol(listener))
        endpoints = (*config.listener_endpoints(), *config.controller_endpoints())
        self._is_served = any(one.name == listener for one in endpoints)
        self._connects = listener in config.peer_listeners()
        self._client_auth = read_setting(self._settings, "ssl.client.auth") or "none"
        self._asks = not self._is_served or self._client_auth != "none"
        """Whether servers request the certificate of a client. Other nodes probably do."""

    def findings(self, host_name: str, client: ClientCertificate | None) -> Iterator[Finding]:
        loads = True
        try:
            tls = load_listener(self._config, self._files, self.listener, self._config.effective)
        except ConfigError as error:
            loads = False
            yield problem(AREA, str(error), "correct this first: a node cannot start with it")
        else:
            for text in tls.warnings:
                message, _, fix = text.partition(": ")
                yield warning(AREA, f"{self._where}: {message}", fix)
        # Some faults only affect one of the stores, so the other one is checked.
        key_store, trust_store = _load_stores(self._settings, self._files)
        if trust_store is not None:
            yield from self._trust_store_findings(trust_store)
        if key_store is not None:
            for key in key_store.keys:
                yield from self._key_findings(key_store.source, key, trust_store, host_name, loads=loads)
        yield from self._principal_findings(key_store, client)

    def _trust_store_findings(self, trust_store: TrustStore) -> Iterator[Finding]:
        """Report trusted certificates that expire. An expired one matters less beside a valid one."""
        found = [
            one
            for der in trust_store.certificates
            for one in _validity_findings(f"{self._where}: {trust_store.source}", der, self._now_ms)
            if one.severity != OK
        ]
        has_valid = sum(one.severity == PROBLEM for one in found) < len(trust_store.certificates)
        for one in found:
            fix = "replace it in the trust store by the new certificate of its authority"
            yield warning(AREA, one.message, fix) if has_valid else one._replace(fix=fix)

    def _key_findings(
        self, source: str, key: PrivateKey, trusted: TrustStore | None, host_name: str, *, loads: bool
    ) -> Iterator[Finding]:
        for der in key.chain:
            yield from _validity_findings(self._where, der, self._now_ms)
        try:
            check = _Verification(source, key)
        except TlsConfigError:
            return  # this has prevented that the listener was loaded
        fault = check.fault(key.chain[-1:], is_server=self._is_served)
        if fault is None and self._connects:
            fault = check.fault(key.chain[-1:], is_server=False)
        if fault is not None:
            yield problem(
                AREA,
                f"{self._where}: the chain of the certificate {_name_of(key.chain[0])} is not valid: {fault}",
                "put the certificate and then those of its intermediate authorities into the key store",
            )
        elif loads and self._is_served:
            yield from self._trust_findings(check, key, trusted)
        if self._is_served:
            for host in self._hosts(host_name):
                yield from self._host_findings(check, key, host)

    def _trust_findings(
        self, check: _Verification, key: PrivateKey, trusted: TrustStore | None
    ) -> Iterator[Finding]:
        name, end = _name_of(key.chain[0]), parse_certificate(key.chain[-1])
        if trusted is None and not self._connects:
            yield ok(
                AREA,
                f"{self._where}: clients must trust {_text_of(end.issuer)}, which issued "
                f"{_text_of(end.subject)}",
            )
            return
        authorities = None if trusted is None else trusted.certificates
        fault = check.fault(authorities, is_server=True)
        if fault is None:
            return
        source = "the system's certificates" if trusted is None else trusted.source
        message = f"{self._where}: the certificate {name} is not trusted by {source}: {fault}"
        missing = f"add the certificate of {_text_of(end.issuer)} to the trust store if it is an authority"
        missing += ", or to the key store if it is an intermediate one"
        if self._connects:
            yield problem(AREA, message, f"{missing}: nodes cannot connect to each other now")
        else:
            yield warning(AREA, message, f"{missing}; clients with another trust store may accept it already")

    def _hosts(self, host_name: str) -> list[str]:
        """Return the hosts at which clients and other nodes connect to the listener."""
        config = self._config
        endpoints = [*broker_endpoints(config, host_name=host_name)] if config.is_broker else []
        if config.is_controller:
            endpoints += controller_endpoints(config, host_name=host_name)
        hosts = [one.host for one in endpoints if one.name == self.listener]
        voter = quorum_addresses(config).voters.get(config.node_id)
        if voter is not None and self.listener == config.controller_listener_names[0]:
            hosts.append(voter.host)
        return list(dict.fromkeys(hosts))

    def _host_findings(self, check: _Verification, key: PrivateKey, host: str) -> Iterator[Finding]:
        name = _name_of(key.chain[0])
        if check.matches(host, common_name=False):
            yield ok(AREA, f"{self._where}: the certificate {name} has the host name {host}")
            return
        message = (
            f"{self._where}: the certificate {name} has no subject alternative name for the host {host}, "
            f"only {_alternative_names(key.chain[0])}"
        )
        fix = (
            f"issue a certificate for {host}, or change advertised.listeners or listeners to one of its names"
        )
        if check.matches(host, common_name=True):
            yield warning(AREA, message, f"{fix}: many clients ignore the common name")
        elif not checks_hostname(self._settings):
            yield warning(
                AREA, message, f"{fix}: clients reject it unless they do not check host names either"
            )
        else:
            yield problem(AREA, message, f"{fix}: clients and other nodes reject it")

    def _principal_findings(
        self, key_store: KeyStore | None, client: ClientCertificate | None
    ) -> Iterator[Finding]:
        if self._config.protocol(self.listener) != "SSL":
            return
        try:
            mapper = PrincipalMapper(self._settings.get(MAPPING_RULES, "DEFAULT"))
        except ValueError:
            return  # reported when the listener was loaded
        for key in () if key_store is None else key_store.keys:
            is_used = self._connects and self._asks
            yield self._principal_finding("this node's certificate", key.chain[0], mapper, is_used=is_used)
        if client is not None and self._is_served:
            what = f"the certificate in {client.source}"
            yield self._principal_finding(what, client.der, mapper, is_used=self._asks)
            if not self._asks:
                yield warning(
                    AREA,
                    f"{self._where}: every client is {ANONYMOUS}, because ssl.client.auth is none",
                    "set ssl.client.auth=required to authenticate clients by their certificates",
                )

    def _principal_finding(self, what: str, der: bytes, mapper: PrincipalMapper, *, is_used: bool) -> Finding:
        try:
            principal = Principal(USER, principal_of(der, mapper))
        except ValueError as error:
            message = f"{self._where}: {what} has no principal: {error}"
            fix = f"add a rule for it, such as DEFAULT at the end, to {MAPPING_RULES}"
            return problem(AREA, message, fix) if is_used else warning(AREA, message, fix)
        return ok(AREA, f"{self._where}: {what} has the principal {principal}")


class _Verification:
    """Handshakes in memory, in which OpenSSL verifies a certificate with its chain."""

    def __init__(self, source: str, key: PrivateKey) -> None:
        """Load the key. Raises TlsConfigError."""
        self._source = source
        self._key = key
        self._context(ssl.PROTOCOL_TLS_SERVER, has_key=True)

    def fault(self, trusted: Sequence[bytes] | None, *, is_server: bool) -> str | None:
        """Return why a peer with these trusted certificates rejects the chain; None if it accepts it.

        `trusted` is None for the certificates of this system. With `is_server`, the peer is a client.
        """
        server = self._context(ssl.PROTOCOL_TLS_SERVER, has_key=True)
        client = self._context(ssl.PROTOCOL_TLS_CLIENT, has_key=not is_server)
        verifier, other = (client, server) if is_server else (server, client)
        other.verify_mode, verifier.verify_mode = ssl.CERT_NONE, ssl.CERT_REQUIRED
        if trusted is None:
            verifier.load_default_certs(ssl.Purpose.SERVER_AUTH if is_server else ssl.Purpose.CLIENT_AUTH)
        else:
            load_trusted(verifier, self._source, trusted)
        error = _handshake_error(server, client, None)
        return None if error is None else _reason(error)

    def matches(self, host: str, *, common_name: bool) -> bool:
        """Return whether a client accepts the certificate for a host. OpenSSL's rules are those of RFC 6125.

        With `common_name`, the client also accepts a common name if there is no alternative name (RFC 2818).
        """
        client = self._context(ssl.PROTOCOL_TLS_CLIENT, has_key=False)
        client.verify_mode, client.check_hostname = ssl.CERT_REQUIRED, True
        client.hostname_checks_common_name = common_name
        load_trusted(client, self._source, self._key.chain[:1])
        try:
            error = _handshake_error(self._context(ssl.PROTOCOL_TLS_SERVER, has_key=True), client, host)
        except ValueError:  # a text that cannot be a host name
            return False
        is_mismatch = isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (
            HOSTNAME_MISMATCH,
            IP_MISMATCH,
        )
        return not is_mismatch

    def _context(self, protocol: int, *, has_key: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_flags |= NO_TIME_CHECK
        if has_key:
            blocks = [self._key.block, *(PemBlock(CERTIFICATE, one) for one in self._key.chain)]
            load_private_key(context, self._source, blocks, self._key.password)
        return context


def _handshake_error(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> ssl.SSLError | None:
    """Complete a handshake in memory, and return the error with which it fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(HANDSHAKE_TURNS):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return error
    return None


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    return str(error.reason or error).lower().replace("_", " ")


def _load_stores(settings: Mapping[str, str], files: StoreFiles) -> tuple[KeyStore | None, TrustStore | None]:
    """Return the stores of a listener that can be loaded. The faults of the others have been reported."""
    key_store, trust_store = None, None
    try:
        key_store = load_key_store(settings, files.read)
    except TlsConfigError:
        pass
    try:
        trust_store = load_trust_store(settings, files.read)
    except TlsConfigError:
        pass
    return key_store, trust_store


def _validity_findings(where: str, der: bytes, now_ms: int) -> Iterator[Finding]:
    """Check the validity of a certificate. A certificate that is valid for long is reported as OK."""
    what = f"{where}: the certificate {_name_of(der)}"
    new = "issue a new certificate, and replace this one"
    try:
        not_before_ms, not_after_ms = validity_of(parse_certificate(der))
    except ValueError as error:
        yield problem(AREA, f"{what} has no valid dates: {error}", new)
        return
    if now_ms > not_after_ms:
        yield problem(AREA, f"{what} expired at {format_time(not_after_ms)}", new)
    elif now_ms < not_before_ms:
        yield problem(
            AREA,
            f"{what} is not valid before {format_time(not_before_ms)}",
            "set the clock of this machine if it is behind, or issue a new certificate",
        )
    elif not_after_ms - now_ms < SOON_MS:
        left = plural((not_after_ms - now_ms) // DAY_MS, "day")
        yield warning(AREA, f"{what} expires in {left}, at {format_time(not_after_ms)}", new)
    else:
        yield ok(AREA, f"{what} is valid until {format_time(not_after_ms)}")


def _name_of(der: bytes) -> str:
    return _text_of(parse_certificate(der).subject)


def _text_of(name: bytes) -> str:
    """Return a distinguished name for messages."""
    try:
        return rfc2253_name(name) or "without a subject"
    except ValueError:
        return "with an unreadable subject"


def _alternative_names(der: bytes) -> str:
    try:
        names = [f"{NAME_TYPES[kind]}:{value!s}" for kind, value in san_of(der) if kind in NAME_TYPES]
    except ValueError as error:
        return f"unreadable ones ({error})"
    return ", ".join(names) or "none"
