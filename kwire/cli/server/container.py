"""`kwire container`: the entry point of the image, compatible with Apache Kafka's image (KIP-975).

Kafka settings in the environment override `server.properties` in the mounted directory. The image's own file,
which configures one broker, applies only without such settings and without a mounted file. A new data
directory is formatted for the cluster in CLUSTER_ID.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final

from kwire.broker.config import BrokerConfig, ConfigError
from kwire.broker.config.broker_keys import BROKER_KEYS, LISTENER_PREFIX
from kwire.broker.config.listeners import CONTROLLER_NAMES, LISTENERS, parse_listeners
from kwire.broker.config.properties import environment_settings, parse_properties
from kwire.cli.shared.command_error import CommandError, UsageError

FILE: Final = "server.properties"
DEFAULT_CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
"""The default of Apache Kafka's image, which lets nodes form a cluster without any setting."""

LEVELS: Final = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "ERROR": "error",
    "FATAL": "error",
    "OFF": "error",
}
"""kwire's log level for each level of Log4j."""

HEALTH_TIMEOUT_SECONDS: Final = 5.0


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status. Raises CommandError."""
    mounted, default = (
        os.path.join(directory, FILE)
        for directory in (options.mounted_configs_dir, options.default_configs_dir)
    )
    settings = apply_image_defaults(os.environ, getattr(options, "variables", ()))
    os.environ.clear()
    os.environ.update(settings)
    options.properties = properties_file(settings, mounted, default)
    options.overrides, options.data = [], None
    if options.action == "healthy":
        return _check_health(options.properties, settings)
    from kwire.cli.server.serve import run_prepared

    options.log_level = options.log_format = options.slow_request_ms = options.http = None
    options.console = options.console_writes = options.accept_unprotected = False
    options.http_tls = None
    return run_prepared(options, lambda config: _format(config, settings["CLUSTER_ID"]))


def apply_image_defaults(environ: Mapping[str, str], given: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment with the given NAME=VALUE texts and the defaults of Apache Kafka's image.

    Raises CommandError for an invalid text, and for a controller with advertised listeners.
    """
    settings = dict(environ)
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text}: expected NAME=VALUE, like KAFKA_NUM_PARTITIONS=3")
        settings[name] = value
    settings["CLUSTER_ID"] = settings.get("CLUSTER_ID") or DEFAULT_CLUSTER_ID
    advertised = settings.get("KAFKA_ADVERTISED_LISTENERS", "")
    if settings.get("KAFKA_PROCESS_ROLES") == "controller":
        if advertised:
            raise CommandError(
                "KAFKA_ADVERTISED_LISTENERS is set, but this node is not a broker, so it advertises no "
                "listeners to clients: remove the variable"
            )
        settings.pop("KAFKA_ADVERTISED_LISTENERS", None)
    elif advertised and not settings.get("KAFKA_LISTENERS"):
        settings["KAFKA_LISTENERS"] = re.sub(r"://[^:]*:", "://0.0.0.0:", advertised)
    level = LEVELS.get(settings.get("KAFKA_LOG4J_ROOT_LOGLEVEL", "").upper())
    if level is not None:
        settings.setdefault("KWIRE_LOG_LEVEL", level)
    return settings


def properties_file(environ: Mapping[str, str], mounted: str, default: str) -> str:
    """Return the path of the properties file to use: `mounted`, `default`, or /dev/null for none.

    Raises CommandError if the mounted file cannot be read.
    """
    is_configured = any(
        name in BROKER_KEYS or name.startswith(LISTENER_PREFIX) for name in environment_settings(environ)
    )
    try:
        with open(mounted, encoding="iso-8859-1") as file:
            return mounted if is_configured or file.read().strip() else default
    except FileNotFoundError:
        return os.devnull if is_configured else default
    except OSError as error:
        raise CommandError(f"{mounted}: {error.strerror}: mount a file that this user can read") from error


def _format(config: BrokerConfig, cluster_id: str) -> None:
    """Format the directories, unless one of them is formatted already.

    Raises CommandError, FormatError or StorageError.
    """
    from kwire.broker.metadata.features import unserved_feature_levels
    from kwire.broker.node.format import (
        AlreadyFormatted,
        InitialMetadata,
        format_directories,
        needs_voters,
        standalone_voter,
    )
    from kwire.broker.storage.disk import RealDisk

    if needs_voters(config) and config.value("controller.quorum.bootstrap.servers"):
        raise CommandError(
            "controller.quorum.voters is not set, so the voters are unknown: set "
            "KAFKA_CONTROLLER_QUORUM_VOTERS, like 1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093"
        )
    rng = random.SystemRandom()
    # Without bootstrap servers this node is the only voter.
    voters = [standalone_voter(config, rng)] if needs_voters(config) else []
    # New clusters start without features that kwire does not serve: with these, brokers could not register.
    try:
        for line in format_directories(
            config,
            RealDisk(),
            rng,
            int(time.time() * 1000),
            cluster_id=cluster_id,
            initial_metadata=InitialMetadata(unserved_feature_levels(), voters=voters),
        ):
            print(line, flush=True)
    except AlreadyFormatted:
        # As with Kafka's image: if other directories are not formatted, the broker fails to start.
        pass


def _check_health(properties: str, environ: Mapping[str, str]) -> int:
    """Send ApiVersions to this container's node, and return 0. Raises CommandError if the request fails."""
    from kwire.client.connection import Connection
    from kwire.client.errors import Disconnected
    from kwire.wire.errors import WireError

    host, port = health_address(properties, environ)
    try:
        Connection(host, port, "kwire-health", HEALTH_TIMEOUT_SECONDS).close()
    except (Disconnected, WireError) as error:
        raise CommandError(f"not healthy: {error}") from error
    return 0


def health_address(properties: str, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the address of the first listener that is not a controller's, or else of the first listener.

    Other settings are not validated, because the image's script `run` may have set some of them as arguments,
    which the health check does not see. Raises CommandError.
    """
    try:
        with open(properties, encoding="iso-8859-1") as file:
            settings = parse_properties(file.read())
    except OSError as error:
        raise CommandError(
            f"{properties}: {error.strerror}: run this in the image, or name a directory with {FILE} with "
            f"--default-configs-dir"
        ) from error
    settings |= {name: value for name, (_, value) in environment_settings(environ).items()}
    listeners = settings.get(LISTENERS) or "PLAINTEXT://:9092"
    controllers = {name.strip().upper() for name in settings.get(CONTROLLER_NAMES, "").split(",")}
    try:
        endpoints = parse_listeners(LISTENERS, [entry.strip() for entry in listeners.split(",")])
    except ConfigError as error:
        raise CommandError(str(error)) from error
    endpoint = next((one for one in endpoints if one.name not in controllers), endpoints[0])
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(endpoint.host, endpoint.host)
    return host, endpoint.port
