"""`kwire format`: format the data directories of a new node, as Kafka's storage tool does."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping

from kwire.broker.config import BrokerConfig
from kwire.broker.controller.scram_parser import MalformedCredential, parse_credential
from kwire.broker.controller.topics import new_uuid
from kwire.broker.metadata.features import effective_levels, unserved_levels
from kwire.broker.node.format import (
    FormatError,
    InitialMetadata,
    format_directories,
    needs_voters,
    parse_feature,
    parse_voters,
    standalone_voter,
)
from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.cli.broker_settings import load_configuration
from kwire.cli.server.log_directories import unusable
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.wire.primitives import uuid_to_text


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status. Raises CommandError."""
    rng = random.SystemRandom()
    if options.cluster_id is None:
        # As with Kafka's tool: directories and nodes that are formatted separately need the same id.
        fresh = uuid_to_text(new_uuid(rng))
        raise UsageError(f"--cluster-id is missing: for a new cluster, use --cluster-id {fresh}")
    if options.standalone + options.no_initial_controllers + (options.initial_controllers is not None) > 1:
        raise UsageError("use only one of --standalone, --no-initial-controllers and --initial-controllers")
    options.properties = options.properties or options.config
    if options.node_id is not None:
        options.overrides.append(f"node.id={options.node_id}")
    features: dict[str, int] = {}
    for feature in options.features:
        try:
            name, level = parse_feature(feature)
        except FormatError as error:
            raise UsageError(str(error)) from error
        features[name] = level
    credentials = []
    for text in options.credentials:
        try:
            credentials.append(parse_credential(text, rng))
        except MalformedCredential as error:
            # The argument is not repeated: it may contain a password.
            raise UsageError(f"--add-scram: {error}") from error
    config = load_configuration(options)
    try:
        voters = []
        if options.standalone:
            voters = [standalone_voter(config, rng)]
        elif options.initial_controllers is not None:
            voters = parse_voters(options.initial_controllers, config)
        elif needs_voters(config) and not options.no_initial_controllers:
            raise CommandError(
                "controller.quorum.voters is not set, so choose the voters with --standalone, "
                "--initial-controllers or --no-initial-controllers"
            )
        lines = format_directories(
            config,
            RealDisk(),
            rng,
            int(time.time() * 1000),
            cluster_id=options.cluster_id,
            ignore_formatted=options.ignore_formatted,
            initial_metadata=InitialMetadata(features, options.release_version, voters, credentials),
        )
    except StorageError as error:
        raise unusable(config, error) from error
    except FormatError as error:
        raise CommandError(str(error)) from error
    for line in lines:
        print(line)
    begins_cluster = config.is_controller and not options.no_initial_controllers
    if begins_cluster and any(line.startswith("formatted ") for line in lines):
        _note_unserved_features(config, features, options.release_version)
    return 0


def _note_unserved_features(config: BrokerConfig, features: Mapping[str, int], release: str | None) -> None:
    """Print a note if the new cluster has features that prevent kwire's brokers from registering.

    Apache Kafka enables these features by default, and its directories can be formatted here, too.
    """
    dynamic = not config.value("controller.quorum.voters")
    levels = unserved_levels(dict(effective_levels(features, release, dynamic_quorum=dynamic)))
    if levels:
        shown = " and ".join(f"{name} {level}" for name, level in levels.items())
        needed = " ".join(f"--feature {name}=0" for name in levels)
        print(
            f"kwire: the cluster starts with {shown}, which kwire brokers do not support: only the broker of "
            f"a sole voter can join. For more kwire brokers, remove the directories and format them with "
            f"{needed}",
            file=sys.stderr,
        )
