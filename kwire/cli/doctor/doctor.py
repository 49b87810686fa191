"""`kwire doctor`: checks of a broker's configuration and machine."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Final

from kwire.broker.config import BrokerConfig, ConfigError, ListenerEndpoint, load
from kwire.broker.config.authorizer import authorizer_settings
from kwire.broker.config.protection import UNPROTECTED, Unprotected
from kwire.broker.config.tls import TLS_PROTOCOLS
from kwire.broker.net.listeners import own_host_name
from kwire.broker.net.store_files import RealStoreFiles
from kwire.broker.security.settings import (
    listener_security,
    password_listeners,
    peer_credentials,
    requires_authentication,
    requires_certificates,
)
from kwire.cli.doctor import certificates, directories, machine, rights
from kwire.cli.doctor.finding import OK, PROBLEM, WARNING, Finding, ok, problem, warning
from kwire.cli.shared.client_settings import pairs
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.options import add_json_option, command_parser
from kwire.cli.shared.output import GREEN, RED, YELLOW, Output
from kwire.client.connection import Connection
from kwire.client.errors import Disconnected, SecurityMismatch
from kwire.client.security import Security
from kwire.wire.errors import WireError
from kwire.wire.mechanisms import PLAIN
from kwire.wire.plural import plural

MARKS: Final = {OK: ("ok", GREEN), WARNING: ("!!", YELLOW), PROBLEM: ("XX", RED)}
CONNECT_SECONDS: Final = 2
LOOPBACK: Final = ("127.", "localhost", "::1")
_CONFIGURATION: Final = "configuration"


def parser(name: str) -> ArgumentParser:
    parser = command_parser(
        name,
        "Check a broker's configuration and the machine that it runs on, and suggest fixes.",
        "kwire doctor server.properties",
        run,
    )
    parser.add_argument(
        "properties", nargs="?", metavar="server.properties", help="configuration file, as for 'kwire serve'"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
                        help="a Kafka setting, as for 'kwire serve'; can be repeated")  # fmt: skip
    parser.add_argument("--data", metavar="DIR", help="the data directory, as for 'kwire serve'")
    parser.add_argument("--certificate", metavar="FILE",
                        help="print the principal of a client with this certificate (PEM)")  # fmt: skip
    rights.add_question_options(parser)
    add_json_option(parser)
    return parser


def run(options: Namespace, output: Output) -> int:
    found = list(_findings(options))
    if output.as_json:
        output.document([finding._asdict() for finding in found])
    else:
        width = max(len(finding.area) for finding in found)
        for finding in found:
            mark, color = MARKS[finding.severity]
            output.line(f"{output.colored(mark, color)}  {finding.area.ljust(width)}  {finding.message}")
            if finding.fix:
                output.line(f"{' ' * (width + 6)}→ {finding.fix}")
        problems = sum(finding.severity == PROBLEM for finding in found)
        warnings = sum(finding.severity == WARNING for finding in found)
        output.line(f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
    return 1 if any(finding.severity == PROBLEM for finding in found) else 0


def _findings(options: Namespace) -> Iterator[Finding]:
    collector = _WarningCollector()
    logger = logging.getLogger("kwire.config")
    logger.addHandler(collector)
    propagated, logger.propagate = logger.propagate, False
    overrides = pairs(options.overrides, "--set")
    if options.data is not None:
        overrides["log.dirs"] = options.data
    client = None if options.certificate is None else certificates.load_certificate(options.certificate)
    question = rights.question_of(options)
    config: BrokerConfig | None = None
    try:
        accepts = os.environ.get("KWIRE_ACCEPT_UNPROTECTED") == "true"
        config = load(options.properties, os.environ, overrides, accept_unprotected=accepts)
    except Unprotected as error:
        yield problem(_CONFIGURATION, str(error), "remove them, or use kwire serve --accept-unprotected")
    except ConfigError as error:
        yield problem(_CONFIGURATION, str(error), "correct this first: a broker cannot start with it")
    except OSError as error:
        raise CommandError(
            f"{options.properties}: {error.strerror}: give the path of a broker's configuration file"
        ) from error
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagated
    for text in collector.texts:
        is_accepted = accepts and UNPROTECTED in text
        fix = "this is accepted with KWIRE_ACCEPT_UNPROTECTED" if is_accepted else "correct or remove the key"
        yield warning(_CONFIGURATION, text, fix)
    if config is not None:
        if not collector.texts:
            yield ok(_CONFIGURATION, f"all keys of {options.properties or 'the defaults'} are known")
        yield from configuration_findings(config)
    yield from machine.findings(machine.gather_facts(), config.socket_listen_backlog_size if config else 0)
    if config is not None:
        now_ms = time.time_ns() // 1_000_000
        yield from console_findings(config, os.environ)
        yield from certificates.findings(config, RealStoreFiles(), now_ms, own_host_name(), client)
        yield from rights.findings(config, question)
        yield from directories.findings(config, now_ms)
        yield from _ports(config)


class _WarningCollector(logging.Handler):
    """A handler that collects the warnings logged while a configuration is loaded."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def configuration_findings(config: BrokerConfig) -> Iterator[Finding]:
    """Check a valid configuration for settings that are probably wrong."""
    replicas, least = config.default_replication_factor, config.min_insync_replicas
    if config.is_broker and least > replicas:
        yield problem(
            _CONFIGURATION,
            f"min.insync.replicas={least} is more than default.replication.factor={replicas}",
            "raise default.replication.factor: acks=all fails on every new topic",
        )
    elif config.is_broker and least == replicas > 1:
        yield warning(
            _CONFIGURATION,
            f"min.insync.replicas and default.replication.factor are both {least}",
            f"set min.insync.replicas={least - 1}: now acks=all fails while any broker is down",
        )
    internal = {
        "offsets.topic.replication.factor": config.offsets_topic_replication_factor,
        "transaction.state.log.replication.factor": config.transaction_state_log_replication_factor,
    }
    for key, factor in internal.items():
        if config.is_broker and factor < replicas:
            yield warning(
                _CONFIGURATION,
                f"{key}={factor} is less than default.replication.factor={replicas}",
                f"set {key}={replicas}: groups and transactions need this topic to be available",
            )
    open_to_all = [one for one in config.listener_endpoints() if not one.host.startswith(LOOPBACK)]
    for advertised in config.advertised_endpoints():
        if advertised.host.startswith(LOOPBACK) and open_to_all:
            yield warning(
                _CONFIGURATION,
                f"{advertised.name} is advertised as {advertised.host}, but listens on other interfaces",
                "set advertised.listeners to this machine's name: remote clients would connect to themselves",
            )
        elif fault := _unresolved(advertised.host):
            yield warning(
                _CONFIGURATION,
                f"{advertised.name} is advertised as {advertised.host}, which does not resolve here: {fault}",
                "set advertised.listeners to a name that clients can resolve",
            )

    yield from _sasl_findings(config)


