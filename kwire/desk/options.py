"""How commands tell what they take: a sentence and an example each, and the options that all share."""

from __future__ import annotations

import argparse

from kwire.desk.settings import DEFAULT_SERVER


def command_parser(name: str, description: str, example: str = "") -> argparse.ArgumentParser:
    """The parser of a command; one with actions has the example of the first."""
    return argparse.ArgumentParser(
        prog=f"kwire {name}",
        description=description,
        epilog=_epilog(example),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


class Actions:
    """The actions of a command, such as `list` of `topics`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    def add(self, name: str, description: str, example: str) -> argparse.ArgumentParser:
        """An action, which speaks to a cluster."""
        self._parser.epilog = self._parser.epilog or _epilog(example)
        action = self._actions.add_parser(
            name,
            help=description.rstrip("."),
            description=description,
            epilog=_epilog(example),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_wire(action)
        add_json(action)
        return action


def add_wire(parser: argparse.ArgumentParser) -> None:
    """Where the cluster is, and how it is reached."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help=f"brokers to ask first (default: what the file says, or {DEFAULT_SERVER})",
    )
    parser.add_argument(
        "--command-config", metavar="FILE", help="a client's properties file, as Kafka's own tools take it"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="how long to try (default: 30)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def _epilog(example: str) -> str | None:
    several = "s" if "\n" in example else ""
    return f"example{several}:\n  {example}" if example else None
