"""The command `kwire`.

Everything that a subcommand needs is imported when it runs: `kwire serve` answers its first client in a
quarter of a second, and `kwire --help` sooner.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trio

    from kwire.broker.config import BrokerConfig

DESCRIPTION = """\
kwire is a broker that speaks Apache Kafka's protocol and keeps Apache Kafka's files,
written in Python. Any Kafka client works with it, unmodified."""

EXAMPLES = """\
examples:
  kwire serve                                  a broker on 127.0.0.1:9092, nothing to configure
  kwire serve server.properties                with Apache Kafka's own configuration file
  kwire serve --data /var/lib/kwire            with its data somewhere else
  kwire serve --set num.partitions=12 --set auto.create.topics.enable=false

'kwire serve --help' tells about a command's options."""

SERVE_DESCRIPTION = """\
Run a broker until Ctrl-C or SIGTERM, which stop it cleanly; a second one stops it at once.

Settings are Apache Kafka's. Of a setting given more than once, --set wins over the environment
(KAFKA_NUM_PARTITIONS for num.partitions, as in Kafka's container image), and that over the file.
Without any, one broker serves 127.0.0.1:9092. A new data directory is formatted on first start."""

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

GC_THRESHOLDS = (10_000, 20, 50)
"""Rarer than Python's own, and never over what was there at the start: no pause above a millisecond or so."""


class Failure(Exception):
    """The command cannot be carried out. One line says why; exit status 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and give its exit status."""
    gc.disable()  # nothing that is made while starting is garbage
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["pipeline"]:
        return _pipeline(given[1:])
    parser = _parser()
    options = parser.parse_args(given)
    if options.version:
        print(f"kwire {_version()}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    try:
        if options.command == "serve":
            return _serve(options)
        return _format(options)
    except Failure as failure:
        print(f"kwire: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="kwire", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw, allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run a broker",
        description=SERVE_DESCRIPTION,
        formatter_class=raw,
        allow_abbrev=False,
    )
    _add_settings(serve)
    serve.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=None,
        help="how much to log to standard error (default: info, or what KWIRE_LOG_LEVEL says)",
    )
    format_ = commands.add_parser(
        "format",
        help="prepare the data directories of a broker",
        description="Write what a new broker's data directories need, as Kafka's storage tool does.",
        formatter_class=raw,
        allow_abbrev=False,
    )
    _add_settings(format_)
    _add_format_options(format_)
    commands.add_parser("pipeline", help="run a job on Spark: archive, restore, audit …", add_help=False)
    return parser


def _pipeline(arguments: Sequence[str]) -> int:
    gc.enable()
    from kwire.pipeline.cli import main as run_job

    try:
        return run_job(arguments)
    except KeyboardInterrupt:
        return 130


def _add_format_options(parser: argparse.ArgumentParser) -> None:
    """Those of Kafka's `kafka-storage format`, by the same names."""
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="the configuration file, as Kafka's tool takes it"
    )
    parser.add_argument("-t", "--cluster-id", metavar="ID", help="the cluster's id, which must be given")
    parser.add_argument(
        "-S",
        "--add-scram",
        dest="credentials",
        action="append",
        default=[],
        metavar="CREDENTIAL",
        help="begin with a user's SCRAM credential, like 'SCRAM-SHA-256=[name=alice,password=alice-secret]'; "
        "may be repeated",
    )
    parser.add_argument("--node-id", metavar="ID", help="this node's id: short for --set node.id=ID")
    parser.add_argument(
        "-g",
        "--ignore-formatted",
        action="store_true",
        help="leave directories that are formatted as they are",
    )
    parser.add_argument(
        "-r", "--release-version", metavar="RELEASE", help="begin with the features of this release, like 4.0"
    )
    parser.add_argument(
        "-f",
        "--feature",
        dest="features",
        action="append",
        default=[],
        metavar="FEATURE=LEVEL",
        help="begin with this level of a feature; may be repeated",
    )
    parser.add_argument(
        "-s", "--standalone", action="store_true", help="this node is the only voter of a dynamic quorum"
    )
    parser.add_argument(
        "-N", "--no-initial-controllers", action="store_true", help="say nothing of who votes"
    )
    parser.add_argument(
        "-I",
        "--initial-controllers",
        metavar="ID@HOST:PORT:DIRECTORY,...",
        help="the voters of a dynamic quorum",
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "properties", nargs="?", metavar="server.properties", help="a Kafka broker's configuration file"
    )
    parser.add_argument(
        "--set",
        "--override",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting by its Kafka key; may be repeated",
    )
    parser.add_argument("--data", metavar="DIR", help="where the data is kept: short for --set log.dirs=DIR")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kwire")
    except PackageNotFoundError:
        return "(not installed)"


def _config(options: argparse.Namespace) -> BrokerConfig:
    """The configuration that file, environment and flags make together."""
    from kwire.broker.config import ConfigError, load

    overrides: dict[str, str] = {}
    for setting in options.overrides:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise Failure(f"--set {setting}: expected KEY=VALUE, like --set num.partitions=3")
        overrides[key.strip()] = value.strip()
    if options.data is not None:
        overrides["log.dirs"] = options.data
    try:
        return load(options.properties, os.environ, overrides)
    except ConfigError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"{options.properties}: {error.strerror}") from error