def _sasl_findings(config: BrokerConfig) -> Iterator[Finding]:
    """Check whether SASL listeners accept the intended clients and other nodes."""
    for listener in (*config.listener_endpoints(), *config.controller_endpoints()):
        security = listener_security(config, listener.name)
        if security is None or PLAIN not in security.mechanisms:
            continue
        key = f"listener.name.{listener.name.lower()}.plain.sasl.jaas.config"
        if not security.plain_users:
            yield warning(
                _CONFIGURATION,
                f"{listener.name} has PLAIN enabled, but no users",
                f'add user_NAME="PASSWORD" to {key}, or remove PLAIN from sasl.enabled.mechanisms',
            )
        if not listener.host.startswith(LOOPBACK) and config.protocol(listener.name) not in TLS_PROTOCOLS:
            yield warning(
                _CONFIGURATION,
                f"{listener.name} sends passwords in clear text (PLAIN), and listens on other interfaces",
                "use a trusted network, or SCRAM only",
            )
        if listener.name not in (config.inter_broker_listener_name, *config.controller_listener_names):
            continue
        login = peer_credentials(config, listener.name)
        if (
            login is not None
            and login.mechanism == PLAIN
            and security.plain_users.get(login.username) != login.password
        ):
            yield problem(
                _CONFIGURATION,
                f"nodes authenticate at {listener.name} as {login.username or 'nobody'}, which is rejected",
                f"set user_{login.username or 'NAME'} and password of {key} to the same value on all nodes",
            )


