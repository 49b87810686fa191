"""`kwire format`: format the data directories of a new node, as Kafka's storage tool does."""

from __future__ import annotations

import argparse
import random
import time

from kwire.broker.controller.scram_parser import MalformedCredential, parse_credential
from kwire.broker.controller.topics import new_uuid
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
        raise CommandError(
            f"log.dirs is {','.join(config.log_dirs)}, which cannot be used: {error}"
        ) from error
    except FormatError as error:
        raise CommandError(str(error)) from error
    for line in lines:
        print(line)
    return 0
