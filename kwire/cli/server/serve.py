"""`kwire serve`: run a broker until it is stopped."""

from __future__ import annotations

import argparse
import logging
import math
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kwire.broker.config import BrokerConfig, ConfigError
from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.net.listeners import BindError
from kwire.broker.net.open_file_limit import raise_open_file_limit
from kwire.broker.net.socket_settings import read_socket_settings
from kwire.broker.node.format import FormatError
from kwire.broker.storage.checkpoints import IncompleteMetaProperties
from kwire.broker.storage.descriptors import SHORTAGE, shortage_text
from kwire.broker.storage.dirs.meta_properties import StartRefused
from kwire.broker.storage.disk import ResourceShortage, StorageError
from kwire.cli.broker_settings import LOG_FORMATS, LOG_LEVELS, load_configuration
from kwire.cli.server.log_directories import unusable
from kwire.cli.server.service import CrashRecorder, Service
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.standard_streams import flush_errors
from kwire.host.loggers import TRACE

if TYPE_CHECKING:
    from kwire.broker.observe.http import HttpPort

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

CONSOLE_PORT: Final = "8080"
"""The default HTTP port of the console, on loopback."""
OTHER_PORTS: Final = (19092, 29092, 39092, 0)
"""Ports to recommend if the port is in use. The port 0 lets the system choose one."""
BOOLEANS: Final = ("true", "false")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status. Raises CommandError."""
    return run_prepared(options, lambda config: None)


def run_prepared(options: argparse.Namespace, prepare: Callable[[BrokerConfig], None]) -> int:
    """Run a broker. Call `prepare` with the configuration before the start. Raises CommandError."""
    _configure_logging(options)
    slow_seconds = _slow_seconds(options)
    config = load_configuration(options, accept_unprotected=_accepts_unprotected(options))
    raise_open_file_limit()
    http: HttpPort | None = None
    crash = CrashRecorder()
    try:
        prepare(config)
        http = _http_port(options, config)
        return Service(config, http, slow_seconds, crash).run()
    except (IncompleteMetaProperties, StartRefused, ResourceShortage) as error:
        raise CommandError(str(error)) from error
    except StorageError as error:
        raise unusable(config, error) from error
    except BindError as error:
        has_no_file = options.properties is None and str(error).endswith("in listeners")
        raise CommandError(
            f"{error}, as {_other_broker_example(config)} does" if has_no_file else str(error)
        ) from error
    except (ConfigError, FormatError, CorruptMetadata) as error:
        raise CommandError(str(error)) from error
    except Exception as error:
        crash.write(f"unhandled {type(error).__name__}: {error}", traceback.format_exc())
        if isinstance(error, OSError) and error.errno in SHORTAGE:
            raise CommandError(shortage_text(error, f"the node cannot run: {error.strerror}")) from error
        raise
    finally:
        crash.end()
        if http is not None:
            http.close()
        flush_errors()


def _other_broker_example(config: BrokerConfig) -> str:
    """Return the options of a broker on a port that is not in use, and in a directory that is not in use."""
    from kwire.cli.doctor.directories import is_in_use

    for port in OTHER_PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            break
    directory = f"--data {config.log_dirs[0]}-2 " if is_in_use(config) else ""
    return f"{directory}--set listeners=PLAINTEXT://127.0.0.1:{port}"


def _configure_logging(options: argparse.Namespace) -> None:
    """Configure logging to standard error from options and environment. Raises CommandError."""
    level = _choose(options.log_level, "KWIRE_LOG_LEVEL", LOG_LEVELS, "info")
    handler = logging.StreamHandler(sys.stderr)
    if _choose(options.log_format, "KWIRE_LOG_FORMAT", LOG_FORMATS, "text") == "json":
        from kwire.broker.observe.json_logs import JsonFormatter

        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logging.addLevelName(TRACE, "TRACE")  # a level of the audit log that can be set with AlterConfigs
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _choose(given: str | None, variable: str, choices: Sequence[str], default: str) -> str:
    """Return `given`, or else the environment variable, or else the default, in lower case.

    Raises UsageError if the value is not one of `choices`.
    """
    chosen = given or os.environ.get(variable, default)
    if chosen.lower() not in choices:
        raise UsageError(f"{variable} is {chosen!r}: expected one of {', '.join(choices)}")
    return chosen.lower()


def _accepts_unprotected(options: argparse.Namespace) -> bool:
    """Return whether the node starts without protections that its settings ask for. Raises UsageError."""
    given = "true" if options.accept_unprotected else None
    return _choose(given, "KWIRE_ACCEPT_UNPROTECTED", BOOLEANS, "false") == "true"


def _slow_seconds(options: argparse.Namespace) -> float:
    """Return the time in seconds above which requests are logged as slow, or infinity. Raises UsageError."""
    given: str | None = options.slow_request_ms or os.environ.get("KWIRE_SLOW_REQUEST_MS")
    if given is None:
        return math.inf
    if not given.isascii() or not given.isdigit() or len(given) > 9:
        raise UsageError(f"--slow-request-ms is {given!r}: expected milliseconds, like 500")
    return int(given) / 1000


def _http_port(options: argparse.Namespace, config: BrokerConfig) -> HttpPort | None:
    """Bind the HTTP port; return None if none is configured. Raises BindError, CommandError."""
    # In a compose file, an unset variable is empty.
    where: str | None = options.http if options.http is not None else os.environ.get("KWIRE_HTTP") or None
    has_console = _choose("true" if options.console else None, "KWIRE_CONSOLE", BOOLEANS, "false") == "true"
    if options.console_writes and not has_console:
        raise UsageError("--console-writes has no effect without the console: add --console")
    tls_listener: str = options.http_tls or os.environ.get("KWIRE_HTTP_TLS") or ""
    if where is None and not has_console:
        if tls_listener:
            raise UsageError("--http-tls has no effect without an HTTP port: add --http or --console")
        return None
    if has_console and not config.is_broker:
        raise CommandError("--console needs a broker: use it on a node with broker in process.roles")
    from kwire.broker.observe.http import HttpPort, HttpUnavailable, check_tls_listener

    try:
        if tls_listener:
            check_tls_listener(config, tls_listener)
        return HttpPort(
            CONSOLE_PORT if where is None else where,
            read_socket_settings(config),
            console=has_console,
            console_writes=options.console_writes,
            tls_listener=tls_listener,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    except HttpUnavailable as error:
        raise CommandError(str(error)) from error
