"""The command `kwire`: argument parsing and dispatch to its subcommands.

Each subcommand imports its modules when it runs. That keeps startup fast: `kwire serve` responds to its first
client within a quarter of a second.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kwire import __version__
from kwire.cli.broker_settings import CLUSTER_DIR, LOG_FORMATS, LOG_LEVELS
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.parser import Parser
from kwire.cli.shared.standard_streams import run_and_flush
from kwire.host.platform import UnsupportedPlatform, check_platform

DESCRIPTION = """\
kwire is a broker that speaks Apache Kafka's protocol and uses its file formats,
written in Python. Every Kafka client works with it, unmodified."""

EXAMPLES = """\
examples:
  kwire serve                                  a broker on 127.0.0.1:9092, no configuration needed
  kwire serve server.properties                with Apache Kafka's own configuration file
  kwire serve --data /var/lib/kwire            with another data directory
  kwire serve --set listeners=PLAINTEXT://127.0.0.1:19092         on another port
  kwire serve --set num.partitions=12 --set auto.create.topics.enable=false
  kwire cluster up                             three combined nodes on this machine, to try failover

'kwire COMMAND --help' shows the options of a command."""

TOOLS = {
    "topics": "list, describe, create, alter and delete topics",
    "produce": "write lines of standard input, or arguments, to a topic",
    "consume": "print the records of topics",
    "groups": "list, describe and delete consumer groups, and reset their offsets",
    "configs": "describe and alter the configuration of topics, brokers and groups",
    "transactions": "list and describe transactions, and abort hanging ones",
    "logs": "describe and verify log directories, and move replicas between them",
    "users": "manage users that authenticate with SCRAM",
    "tokens": "create, renew and expire delegation tokens",
    "acls": "list, add, remove and replace ACLs",
    "certs": "make certificates for TLS in development",
    "dump": "print and check the files of a data directory, without a broker",
    "doctor": "check a broker configuration and this machine",
}
"""The commands that `kwire.cli.tools` runs."""

SERVE_DESCRIPTION = """\
Run a broker. Ctrl-C or SIGTERM shuts it down cleanly; a second signal ends it at once.

Settings have Apache Kafka's names. --set overrides the environment (KAFKA_NUM_PARTITIONS for
num.partitions, as in Kafka's container image), and the environment overrides the file. Without
any settings, one broker serves 127.0.0.1:9092. A new data directory is formatted on first start."""

SERVE_EXAMPLES = """\
examples:
  kwire serve --set listeners=PLAINTEXT://127.0.0.1:19092         on another port
  kwire serve --console                                           with the web console
  kwire serve server.properties --log-level warning"""
FORMAT_EXAMPLES = """\
examples:
  kwire format server.properties --cluster-id 9bUdgKesSCiE-S_L-zL7fw
  kwire format --data /var/lib/kwire --cluster-id 9bUdgKesSCiE-S_L-zL7fw"""
CLUSTER_EXAMPLES = """\
examples:
  kwire cluster up                             three nodes in ./kwire-cluster, the first on port 9092
  kwire cluster up --controllers 1 --brokers 3 --set num.partitions=12
  kwire cluster kill 2                         then see the new leaders: kwire cluster status"""
CLUSTER_ACTIONS = {
    "up": (
        "Create the cluster if it does not exist, start its stopped nodes, and wait until all serve",
        "--brokers 3 --set num.partitions=12",
    ),
    "status": ("Show the nodes, the quorum and under-replicated partitions", "--watch"),
    "stop": ("Shut down one node, or all of them, cleanly; the data is kept", "2"),
    "kill": ("Kill a node, as a crash would", "2"),
    "restart": ("Shut down a node cleanly, if it runs, and start it again", "2"),
    "down": ("Kill all nodes and remove the cluster with its data", ""),
}
"""Help text of each action, and arguments for its example."""
COMPLETION_DESCRIPTION = """\
Print a script that completes kwire's commands and options in a shell.