def console_findings(config: BrokerConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether a console that the environment configures protects records and passwords.

    With an authorizer, its users log in. Otherwise it may give access that the listeners do not give.
    """
    where = environ.get("KWIRE_HTTP", "")
    host = where.rpartition(":")[0].strip("[]")
    listener = environ.get("KWIRE_HTTP_TLS", "")
    is_closed = bool(listener) and requires_certificates(config, listener)
    is_open = host and not host.startswith(LOOPBACK) and not is_closed
    if authorizer_settings(config.static_settings) is not None:
        if host and not host.startswith(LOOPBACK) and not listener and password_listeners(config):
            yield warning(
                _CONFIGURATION,
                f"users log in at the HTTP port {where} (KWIRE_HTTP) with unencrypted passwords",
                "set KWIRE_HTTP_TLS to a listener with TLS, use 127.0.0.1, or put a proxy with TLS in front",
            )
    elif is_open and environ.get("KWIRE_CONSOLE") == "true" and requires_authentication(config):
        yield warning(
            _CONFIGURATION,
            f"the console at {where} (KWIRE_HTTP) requires no authentication, while every listener does",
            "use 127.0.0.1, a proxy that authenticates, or KWIRE_HTTP_TLS with a listener that has "
            "ssl.client.auth=required: the console shows records as the broker's user",
        )


def _unresolved(host: str) -> str | None:
    try:
        socket.getaddrinfo(host or None, 0)
    except OSError as error:
        return error.strerror
    return None


def _ports(config: BrokerConfig) -> Iterator[Finding]:
    is_own = directories.is_in_use(config)
    for one in {*config.listener_endpoints(), *config.controller_endpoints()}:
        yield _port(one, is_own=is_own, has_tls=config.protocol(one.name) in TLS_PROTOCOLS)


def _port(one: ListenerEndpoint, *, is_own: bool, has_tls: bool) -> Finding:
    """Check the port of a listener. With `is_own`, this configuration's broker may already use the port."""
    where = f"{one.host or '*'}:{one.port} of {one.name}"
    family = socket.AF_INET6 if ":" in one.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((one.host, one.port))
            probe.listen()
        return ok("ports", f"{where} is free")
    except PermissionError:
        return problem("ports", f"{where} requires root", "choose a port of 1024 or more")
    except OSError as error:
        if _is_a_broker(one, has_tls=has_tls):
            if is_own:
                return ok("ports", f"a broker listens on {where}")
            return problem(
                "ports",
                f"another broker listens on {where}, with other data directories",
                "choose another port or host in listeners, or stop that broker",
            )
        return problem(
            "ports",
            f"{where} cannot be used: {(error.strerror or str(error)).lower()}",
            "choose another port or host in listeners, or stop the program that uses it",
        )


def _is_a_broker(one: ListenerEndpoint, *, has_tls: bool) -> bool:
    context = None
    if has_tls:  # the broker would log bytes without TLS as an error of a client
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        Connection(
            one.host or "127.0.0.1", one.port, "kwire-doctor", CONNECT_SECONDS, Security(context)
        ).close()
    except SecurityMismatch:
        return has_tls  # the listener requires a certificate of the client
    except (Disconnected, WireError):
        return False
    return True
