"""The command `kwire`.

Everything that a subcommand needs is imported when it runs: `kwire serve` answers its first client in a
quarter of a second, and `kwire --help` sooner.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kwire.cli.broker_settings import CLUSTER_DIR, LOG_FORMATS, LOG_LEVELS
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.parser import Parser
from kwire.cli.shared.standard_streams import run_and_flush

DESCRIPTION = """\
kwire is a broker that speaks Apache Kafka's protocol and keeps Apache Kafka's files,
written in Python. Any Kafka client works with it, unmodified."""

EXAMPLES = """\
examples:
  kwire serve                                  a broker on 127.0.0.1:9092, nothing to configure
  kwire serve server.properties                with Apache Kafka's own configuration file
  kwire serve --data /var/lib/kwire            with its data somewhere else
  kwire serve --set listeners=PLAINTEXT://127.0.0.1:19092         at another port
  kwire serve --set num.partitions=12 --set auto.create.topics.enable=false
  kwire cluster up                             three nodes, each broker and controller, to try failover

'kwire serve --help' tells about a command's options."""

TOOLS = {
    "topics": "list, describe, create, alter and delete topics of any cluster",
    "produce": "write lines, or arguments, into a topic",
    "consume": "show the records of topics, and those that come",
    "groups": "consumer groups: who reads what, how far, and where they go on",
    "configs": "what topics, brokers and groups are configured to",
    "transactions": "transactions, and an end to those that hang",
    "logs": "the log directories of brokers, and what lies in them",
    "users": "who may come by SCRAM, and with which password",
    "tokens": "delegation tokens: passwords for programs, for a while",
    "dump": "what is in the files of a data directory, without a broker",
    "doctor": "check a configuration and this machine, and say what to change",
}
"""The commands of `kwire.cli`, which is loaded when one of them is asked for."""

SERVE_DESCRIPTION = """\
Run a broker until Ctrl-C or SIGTERM, which stop it cleanly; a second one stops it at once.

Settings are Apache Kafka's. Of a setting given more than once, --set wins over the environment
(KAFKA_NUM_PARTITIONS for num.partitions, as in Kafka's container image), and that over the file.
Without any, one broker serves 127.0.0.1:9092. A new data directory is formatted on first start."""

SERVE_EXAMPLES = """\
examples:
  kwire serve --set listeners=PLAINTEXT://127.0.0.1:19092         at another port
  kwire serve --console                                           with pages for a browser
  kwire serve server.properties --log-level warning"""
FORMAT_EXAMPLES = """\
examples:
  kwire format server.properties --cluster-id 9bUdgKesSCiE-S_L-zL7fw
  kwire format --data /var/lib/kwire --cluster-id 9bUdgKesSCiE-S_L-zL7fw"""
CLUSTER_EXAMPLES = """\
examples:
  kwire cluster up                             three nodes in ./kwire-cluster, the first at port 9092
  kwire cluster up --controllers 1 --brokers 3 --set num.partitions=12
  kwire cluster kill 2                         and see who leads: kwire cluster status"""