example:
  source <(kwire completion bash)        # or zsh, in the shell's startup file
  kwire completion fish | source"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    gc.disable()  # objects created during startup stay alive
    if sys.stderr is None:  # standard error is closed
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["pipeline"]:
        return _pipeline(words[1:])
    if words and words[0] in TOOLS:
        from kwire.cli.tools import main as run_tool

        return run_tool(words[0], words[1:])
    wanted = words[0] if words and words[0] in COMMANDS else None
    # The completion script needs the parsers of all commands.
    parser = _parser(wanted if wanted != "completion" else None)
    options = parser.parse_args(words)
    if options.command is None and not options.version:
        parser.print_help()
        return 2
    if options.command in ("serve", "container"):  # these keep running if standard output is closed
        return _run(options)
    if options.version:
        return run_and_flush("kwire", _print_version)
    if options.command == "completion":
        return run_and_flush("kwire completion", lambda: _completion(options.shell, parser))
    return run_and_flush(f"kwire {options.command}", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    try:
        check_platform()
        if options.command == "serve":
            from kwire.cli.server.serve import run
        elif options.command == "cluster":
            from kwire.cli.cluster.command import run
        elif options.command == "container":
            from kwire.cli.server.container import run
        else:
            from kwire.cli.server.format import run
        return run(options)
    except CommandError as failure:
        print(f"kwire: {failure}", file=sys.stderr)
        return failure.status
    except UnsupportedPlatform as failure:
        print(f"kwire: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or only of `wanted`, which takes a fifth of the time."""
    parser = Parser(
        prog="kwire",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name, (text, add) in COMMANDS.items():
        if wanted in (None, name):
            add(commands.add_parser(name, help=text, allow_abbrev=False))
    if wanted is None:
        for name, text in SEPARATE_COMMANDS.items():
            commands.add_parser(name, help=text, add_help=False)
    return parser


def _describe(parser: argparse.ArgumentParser, description: str, examples: str | None = None) -> None:
    parser.description, parser.epilog = description, examples
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _describe(parser, SERVE_DESCRIPTION, SERVE_EXAMPLES)
    assert isinstance(parser, Parser)
    parser.replacements = {
        "--port": "--set listeners=PLAINTEXT://127.0.0.1:PORT",
        "--host": "--set listeners=PLAINTEXT://HOST:9092",
    }
    _add_settings(parser)
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=None,
        help="log level for standard error (default: KWIRE_LOG_LEVEL, or info)",
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=None,
        help="format of log lines (default: KWIRE_LOG_FORMAT, or text)",
    )
    parser.add_argument(
        "--slow-request-ms",
        metavar="MS",
        help="log requests that take longer than this (default: KWIRE_SLOW_REQUEST_MS, or none)",
    )
    parser.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help="serve health checks and metrics over HTTP; HOST defaults to 127.0.0.1 (default: KWIRE_HTTP, or "
        "no HTTP port)",
    )
    parser.add_argument(
        "--http-tls",
        metavar="LISTENER",
        help="serve HTTPS on the HTTP port, with the certificates and ssl.client.auth of this TLS listener "
        "(default: KWIRE_HTTP_TLS, or no TLS)",
    )
    parser.add_argument(
        "--console",
        action="store_true",
        help="serve the web console at /console/ of the HTTP port, which is 127.0.0.1:8080 unless --http is "
        "given; with an authorizer, users log in with their SASL passwords; KWIRE_CONSOLE=true does the same",
    )
    parser.add_argument(
        "--console-writes",
        action="store_true",
        help="let everyone who can reach the console produce and reset offsets, even if the HTTP port is not "
        "on loopback; no effect with an authorizer, whose ACLs decide",
    )
    parser.add_argument(
        "--accept-unprotected",
        action="store_true",
        help="start even if settings ask for a protection that kwire lacks, such as "
        "create.topic.policy.class.name; KWIRE_ACCEPT_UNPROTECTED=true does the same",
    )


def _add_format(parser: argparse.ArgumentParser) -> None:
    """Add the options of Kafka's `kafka-storage format`, with the same names."""
    _describe(
        parser,
        "Format the data directories of a new node, as kafka-storage format does.",
        FORMAT_EXAMPLES,
    )
    _add_settings(parser)
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="the configuration file, same as the positional argument"
    )
    parser.add_argument("-t", "--cluster-id", metavar="ID", help="the cluster id (required)")
    parser.add_argument(
        "-S",
        "--add-scram",
        dest="credentials",
        action="append",
        default=[],
        metavar="CREDENTIAL",
        help="create a user's SCRAM credential, like 'SCRAM-SHA-256=[name=alice,password=alice-secret]'; "
        "can be repeated",
    )
    parser.add_argument("--node-id", metavar="ID", help="the node id, short for --set node.id=ID")
    parser.add_argument(
        "-g",
        "--ignore-formatted",
        action="store_true",
        help="skip directories that are already formatted",
    )
    parser.add_argument(
        "-r", "--release-version", metavar="RELEASE", help="use the feature levels of this release, like 4.0"
    )
    parser.add_argument(
        "-f",
        "--feature",
        dest="features",
        action="append",
        default=[],
        metavar="FEATURE=LEVEL",
        help="set the level of a feature; can be repeated",
    )
    parser.add_argument(
        "-s", "--standalone", action="store_true", help="make this node the only voter of a dynamic quorum"
    )
    parser.add_argument("-N", "--no-initial-controllers", action="store_true", help="write no initial voters")
    parser.add_argument(
        "-I",
        "--initial-controllers",
        metavar="ID@HOST:PORT:DIRECTORY,...",
        help="the initial voters of a dynamic quorum",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `kwire cluster`."""
    _describe(
        parser,
        "Run several brokers and controllers on this machine, each in a process of its own.",
        CLUSTER_EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument(
        "--dir", metavar="DIR", default=CLUSTER_DIR, help=f"the cluster's directory (default: {CLUSTER_DIR})"
    )

    def action(name: str) -> argparse.ArgumentParser:
        text, words = CLUSTER_ACTIONS[name]
        made = actions.add_parser(name, help=text, parents=[folder], allow_abbrev=False)
        _describe(made, f"{text}.", f"example:\n  kwire cluster {name} {words}".rstrip())
        return made

    up = action("up")
    up.add_argument(
        "--combined",
        type=int,
        metavar="N",
        help="number of nodes that are both broker and controller (default: 3, unless --brokers or "
        "--controllers is given)",
    )
    up.add_argument(
        "--controllers",
        type=int,
        metavar="N",
        help="number of nodes that are only controllers (default: 1, if --brokers is given)",
    )
    up.add_argument(
        "--brokers", type=int, metavar="N", help="number of brokers (default: 3, if --controllers is given)"
    )
    up.add_argument("--port", type=int, help="the first port; other nodes use the next ones (default: 9092)")
    up.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Kafka setting for all new nodes; can be repeated",
    )
    status = action("status")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="repeat until Ctrl-C (default: every second)",
    )
    stop_ = action("stop")
    stop_.add_argument("node", type=int, nargs="?", metavar="N", help="a node id (default: all nodes)")
    for name in ("kill", "restart"):
        action(name).add_argument("node", type=int, metavar="N", help="a node id")
    action("down")


def _add_container(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `kwire container`; the options of directories have the names of Kafka's wrapper."""
    _describe(parser, "The entry point of the container image; docker/README.md describes its settings.")
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    places = argparse.ArgumentParser(add_help=False)
    for option, directory in (("mounted", "/mnt/shared/config"), ("default", "/etc/kafka/docker")):
        places.add_argument(
            f"--{option}-configs-dir",
            metavar="DIR",
            default=directory,
            help=f"directory with server.properties (default: {directory})",
        )

    def action(name: str, text: str, words: str = "") -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, parents=[places], allow_abbrev=False)
        _describe(made, text, f"example:\n  kwire container {name} {words}".rstrip())
        return made

    action("run", "format new data directories, and run the broker", "KAFKA_NUM_PARTITIONS=12").add_argument(
        "variables", nargs="*", metavar="NAME=VALUE", help="environment variables to set"
    )
    action("healthy", "send ApiVersions to this container's broker, and fail if it does not respond")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    _describe(parser, COMPLETION_DESCRIPTION)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _completion(shell: str, parser: argparse.ArgumentParser) -> int:
    from kwire.cli.completion import positions, script
    from kwire.cli.tools import parser_of

    known = {level.path: level for level in positions("kwire", parser)}
    for name in TOOLS:
        known |= {level.path: level for level in positions(f"kwire {name}", parser_of(name))}
    print(script(shell, list(known.values())), end="")
    return 0


def _pipeline(arguments: Sequence[str]) -> int:
    gc.enable()
    from kwire.pipeline.cli import main as run_job

    try:
        return run_job(arguments, Parser)
    except KeyboardInterrupt:
        return 130


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
        help="a Kafka setting; can be repeated",
    )
    parser.add_argument("--data", metavar="DIR", help="the data directory, short for --set log.dirs=DIR")


def _print_version() -> int:
    from kwire.wire.record_scan import IMPLEMENTATION

    print(f"kwire {__version__} (record validation: {IMPLEMENTATION})")
    return 0


COMMANDS: Final[Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "serve": ("run a broker", _add_serve),
    "format": ("prepare the data directories of a broker", _add_format),
    "cluster": ("run several brokers on this machine", _add_cluster),
    "container": ("run in a container, configured like Apache Kafka's image", _add_container),
    "completion": ("print a shell completion script", _add_completion),
}
"""Help text of each command that this module parses, and the function that adds its arguments."""

SEPARATE_COMMANDS: Final = {"pipeline": "run a job on Spark: archive, restore, audit …", **TOOLS}


if __name__ == "__main__":
    sys.exit(main())
