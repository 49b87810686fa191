"""Parsers of commands: description, example, and the options that all commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from kwire.cli.shared.client_settings import DEFAULT_SERVER
from kwire.cli.shared.output import Output
from kwire.cli.shared.parser import Parser

Run = Callable[[argparse.Namespace, Output], int]
"""Runs a command and returns its exit status. Raises ApiError, CommandError, Disconnected or WireError."""


class Once(argparse.Action):
    """An option with one value. If it is repeated, the command fails instead of ignoring a value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given more than once: expected one value")
        setattr(namespace, self.dest, values)


def command_parser(
    name: str, description: str, example: str = "", run: Run | None = None
) -> argparse.ArgumentParser:
    """Return the parser of a command; if it has actions, each action has its own example and `run`."""
    parser = Parser(prog=f"kwire {name}", **help_arguments(description, example))
    parser.set_defaults(run=run)
    return parser


def help_arguments(description: str, example: str) -> dict[str, Any]:
    """Return the parser arguments for a description and an example."""
    several = "s" if "\n" in example else ""
    return {
        "description": description,
        "epilog": f"example{several}:\n  {example}" if example else None,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the cluster and the connection to it."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help=f"bootstrap servers (default: bootstrap.servers of --command-config, or {DEFAULT_SERVER})",
    )
    parser.add_argument(
        "--command-config", metavar="FILE", help="a client's properties file, as for Kafka's own tools"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="time limit (default: 30)")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_repeatable_option(parser: argparse.ArgumentParser, name: str, metavar: str, help_: str) -> None:
    """Add an option whose values are collected in a list."""
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=f"{help_}; can be repeated")
