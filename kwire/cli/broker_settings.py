"""What the commands share: how one fails, and the settings that its options come to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
MISSING: Final = "Missing required configuration"
"""How Kafka's words for it begin."""
CLUSTER_DIR: Final = "kwire-cluster"
"""Where a cluster is, if nobody says otherwise."""
A_FILE: Final = "give the path of a broker's configuration file"


class Failure(Exception):
    """The command cannot be carried out. One line says why; exit status 1."""

    status: int = 1


class UsageError(Failure):
    """What was given contradicts itself, or is not what is expected there. Exit status 2."""

    status = 2


def configuration(options: argparse.Namespace) -> BrokerConfig:
    """The configuration that file, environment and flags make together."""
    from kwire.broker.config import ConfigError, load

    overrides = parse_overrides(options.overrides)
    if options.data is not None:
        overrides["log.dirs"] = options.data
    try:
        return load(options.properties, os.environ, overrides)
    except ConfigError as error:
        if options.properties is None or not str(error).startswith(MISSING):
            raise Failure(str(error)) from error
        told = str(error).removesuffix(".")
        raise Failure(
            f"{told}: add it to {options.properties}, or give no file, and keys by --set"
        ) from error
    except OSError as error:
        raise Failure(f"{options.properties}: {error.strerror}: {A_FILE}") from error


def parse_overrides(given: Iterable[str]) -> dict[str, str]:
    """The settings of KEY=VALUE texts. UsageError."""
    overrides: dict[str, str] = {}
    for setting in given:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {setting}: expected KEY=VALUE, like --set num.partitions=3")
        overrides[key.strip()] = value.strip()
    return overrides
