"""Loading of a `BrokerConfig` from a properties file, the environment and the command line.

The command line overrides the environment, and the environment overrides the file. Without a file, the
defaults are those of a single node on the loopback interface.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from posixpath import basename
from typing import Final

from kwire.broker.config.authorizer import AUTHORIZER_KEYS
from kwire.broker.config.broker import SUPPORTED_KEYS, BrokerConfig
from kwire.broker.config.broker_keys import BROKER_KEYS, LISTENER_PREFIX
from kwire.broker.config.definition import ConfigError
from kwire.broker.config.properties import environment_settings, parse_properties
from kwire.broker.config.protection import (
    PROTECTION_KEYS,
    UNPROTECTED,
    Unprotected,
    unprotected_settings,
)
from kwire.broker.config.providers import PROVIDERS, resolve_placeholders
from kwire.broker.config.sasl import JaasFile
from kwire.host.loggers import NodeLogger, node_name

DATA_DIRECTORY: Final = "kwire-data"

SINGLE_NODE_DEFAULTS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names": "",
    "log.dirs": DATA_DIRECTORY,
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""The configuration of a node without a properties file, as in Kafka's container image.

One node is enough for the internal topics, and new groups do not wait for further members.
"""

REMOVED_KEYS: Final = frozenset(
    {
        "broker.id.generation.enable",
        "control.plane.listener.name",
        "inter.broker.protocol.version",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "metadata.log.max.record.bytes.between.snapshots.bytes",
        "offsets.commit.required.acks",
        "password.encoder.secret",
        "reserved.broker.max.id",
        "zookeeper.connect",
        "zookeeper.connection.timeout.ms",
        "zookeeper.session.timeout.ms",
        "zookeeper.metadata.migration.enable",
        "group.coordinator.new.enable",
    }
)
"""Keys of older versions that Kafka 4 has removed and ignores."""


_PREFIXES: Final = (LISTENER_PREFIX, f"{PROVIDERS}.")
"""The prefixes of keys that contain the name of a listener or provider."""

_JAAS_FILE: Final = re.compile(r"-Djava\.security\.auth\.login\.config==?(\S+)")


def load(
    properties: str | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    accept_unprotected: bool = False,
) -> BrokerConfig:
    """Load a broker's configuration, and log a warning for each setting without an effect.

    `properties` is the path of a properties file. Raises ConfigError for an invalid value, or for an unknown
    key in `overrides`. Raises Unprotected for settings that ask for a protection that kwire lacks; with
    `accept_unprotected`, one warning lists them. Raises OSError if the file cannot be read.
    """
    settings: dict[str, str] = dict(SINGLE_NODE_DEFAULTS)
    warnings: list[str] = []
    if properties is not None:
        # Java reads properties files in this encoding, so the same bytes name the same directories.
        with open(properties, encoding="iso-8859-1") as file:
            settings = parse_properties(file.read())
        warnings = [
            f"File {basename(properties)}: {fault}"
            for name in settings
            if (fault := _unknown_key_fault(name))
        ]
    for name, (variable, value) in environment_settings(environ).items():
        if not (name in BROKER_KEYS or name in AUTHORIZER_KEYS or name.startswith(_PREFIXES)):
            warnings.append(f"{variable} is ignored: Kafka has no configuration key {name}")
            continue
        settings[name] = value
    for name, value in overrides.items():
        if fault := _unknown_key_fault(name):
            raise ConfigError(fault)
        settings[name] = value
    if properties is None:
        _name_controller_listener(settings, overrides)
        given = environment_settings(environ).keys() | overrides.keys()
        if "broker.id" in given and "node.id" not in given:
            del settings["node.id"]  # the default must not contradict the synonym of this key
    if unprotected := unprotected_settings(settings):
        fault = f"{UNPROTECTED}: {', '.join(unprotected)}"
        if not accept_unprotected:
            raise Unprotected(fault)
        warnings.append(fault)
        for name in unprotected:
            del settings[name]  # DescribeConfigs must not show a protection that does not exist
    for name in sorted(set(settings) - PROTECTION_KEYS):
        if name in REMOVED_KEYS:
            warnings.append(f"Configuration key {name} is ignored: Kafka 4 removed this key")
        elif name in BROKER_KEYS and name not in SUPPORTED_KEYS and name not in SINGLE_NODE_DEFAULTS:
            warnings.append(f"Configuration key {name} is ignored: kwire does not support it")
    node_id = settings.get("node.id") or settings.get("broker.id")
    logger = NodeLogger("kwire.config", node_name(node_id) if node_id else "")
    for fault in warnings:
        logger.warning("%s", fault)
    return BrokerConfig(resolve_placeholders(settings, _read, environ, logger), _jaas_file(environ))


def _jaas_file(environ: Mapping[str, str]) -> JaasFile | None:
    """Read the JAAS file that KAFKA_OPTS names. Return None if it names none."""
    paths = _JAAS_FILE.findall(environ.get("KAFKA_OPTS", ""))
    if not paths:
        return None
    path = paths[-1].strip("\"'")
    try:
        return JaasFile(path, _read(path))
    except OSError as error:
        # The file may not be needed, so this is not an error yet.
        return JaasFile(path, fault=error.strerror)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        return file.read()


def _name_controller_listener(settings: dict[str, str], overrides: Mapping[str, str]) -> None:
    """Without a file, treat a listener with the name CONTROLLER as the controller listener."""
    if "controller.listener.names" not in overrides and "CONTROLLER://" in settings["listeners"]:
        settings["controller.listener.names"] = "CONTROLLER"


def _unknown_key_fault(name: str) -> str | None:
    """Return the reason why a key is unknown, with the most similar key, or None for a known key."""
    if name in BROKER_KEYS or name in REMOVED_KEYS | AUTHORIZER_KEYS or name.startswith(_PREFIXES):
        return None
    from difflib import get_close_matches

    close = get_close_matches(name, BROKER_KEYS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{name} is not a configuration key of Kafka{hint}"
