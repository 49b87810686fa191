"""Actions of commands, such as `list` of `kwire topics`. Most of them use a cluster."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial

from kwire.cli.shared.client_settings import settings_from_options
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.options import Run, add_connection_options, add_json_option, help_arguments
from kwire.cli.shared.output import Output

Action = Callable[[CommandClient, Namespace, Output], None]


class Actions:
    """The actions of one command."""

    def __init__(self, parser: ArgumentParser) -> None:
        self._parser = parser
        self._actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    def add(self, name: str, act: Action, description: str, example: str) -> ArgumentParser:
        """Add an action that calls `act`, and return its parser."""
        action = self.add_offline(name, partial(_run, act), description, example)
        add_connection_options(action)
        return action

    def add_offline(self, name: str, run: Run, description: str, example: str) -> ArgumentParser:
        """Add an action that uses no cluster and calls `run`, and return its parser."""
        help_ = description.rstrip(".")
        action = self._actions.add_parser(name, help=help_, **help_arguments(description, example))
        self._parser.epilog = self._parser.epilog or action.epilog
        action.set_defaults(run=run)
        add_json_option(action)
        return action


def _run(act: Action, options: Namespace, output: Output) -> int:
    with CommandClient(settings_from_options(options)) as cluster:
        try:
            act(cluster, options, output)
        finally:
            output.finish()  # even if only a part of the action succeeded
    return 0
