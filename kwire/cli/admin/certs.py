"""`kwire certs`: make certificates for TLS in development, with an authority of their own.

The directory has the authority (`ca.pem`, `ca-key.pem`), and for each node and client a file with its private
key and its certificate. `--pkcs12` adds key stores, a trust store, and a file with their password.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kwire.broker.security.distinguished_name import rfc2253_name, subject_of
from kwire.broker.security.pkcs12 import TrustedEntry, read_pkcs12
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.options import add_json_option, add_repeatable_option, command_parser
from kwire.cli.shared.output import BOLD, Output, Row, format_time
from kwire.wire.java_properties import escaped

if TYPE_CHECKING:
    from kwire.certificates.authority import Authority, IssuedCertificate

AUTHORITY_NAME: Final = "kwire development CA"
CA, CA_KEY = "ca.pem", "ca-key.pem"
TRUST_STORE, PASSWORD = "truststore.p12", "password"
RESERVED: Final = ("ca", "ca-key", "truststore", "password")
DEFAULT_NODE: Final = "broker"
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
PORT: Final = 9094
CONTROLLER_PORT: Final = 9093
"""The ports of the listeners in the printed settings."""
CREATED, KEPT, REPLACED = "created", "kept", "replaced"
PUBLIC, PRIVATE = 0o644, 0o600
"""Modes of files without and with a private key."""

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


def parser(name: str) -> ArgumentParser:
    parser = command_parser(
        name,
        "Make certificates for TLS in development: an authority, a certificate of a node, and those of\n"
        "clients. Print the properties files of a broker and of clients that use them.\n\n"
        "If the directory has an authority, it issues the new certificates. Existing files are kept.",
        "kwire certs tls\n"
        "  kwire certs tls --node broker-2 --host kafka2.example.org --host 10.0.0.2\n"
        "  kwire certs tls --client alice --client billing",
        run,
    )
    parser.add_argument(
        "directory", metavar="DIRECTORY", help="the directory of the files, created if needed"
    )
    add_repeatable_option(
        parser,
        "--host",
        "NAME",
        "a host name or IP address of the node (default: localhost, its addresses, and this machine's name, "
        "or with --replace the names of the existing certificate)",
    )
    add_repeatable_option(parser, "--client", "NAME", "make a client certificate with this common name")
    parser.add_argument(
        "--node",
        metavar="NAME",
        default=DEFAULT_NODE,
        help=f"common name of the node's certificate (default: {DEFAULT_NODE})",
    )
    parser.add_argument("--days", type=int, metavar="N", help="lifetime of new certificates (default: 825)")
    parser.add_argument(
        "--pkcs12",
        action="store_true",
        help="also write PKCS12 stores, for Java programs without PEM support",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="issue the certificates of the node and of each --client again, with new private keys",
    )
    add_json_option(parser)
    return parser


def run(options: Namespace, output: Output) -> int:
    """Run the command and return its exit status. Raises CommandError."""
    for option, name in (("--node", options.node), *(("--client", name) for name in options.client)):
        _check_file_name(option, name)
    clients = list(dict.fromkeys(options.client))
    if options.node in clients:
        raise UsageError(f"--client {options.node}: the node has that name, choose another one")
    if options.days is not None and options.days < 1:
        raise UsageError(f"--days {options.days}: expected 1 or more")
    hosts = _host_names(options.host)
    directory = CertificateDirectory(options.directory, options.days, replaces=options.replace)
    directory.issue(options.node, hosts, has_given_names=bool(options.host))
    for client in clients:
        directory.issue(client, [], has_given_names=False)
    if options.pkcs12:
        directory.write_stores([options.node, *clients])
    output.show(directory.rows, empty="")
    if not output.as_json:
        _show_settings(directory, options.node, clients, output)
    return 0


def _check_file_name(option: str, name: str) -> None:
    if _FILE_NAME.fullmatch(name) is None:
        raise UsageError(f"{option} {name}: use letters, digits, '.', '_', '@' and '-', at most 64 of them")
    if name in RESERVED:
        raise UsageError(f"{option} {name}: the directory has other files of that name, choose another one")


def _host_names(given: list[str]) -> list[str]:
    """Return the names for the certificate of a node. Raises CommandError."""
    try:
        from kwire.certificates.authority import canonical_name
    except ImportError as error:
        raise CommandError(str(error)) from error
    names = []
    for name in given or [*LOCAL_NAMES, socket.gethostname()]:
        try:
            names.append(canonical_name(name))
        except ValueError as error:
            if given:
                raise UsageError(f"--host: {error}") from error
    return list(dict.fromkeys(names))


class CertificateDirectory:
    """The directory of the certificates, with its authority."""

    def __init__(self, path: str, lifetime_days: int | None, *, replaces: bool) -> None:
        """Load the authority, or create it if the directory has none. Raises CommandError."""
        from kwire.certificates import authority

        self._library = authority
        self._path = path
        self._now_ms = time.time_ns() // 1_000_000
        self._lifetime_days = authority.CERTIFICATE_DAYS if lifetime_days is None else lifetime_days
        self._replaces = replaces
        self._issued: dict[str, IssuedCertificate] = {}
        self.rows: list[Row] = []
        """The files, with the state of each one."""
        self.password: str | None = None
        """The password of the PKCS12 stores, if there are any."""
        self._authority = self._load_authority()

    def location(self, name: str) -> str:
        """Return the absolute path of a file."""
        return os.path.abspath(os.path.join(self._path, name))

    def issue(self, name: str, hosts: list[str], *, has_given_names: bool) -> None:
        """Issue a certificate and write it with its private key, unless it exists. Raises CommandError."""
        file_name = f"{name}.pem"
        found = self._read(file_name)
        if found is not None and not self._replaces:
            issued = self._load_issued(file_name, found)
            if has_given_names and set(issued.names) != set(hosts):
                raise CommandError(
                    f"{self._shown(file_name)} exists, and is for {', '.join(issued.names) or 'no host'}: "
                    f"choose another --node, or issue it again with --replace"
                )
            state = KEPT
        else:
            if found is not None and not has_given_names:
                with suppress(ValueError):  # a file without a usable certificate gets the default names
                    hosts = self._library.IssuedCertificate.load(found).names or hosts
            subject = self._library.common_name(name)
            issued = self._authority.issue(
                subject, hosts, now_ms=self._now_ms, lifetime_days=self._lifetime_days
            )
            self._write(file_name, (issued.key_pem + issued.chain_pem).encode(), PRIVATE)
            state = CREATED if found is None else REPLACED
        self._issued[name] = issued
        self._add_row(file_name, state, issued.expires_ms, self.principal(name), issued.names)

    def names_of(self, name: str) -> list[str]:
        """Return the host names and addresses of a certificate."""
        return self._issued[name].names

    def principal(self, name: str) -> str:
        """Return the principal that a certificate has in a broker without mapping rules."""
        return f"User:{rfc2253_name(subject_of(self._issued[name].der))}"

    def write_stores(self, names: list[str]) -> None:
        """Write a trust store, and a key store for each name. Raises CommandError."""
        found = self._read(PASSWORD)
        if found is None:
            self.password = secrets.token_urlsafe(18)
            self._write(PASSWORD, f"{self.password}\n".encode(), PRIVATE)
        else:
            self.password = found.strip()
        self._add_row(PASSWORD, CREATED if found is None else KEPT)
        trusted = self._authority.der
        self._write_store(TRUST_STORE, self._authority.trust_store(self.password), trusted, PUBLIC)
        for name in names:
            issued = self._issued[name]
            self._write_store(f"{name}.p12", issued.key_store(self.password), issued.der, PRIVATE)

    def _write_store(self, file_name: str, content: bytes, certificate: bytes, mode: int) -> None:
        """Write a store with this certificate, unless it exists. Raises CommandError."""
        found = self._read_bytes(file_name)
        if found is not None and not self._replaces:
            if not self._has_only(found, certificate):
                raise CommandError(
                    f"{self._shown(file_name)} exists, but not with this certificate and the password in "
                    f"{self._shown(PASSWORD)}: write it again with --replace"
                )
            self._add_row(file_name, KEPT)
            return
        self._write(file_name, content, mode)
        self._add_row(file_name, CREATED if found is None else REPLACED)

    def _has_only(self, store: bytes, certificate: bytes) -> bool:
        """Return whether a PKCS12 store has one entry, for this certificate."""
        try:
            entries = read_pkcs12(store, self.password).entries
        except ValueError:
            return False
        chains = [(one.certificate,) if isinstance(one, TrustedEntry) else one.chain for one in entries]
        return [chain[0].der for chain in chains if chain] == [certificate]

    def _load_authority(self) -> Authority:
        certificate, key = self._read(CA), self._read(CA_KEY)
        if certificate is None and key is None:
            made = self._library.Authority.create(AUTHORITY_NAME, self._now_ms)
            try:
                os.makedirs(self._path, exist_ok=True)
            except OSError as error:
                raise CommandError(f"{self._path}: {error.strerror}") from error
            self._write(CA_KEY, made.key_pem.encode(), PRIVATE)
            self._write(CA, made.certificate_pem.encode(), PUBLIC)
            state = CREATED
        elif certificate is None or key is None:
            missing, other = (CA, CA_KEY) if certificate is None else (CA_KEY, CA)
            raise CommandError(
                f"{self._path} has {other} but no {missing}: restore {missing}, or choose another directory"
            )
        else:
            try:
                made = self._library.Authority.load(certificate, key)
            except ValueError as error:
                raise CommandError(
                    f"{self._path} has no usable authority ({error}): choose another directory"
                ) from error
            if made.expires_ms <= self._now_ms:
                expired = format_time(made.expires_ms)
                raise CommandError(f"{self._shown(CA)} has expired at {expired}: choose another directory")
            state = KEPT
        self._add_row(CA_KEY, state)
        self._add_row(CA, state, made.expires_ms)
        return made

    def _load_issued(self, file_name: str, text: str) -> IssuedCertificate:
        """Load a certificate that is usable. Raises CommandError."""
        again = "issue it again with --replace"
        try:
            issued = self._library.IssuedCertificate.load(text)
        except ValueError as error:
            raise CommandError(f"{self._shown(file_name)} exists, but {error}: {again}") from error
        if not self._authority.has_issued(issued):
            raise CommandError(f"{self._shown(file_name)} was not issued by {self._shown(CA)}: {again}")
        if issued.expires_ms <= self._now_ms:
            expired = format_time(issued.expires_ms)
            raise CommandError(f"{self._shown(file_name)} has expired at {expired}: {again}")
        return issued

    def _add_row(
        self,
        file_name: str,
        state: str,
        expires_ms: int = -1,
        principal: str | None = None,
        names: list[str] | None = None,
    ) -> None:
        self.rows.append(
            {
                "file": self._shown(file_name),
                "state": state,
                "principal": principal,
                "names": names or [],
                "expires": format_time(expires_ms),
            }
        )

    def _shown(self, file_name: str) -> str:
        return os.path.join(self._path, file_name)

    def _read(self, file_name: str) -> str | None:
        """Return the text of a file, or None if it does not exist. Raises CommandError."""
        found = self._read_bytes(file_name)
        return None if found is None else found.decode("utf-8", "replace")

    def _read_bytes(self, file_name: str) -> bytes | None:
        try:
            with open(self.location(file_name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CommandError(f"{self._shown(file_name)}: {error.strerror}") from error

    def _write(self, file_name: str, content: bytes, mode: int) -> None:
        """Write a file, or leave it unchanged if this fails. Raises CommandError."""
        path = self.location(file_name)
        temporary = f"{path}.{secrets.token_hex(4)}.tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            try:
                with open(descriptor, "wb") as file:
                    file.write(content)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise CommandError(f"{self._shown(file_name)}: {error.strerror}") from error


def _show_settings(directory: CertificateDirectory, node: str, clients: list[str], output: Output) -> None:
    """Print settings that can be copied to properties files."""
    host = next(iter(directory.names_of(node)), "localhost")
    address = f"{f'[{host}]' if ':' in host else host}:{PORT}"
    server = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@localhost:{CONTROLLER_PORT}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"SSL://{address},CONTROLLER://localhost:{CONTROLLER_PORT}",
        "listener.security.protocol.map": "SSL:SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "SSL",
        "log.dirs": "kwire-data",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        **_key_store(directory, node),
        **_trust_store(directory),
    }
    if clients:
        server["ssl.client.auth"] = "required"
    _show(f"server.properties of {node}, a cluster of one node", server, output)
    properties = {"bootstrap.servers": address, "security.protocol": "SSL", **_trust_store(directory)}
    if not clients:
        _show("client.properties", properties, output)
    for client in clients:
        title = f"client.properties of {client}, whose principal is {directory.principal(client)}"
        _show(title, {**properties, **_key_store(directory, client)}, output)


def _show(title: str, properties: dict[str, str], output: Output) -> None:
    output.line(f"\n# {title}", BOLD)
    for key, value in properties.items():
        output.line(f"{key}={value}")


def _key_store(directory: CertificateDirectory, name: str) -> dict[str, str]:
    return _store(directory, "ssl.keystore", f"{name}.pem", f"{name}.p12")


def _trust_store(directory: CertificateDirectory) -> dict[str, str]:
    return _store(directory, "ssl.truststore", CA, TRUST_STORE)


def _store(directory: CertificateDirectory, prefix: str, pem: str, pkcs12: str) -> dict[str, str]:
    is_pem = directory.password is None
    store = {
        f"{prefix}.type": "PEM" if is_pem else "PKCS12",
        f"{prefix}.location": escaped(directory.location(pem if is_pem else pkcs12)),
    }
    if directory.password is not None:
        store[f"{prefix}.password"] = directory.password
    return store