CLUSTER_ACTIONS = {
    "up": (
        "Make a cluster where there is none, start what does not run, and wait until it serves",
        "--brokers 3 --set num.partitions=12",
    ),
    "status": ("Tell how the nodes are, and whether every partition is where it should be", "--watch"),
    "stop": ("Stop a node in an orderly way, or all of them; their data stays", "2"),
    "kill": ("End a node at once, as a crash does", "2"),
    "restart": ("Stop a node in an orderly way, if it runs, and start it", "2"),
    "down": ("End all nodes and remove the cluster, with its data", ""),
}
"""What each does, and what an example gives it."""
COMPLETION_DESCRIPTION = """\
Print a script that lets a shell complete the command, its actions and options.

example:
  source <(kwire completion bash)        # or zsh, in its startup file
  kwire completion fish | source"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and give its exit status."""
    gc.disable()  # nothing that is made while starting is garbage
    if sys.stderr is None:  # which is closed: nobody wants to be told
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["pipeline"]:
        return _pipeline(given[1:])
    if given and given[0] in TOOLS:
        from kwire.cli.tools import main as run_tool

        return run_tool(given[0], given[1:])
    wanted = given[0] if given and given[0] in COMMANDS else None
    parser = _parser(wanted if wanted != "completion" else None)  # which completes all of them
    options = parser.parse_args(given)
    if options.command is None and not options.version:
        parser.print_help()
        return 2
    if options.command in ("serve", "container"):  # which go on where nobody is told
        return _run(options)
    if options.version:
        return run_and_flush("kwire", _print_version)
    if options.command == "completion":
        return run_and_flush("kwire completion", lambda: _completion(options.shell, parser))
    return run_and_flush(f"kwire {options.command}", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    try:
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
    except KeyboardInterrupt:
        return 130


def _parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of `wanted` alone, which is built in a fifth of the time."""
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
        for name, text in SEPARATE_COMMANDS.items():  # whose parsers are their own
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
        help="how much to log to standard error (default: info, or what KWIRE_LOG_LEVEL says)",
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=None,
        help="lines for people, or for programs (default: text, or what KWIRE_LOG_FORMAT says)",
    )
    parser.add_argument(
        "--slow-request-ms",
        metavar="MS",
        help="log requests that take longer (default: none, or what KWIRE_SLOW_REQUEST_MS says)",
    )
    parser.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help="tell of health and metrics there over HTTP, without HOST on 127.0.0.1 (default: not at all, or "
        "what KWIRE_HTTP says)",
    )
    parser.add_argument(
        "--console",
        action="store_true",
        help="pages for a browser on topics, messages, groups and the cluster, at /console/ of the HTTP port "
        "(which is on 127.0.0.1:8080 where --http does not say); KWIRE_CONSOLE=true asks for them, too",
    )
    parser.add_argument(
        "--console-writes",
        action="store_true",
        help="let everybody who reaches the console produce and reset offsets, also where --http is not on "
        "loopback",
    )


def _add_format(parser: argparse.ArgumentParser) -> None:
    """Options are those of Kafka's `kafka-storage format`, by the same names."""
    _describe(
        parser,
        "Write what a new broker's data directories need, as Kafka's storage tool does.",
        FORMAT_EXAMPLES,
    )
    _add_settings(parser)
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


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    """What `kwire cluster` does, and takes."""
    _describe(
        parser,
        "Several brokers and controllers on this machine, each node a process of its own.",
        CLUSTER_EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument(
        "--dir", metavar="DIR", default=CLUSTER_DIR, help=f"the cluster's folder (default: {CLUSTER_DIR})"
    )

    def action(name: str) -> argparse.ArgumentParser:
        text, given = CLUSTER_ACTIONS[name]
        made = actions.add_parser(name, help=text, parents=[folder], allow_abbrev=False)
        _describe(made, f"{text}.", f"example:\n  kwire cluster {name} {given}".rstrip())
        return made

    up = action("up")
    up.add_argument(
        "--combined",
        type=int,
        metavar="N",
        help="how many nodes that are both (default: 3, where neither of the others is given)",
    )
    up.add_argument(
        "--controllers",
        type=int,
        metavar="N",
        help="how many nodes that are only controllers (default: 1, where --brokers is given)",
    )
    up.add_argument(
        "--brokers", type=int, metavar="N", help="how many brokers (default: 3, where --controllers is given)"
    )
    up.add_argument("--port", type=int, help="the first broker's port; the others' follow (default: 9092)")
    up.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all new nodes by its Kafka key; may be repeated",
    )
    status = action("status")
    status.add_argument("--json", action="store_true", help="for programs")
    status.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="tell it again and again, until Ctrl-C (default: each second)",
    )
    stop_ = action("stop")
    stop_.add_argument("node", type=int, nargs="?", metavar="N", help="the node's id (default: all)")
    for name in ("kill", "restart"):
        action(name).add_argument("node", type=int, metavar="N", help="the node's id")
    action("down")


def _add_container(parser: argparse.ArgumentParser) -> None:
    """What `kwire container` does, and takes: the directories by the names of Kafka's wrapper."""
    _describe(parser, "What the container image runs; docker/README.md tells what it takes.")
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    places = argparse.ArgumentParser(add_help=False)
    for option, directory in (("mounted", "/mnt/shared/config"), ("default", "/etc/kafka/docker")):
        places.add_argument(
            f"--{option}-configs-dir",
            metavar="DIR",
            default=directory,
            help=f"where its server.properties is (default: {directory})",
        )

    def action(name: str, text: str, given: str = "") -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, parents=[places], allow_abbrev=False)
        _describe(made, text, f"example:\n  kwire container {name} {given}".rstrip())
        return made

    action("run", "format what is new, and run the broker", "KAFKA_NUM_PARTITIONS=12").add_argument(
        "variables", nargs="*", metavar="NAME=VALUE", help="set over the environment"
    )
    action("healthy", "ask the broker of this container for its APIs, and fail where it does not answer")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    _describe(parser, COMPLETION_DESCRIPTION)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _completion(shell: str, parser: argparse.ArgumentParser) -> int:
    from kwire.cli.completion import positions, script
    from kwire.cli.tools import parser_of

    known = {level.path: level for level in positions("kwire", parser)}
    for name in TOOLS:  # whose parsers are their own
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
        help="one setting by its Kafka key; may be repeated",
    )
    parser.add_argument("--data", metavar="DIR", help="where the data is kept: short for --set log.dirs=DIR")


def _print_version() -> int:
    print(f"kwire {_version()}")
    return 0


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kwire")
    except PackageNotFoundError:
        return "(not installed)"


COMMANDS: Final[Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "serve": ("run a broker", _add_serve),
    "format": ("prepare the data directories of a broker", _add_format),
    "cluster": ("run several brokers on this machine", _add_cluster),
    "container": ("run in a container, told by the environment as Apache Kafka's image is", _add_container),
    "completion": ("print a script that lets a shell complete all this", _add_completion),
}
"""What each command that is parsed here is for, and what adds its arguments."""

SEPARATE_COMMANDS: Final = {"pipeline": "run a job on Spark: archive, restore, audit …", **TOOLS}


if __name__ == "__main__":
    sys.exit(main())