def _serve(options: argparse.Namespace) -> int:
    level: str = options.log_level or os.environ.get("KWIRE_LOG_LEVEL", "info")
    if level.lower() not in LOG_LEVELS:
        raise Failure(f"KWIRE_LOG_LEVEL is {level!r}: expected one of {', '.join(LOG_LEVELS)}")
    logging.basicConfig(level=level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    config = _config(options)

    import trio

    from kwire.broker.config import ConfigError
    from kwire.broker.metadata.batches import CorruptMetadata
    from kwire.broker.net.listeners import BindError
    from kwire.broker.node.format import FormatError
    from kwire.broker.storage.checkpoints import NoOwner
    from kwire.broker.storage.dirs.owners import StartRefused
    from kwire.broker.storage.disk import StorageError

    try:
        failure = trio.run(_run, config)
    except (NoOwner, StartRefused) as error:
        raise Failure(str(error)) from error
    except StorageError as error:
        raise Failure(f"log.dirs is {','.join(config.log_dirs)}, which cannot be used: {error}") from error
    except (BindError, ConfigError, FormatError, CorruptMetadata) as error:
        raise Failure(str(error)) from error
    if failure:
        raise Failure(failure)
    return 0


async def _run(config: BrokerConfig) -> str:
    """Serve until asked to stop, or until the broker cannot go on: then the reason is given."""
    import trio

    from kwire.broker.net.serve import serve

    stop = _StopSignals(trio.Event(), trio.lowlevel.current_trio_token())
    async with serve(config, alone=True) as broker:
        print(
            f"kwire serves on {broker.bootstrap}, its data is in {', '.join(config.log_dirs)}; "
            f"Ctrl-C or SIGTERM stops it",
            flush=True,
        )
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        async with trio.open_nursery() as nursery:

            async def wait_for(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_for, stop.asked)
            nursery.start_soon(wait_for, broker.failure.happened)
        logging.getLogger("kwire").info("stopping")
        return broker.failure.reason


class _StopSignals:
    """The first signal asks for a clean stop, the second ends the process: recovery follows."""

    def __init__(self, asked: trio.Event, token: trio.lowlevel.TrioToken) -> None:
        self.asked = asked
        self._token = token
        self._count = 0
        signal.signal(signal.SIGTERM, self._received)
        signal.signal(signal.SIGINT, self._received)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its terminal may close

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(128 + number)
        self._token.run_sync_soon(self.asked.set)


def _format(options: argparse.Namespace) -> int:
    import random
    import time

    from kwire.broker.controller.scram import MalformedCredential, parse_credential
    from kwire.broker.controller.topics import new_uuid
    from kwire.broker.node.format import (
        Beginning,
        FormatError,
        format_directories,
        needs_voters,
        parse_feature,
        parse_voters,
        standalone_voter,
    )
    from kwire.broker.storage.disk import RealDisk, StorageError
    from kwire.wire.primitives import uuid_to_text

    rng = random.SystemRandom()
    if options.cluster_id is None:
        # As with Kafka's tool: directories and nodes that are formatted one by one must get the same id.
        fresh = uuid_to_text(new_uuid(rng))
        raise Failure(f"--cluster-id is missing: for a new cluster, give --cluster-id {fresh}")
    if options.standalone + options.no_initial_controllers + (options.initial_controllers is not None) > 1:
        raise Failure(
            "--standalone, --no-initial-controllers and --initial-controllers exclude each other: give one"
        )
    options.properties = options.properties or options.config
    if options.node_id is not None:
        options.overrides.append(f"node.id={options.node_id}")
    features: dict[str, int] = {}
    for feature in options.features:
        try:
            name, level = parse_feature(feature)
        except FormatError as error:
            raise Failure(str(error)) from error
        features[name] = level
    credentials = []
    for text in options.credentials:
        try:
            credentials.append(parse_credential(text, rng))
        except MalformedCredential as error:
            # What was given is not repeated: it may tell a password.
            raise Failure(f"--add-scram: {error}") from error
    config = _config(options)
    try:
        voters = []
        if options.standalone:
            voters = [standalone_voter(config, rng)]
        elif options.initial_controllers is not None:
            voters = parse_voters(options.initial_controllers, config)
        elif needs_voters(config) and not options.no_initial_controllers:
            raise Failure(
                "controller.quorum.voters is not set, so who votes must be said here: with --standalone, "
                "--initial-controllers or --no-initial-controllers"
            )
        lines = format_directories(
            config,
            RealDisk(),
            rng,
            int(time.time() * 1000),
            cluster_id=options.cluster_id,
            ignore_formatted=options.ignore_formatted,
            beginning=Beginning(features, options.release_version, voters, credentials),
        )
    except StorageError as error:
        raise Failure(f"log.dirs is {','.join(config.log_dirs)}, which cannot be used: {error}") from error
    except FormatError as error:
        raise Failure(str(error)) from error
    for line in lines:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
