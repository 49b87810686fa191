"""Broker configuration from the options of `kwire serve` and other commands."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kwire.cli.shared.command_error import CommandError, UsageError

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
MISSING_KEY: Final = "Missing required configuration"
"""The start of Kafka's message for a missing key."""
CLUSTER_DIR: Final = "kwire-cluster"
"""The default directory of `kwire cluster`."""
READY_FD: Final = "KWIRE_READY_FD"
"""Environment variable with the descriptor to which `kwire serve` writes a byte once the node serves."""
FILE_HINT: Final = "give the path of a broker's configuration file"


def load_configuration(options: argparse.Namespace, *, accept_unprotected: bool = True) -> BrokerConfig:
    """Load the configuration from file, environment and options. Raises CommandError.

    Without `accept_unprotected`, settings that ask for a protection that kwire lacks are an error.
    """
    from kwire.broker.config import ConfigError, load
    from kwire.broker.config.protection import Unprotected

    overrides = parse_overrides(options.overrides)
    if options.data is not None:
        overrides["log.dirs"] = options.data
    try:
        return load(options.properties, os.environ, overrides, accept_unprotected=accept_unprotected)
    except Unprotected as error:
        raise CommandError(
            f"{error}: remove them, or start without this protection with --accept-unprotected "
            "(KWIRE_ACCEPT_UNPROTECTED=true)"
        ) from error
    except ConfigError as error:
        if options.properties is None or not str(error).startswith(MISSING_KEY):
            raise CommandError(str(error)) from error
        message = str(error).removesuffix(".")
        raise CommandError(
            f"{message}: add it to {options.properties}, or omit the file and set keys with --set"
        ) from error
    except OSError as error:
        raise CommandError(f"{options.properties}: {error.strerror}: {FILE_HINT}") from error


def parse_overrides(given: Iterable[str]) -> dict[str, str]:
    """Parse the KEY=VALUE texts of --set. Raises UsageError."""
    overrides: dict[str, str] = {}
    for setting in given:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {setting}: expected KEY=VALUE, like --set num.partitions=3")
        overrides[key.strip()] = value.strip()
    return overrides
