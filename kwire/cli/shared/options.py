"""How commands tell what they take: a sentence and an example each, and the options that all share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypedDict

from kwire.cli.shared.client_settings import DEFAULT_SERVER
from kwire.cli.shared.output import Output
from kwire.cli.shared.parser import Parser

Run = Callable[[argparse.Namespace, Output], int]
"""Does what options say, and gives an exit status. ApiError, Failure, Lost, WireError."""


class HelpArguments(TypedDict):
    """Arguments of argparse's parsers."""

    description: str
    epilog: str | None
    formatter_class: type[argparse.HelpFormatter]
    allow_abbrev: bool


def command_parser(
    name: str, description: str, example: str = "", run: Run | None = None
) -> argparse.ArgumentParser:
    """The parser of a command; of one with actions, these tell an example and what to do."""
    parser = Parser(prog=f"kwire {name}", **help_arguments(description, example))
    parser.set_defaults(run=run)
    return parser


def help_arguments(description: str, example: str) -> HelpArguments:
    """What a parser is made with."""
    several = "s" if "\n" in example else ""
    return {
        "description": description,
        "epilog": f"example{several}:\n  {example}" if example else None,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def add_connection_options(parser: argparse.ArgumentParser) -> None:
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


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
